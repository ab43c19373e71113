"""Scrapes of every release -> one vocabulary; what is broken costs its own family and is named with its line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from vllm_doctor.model.catalogue import COUNTERS, HISTOGRAMS, OBSERVATIONS
from vllm_doctor.model.observations import Histogram, Issue, Scrape
from vllm_doctor.parsing.prometheus import delta_counter, delta_histogram, parse, quantile, scrape_time, split, sum_histograms
from vllm_doctor.ruleset import strict_yaml
from vllm_doctor.ruleset.schema import Metric

KNOWLEDGE = Path(__file__).resolve().parents[2] / "rules" / "knowledge" / "metrics.yaml"
METRICS = msgspec.convert(strict_yaml.load(KNOWLEDGE.read_text(encoding="utf-8"), "metrics.yaml")[0], list[Metric])
INF = math.inf

SCRAPE_032 = """\
# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 17.759999999999998
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 5.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 19.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 2.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.875
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 11054.0
# HELP vllm:prompt_tokens_created Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.796046841581663e+09
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 160.0
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 541.0
vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="tiny"} 2412.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="tiny"} 3701.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 3701.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 51698.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="16384",num_gpu_blocks="512"} 1.0
# HELP http_requests_total Total number of requests by method, status and handler.
# TYPE http_requests_total counter
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 173.0
http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 1.0
http_requests_total{handler="/health",method="GET",status="2xx"} 40.0
http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 7.0
"""


def scrape(text: str, **given: object) -> tuple[Scrape | None, list[Issue]]:
    return parse(text.encode(), "m.txt", 1, METRICS, **given)  # type: ignore[arg-type]


def good(text: str) -> Scrape:
    found, issues = scrape(text)
    assert found is not None
    assert issues == []
    return found


def codes(issues: Sequence[Issue]) -> list[tuple[str, int | None]]:
    return [(i.code, i.ref.line if i.ref else None) for i in issues]


def histogram(name: str, rows: Sequence[tuple[str, float]], total: float, labels: str = "") -> str:
    comma = "," + labels if labels else ""
    lines = [f"# TYPE {name} histogram", *(f'{name}_bucket{{le="{le}"{comma}}} {n}' for le, n in rows)]
    braces = "{" + labels + "}" if labels else ""
    return "\n".join([*lines, f"{name}_sum{braces} {total}", f"{name}_count{braces} {rows[-1][1]}"]) + "\n"


def test_a_scrape_comes_out_in_our_names_and_units() -> None:
    found = good(SCRAPE_032)
    assert found.gauges == {("requests.running", 0): 5.0, ("requests.deferred", 0): 2.0, ("kv_cache.usage", 0): 0.875}
    assert found.counters == {
        ("process.cpu", 0): 17.759999999999998,
        ("tokens.prompt", 0): 11054.0,
        ("requests.finished", 0): 163.0,
        ("http.2xx", 0): 174.0,
        ("http.4xx", 0): 7.0,
        ("http.5xx", 0): 0.0,
    }
    assert found.histograms == {("step.tokens", 0): Histogram(((1.0, 541.0), (8.0, 2412.0), (INF, 3701.0)), 51698.0, 3701.0)}
    assert found.info == {"block_size": "32", "kv_cache_size_tokens": "16384", "num_gpu_blocks": "512", "model_name": "tiny"}
    assert found.families == 7


def test_each_name_has_the_line_it_was_read_from() -> None:
    refs = {name: (ref.source, ref.line) for name, ref in good(SCRAPE_032).refs.items()}
    assert refs == {
        "process.cpu": ("m.txt", 3),
        "requests.running": ("m.txt", 6),
        "requests.deferred": ("m.txt", 10),
        "kv_cache.usage": ("m.txt", 13),
        "tokens.prompt": ("m.txt", 16),
        "requests.finished": ("m.txt", 22),
        "step.tokens": ("m.txt", 29),
        "vllm:cache_config_info": ("m.txt", 33),
        "http.2xx": ("m.txt", 36),
        "http.4xx": ("m.txt", 39),
        "http.5xx": ("m.txt", 35),
    }


def test_lines_count_from_where_the_segment_starts() -> None:
    found, _ = parse(b"vllm:num_requests_running 1.0\n", "s", 41, METRICS)
    assert found is not None
    assert found.refs["requests.running"].line == 41


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "kv_cache.usage"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", "prefix_cache.hits"),
        ("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total", "prefix_cache.queries"),
    ],
)
def test_of_an_old_and_a_new_name_the_newer_counts_once(old: str, new: str, name: str) -> None:
    alone, both = good(f"{old} 0.25\n"), good(f"{new} 0.5\n{old} 0.25\n")
    assert {**alone.gauges, **alone.counters} == {(name, 0): 0.25}
    assert {**both.gauges, **both.counters} == {(name, 0): 0.5}
    assert both.refs[name].line == 1


def test_the_old_latency_histogram_gives_way_to_the_new_one() -> None:
    old = histogram("vllm:time_per_output_token_seconds", [("0.1", 5.0), ("+Inf", 6.0)], 1.0)
    new = histogram("vllm:inter_token_latency_seconds", [("0.1", 7.0), ("+Inf", 8.0)], 2.0)
    assert good(old).histograms == {("latency.itl", 0): Histogram(((0.1, 5.0), (INF, 6.0)), 1.0, 6.0)}
    assert good(old + new).histograms == {("latency.itl", 0): Histogram(((0.1, 7.0), (INF, 8.0)), 2.0, 8.0)}


def test_where_the_new_name_is_broken_the_old_one_serves() -> None:
    found, issues = scrape('vllm:kv_cache_usage_perc{engine="0} 0.5\nvllm:gpu_cache_usage_perc 0.25\n')
    assert found is not None
    assert (found.gauges, codes(issues)) == ({("kv_cache.usage", 0): 0.25}, [("metrics.bad_line", 1)])


def test_v0_names_are_known() -> None:
    text = (
        "vllm:num_requests_swapped 3.0\nvllm:cpu_cache_usage_perc 0.5\nvllm:avg_generation_throughput_toks_per_s 12.5\n"
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0\n'
    )
    assert good(text).gauges == {("requests.swapped", 0): 3.0, ("swap.usage", 0): 0.5, ("throughput.generation", 0): 12.5}


def test_milliseconds_become_seconds() -> None:
    metric = Metric("vllm:step_milliseconds", "histogram", "0.1", "0.2", "a made-up family", "latency.queue", "ms")
    text = histogram("vllm:step_milliseconds", [("500.0", 2.0), ("+Inf", 3.0)], 4000.0)
    found, _ = parse(text.encode(), "s", 1, [metric])
    assert found is not None
    assert found.histograms == {("latency.queue", 0): Histogram(((0.5, 2.0), (INF, 3.0)), 4.0, 3.0)}


def test_engines_stay_apart_and_models_are_added_up_and_listed() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="a"} 1.0\nvllm:num_requests_running{engine="0",model_name="b"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="a"} 4.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25\nvllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.5\n'
        + histogram("vllm:request_prompt_tokens", [("10.0", 1.0), ("+Inf", 2.0)], 30.0, 'engine="0",model_name="a"')
        + histogram("vllm:request_prompt_tokens", [("10.0", 3.0), ("+Inf", 3.0)], 15.0, 'engine="0",model_name="b"')
    )
    found, issues = scrape(text)
    assert found is not None
    assert found.gauges == {("requests.running", 0): 3.0, ("requests.running", 1): 4.0, ("kv_cache.usage", 0): 0.5}
    assert found.histograms == {("request.prompt_tokens", 0): Histogram(((10.0, 4.0), (INF, 5.0)), 45.0, 5.0)}
    assert (found.info, codes(issues)) == ({"model_name": "a, b"}, [("metrics.several_models", None)])


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0"])
def test_what_is_no_number_is_unknown(value: str) -> None:
    assert good(f"vllm:num_requests_running 2.0\nvllm:kv_cache_usage_perc {value}\n").gauges == {("requests.running", 0): 2.0}


def test_created_series_are_never_values() -> None:
    found = good("vllm:num_requests_running 1.0\nvllm:prompt_tokens_created 1.7e+09\nvllm:e2e_request_latency_seconds_created 1.7e+09\n")
    assert ({**found.gauges, **found.counters}, found.histograms) == ({("requests.running", 0): 1.0}, {})


def test_a_bad_line_costs_its_family_and_nothing_else() -> None:
    found, issues = scrape(SCRAPE_032.replace('le="8.0",model_name="tiny"} 2412.0', 'le="8.0,model_name="tiny} 2412.0'))
    assert found is not None
    assert (found.histograms, len(found.gauges), len(found.counters)) == ({}, 3, 6)
    assert codes(issues) == [("metrics.bad_line", 27)]
    assert issues[0].values == {"family": "vllm:iteration_tokens_total"}


def test_a_histogram_that_lost_its_end_is_left_out() -> None:
    text = SCRAPE_032.split('vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"')[0]
    found, issues = scrape(text)
    assert found is not None
    assert (found.histograms, codes(issues)) == ({}, [("metrics.incomplete", 27)])


@pytest.mark.parametrize(
    "cut", ["vllm:num_requests_running{engine=", "vllm:num_requests_running", "vllm:num_requests_running 12", "vllm:num_requests_running 1."]
)
def test_a_line_that_breaks_off_is_not_taken_for_a_value(cut: str) -> None:
    found, issues = scrape("vllm:kv_cache_usage_perc 0.5\n" + cut)
    assert found is not None
    assert (found.gauges, codes(issues)) == ({("kv_cache.usage", 0): 0.5}, [("metrics.truncated", 2)])


def test_a_last_line_without_line_feed_is_whole_if_its_value_is() -> None:
    assert good("vllm:num_requests_running 12.0").gauges == {("requests.running", 0): 12.0}


def test_a_page_behind_the_metrics_is_named_and_the_metrics_are_kept() -> None:
    found, issues = scrape("vllm:num_requests_running 1.0\n<html><body>\n<h1>502</h1>\n</html>\n")
    assert found is not None
    assert (found.gauges, codes(issues), issues[0].values) == ({("requests.running", 0): 1.0}, [("metrics.html", 2)], {"count": 3})


def test_a_page_instead_of_metrics_is_no_scrape() -> None:
    found, issues = scrape("<!DOCTYPE html>\n<html></html>\n")
    assert (found, codes(issues)) == (None, [("metrics.html", 1), ("metrics.none", 1)])


@pytest.mark.parametrize(
    "text", ["", "\n \n", "HTTP/1.1 200 OK\r\ndate: Wed, 12 Nov 2025 10:04:31 GMT\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1 200 OK"]
)
def test_an_empty_body_is_said_to_be_empty(text: str) -> None:
    found, issues = scrape(text)
    assert (found, codes(issues), issues[0].message) == (None, [("metrics.empty", 1)], "empty metrics body")


def test_a_header_block_is_skipped_and_its_status_is_told() -> None:
    head = "HTTP/1.1 {} \r\ncontent-type: text/plain; version=0.0.4\r\n\r\n"
    assert good(head.format("200 OK") + "vllm:num_requests_running 1.0\r\n").refs["requests.running"].line == 4
    found, issues = scrape(head.format("500 Internal Server Error") + "Internal Server Error\n")
    assert (found, codes(issues)[0], issues[0].values) == (None, ("metrics.http_status", 1), {"status": 500})


def test_curls_chatter_is_no_fault() -> None:
    chatter = "$ curl -v localhost:8000/metrics\n* Connected to localhost\n> GET /metrics HTTP/1.1\n< content-type: text/plain\n"
    assert good(chatter + "vllm:num_requests_running 1.0\nroot@gpu1:~# exit\n").gauges == {("requests.running", 0): 1.0}


def test_declared_twice_is_no_matter_and_given_twice_the_last_counts() -> None:
    once = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1.0\n"
    assert good("# TYPE vllm:num_requests_running gauge\n" + once).gauges == {("requests.running", 0): 1.0}
    found, issues = scrape(once + once.replace("1.0", "7.0"))
    assert found is not None
    assert (found.gauges, codes(issues)) == ({("requests.running", 0): 7.0}, [("metrics.duplicate", 4)])


def test_openmetrics_with_exemplars_and_timestamps_is_read() -> None:
    text = (
        "# TYPE vllm:prompt_tokens counter\n# UNIT vllm:prompt_tokens tokens\n"
        'vllm:prompt_tokens_total{engine="0"} 11.0 1796046493.5\n'
        "# TYPE vllm:e2e_request_latency_seconds histogram\n"
        'vllm:e2e_request_latency_seconds_bucket{le="0.5"} 3.0 # {trace_id="a # {b"} 0.41 1796046490.1\n'
        'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 4.0\n'
        "vllm:e2e_request_latency_seconds_sum 2.5\nvllm:e2e_request_latency_seconds_count 4.0\n# EOF\n"
    )
    found = good(text)
    assert (found.counters, found.time) == ({("tokens.prompt", 0): 11.0}, 1796046493.5)
    assert found.histograms == {("latency.e2e", 0): Histogram(((0.5, 3.0), (INF, 4.0)), 2.5, 4.0)}


def test_a_time_known_from_elsewhere_goes_before_timestamps() -> None:
    text = "vllm:num_requests_running 1.0 1796046493023\n"
    found, _ = scrape(text, time=5.0, order=3)
    assert found is not None
    assert (found.time, found.order) == (5.0, 3)
    assert good(text).time == 1796046493.023


def test_names_with_an_underscore_for_the_colon_are_the_same() -> None:
    assert good('vllm_num_requests_running{engine="0"} 1.0\n').gauges == {("requests.running", 0): 1.0}


def test_statistics_switched_off_are_told_from_an_idle_server() -> None:
    found, issues = scrape("process_open_fds 31.0\npython_info 1.0\n")
    assert found is not None
    assert (found.families, found.gauges, codes(issues)) == (0, {("process.open_fds", 0): 31.0}, [("metrics.stats_off", 1)])


def test_metrics_of_another_program_are_no_scrape() -> None:
    assert scrape("node_load1 0.5\n")[0] is None


def test_labels_with_quotes_and_braces_are_read() -> None:
    text = 'vllm:num_requests_running{model_name="a \\"b\\" } {c"} 1.0\n'
    found = good(text)
    assert (found.gauges, found.info) == ({("requests.running", 0): 1.0}, {"model_name": 'a "b" } {c'})


@pytest.mark.parametrize(
    ("name", "data", "want"),
    [
        ("metrics/0001_1796046493.023.txt", b"x 1.0\n", 1796046493.023),
        ("m_1796046493.txt", b"x 1.0\n", 1796046493.0),
        ("m_1796046493023.prom", b"x 1.0\n", 1796046493.023),
        ("http://host:8000/metrics_1796046493.500", b"x 1.0\n", 1796046493.5),
        ("metrics-2025-11-12T10:04:31Z.txt", b"x 1.0\n", 1762941871.0),
        ("metrics-2025-11-12T11:04:31+01:00.txt", b"x 1.0\n", 1762941871.0),
        ("metrics_20251112_100431.txt", b"x 1.0\n", 1762941871.0),
        ("2025-11-12_10-04-31.500.txt", b"x 1.0\n", 1762941871.5),
        ("2025-13-42T10:04:31.txt", b"x 1.0\n", None),
        ("metrics.txt", b"x 1.0\n", None),
        ("metrics_8000.txt", b"x 1.0\n", None),
        ("0001_1796046493.023.txt", b'x{a="b"} 1.0 1796046500000\n', 1796046500.0),
    ],
)
def test_the_time_of_a_scrape(name: str, data: bytes, want: float | None) -> None:
    assert scrape_time(name, data) == want


def test_scrapes_appended_to_one_file_are_cut_apart() -> None:
    one = b"# HELP a A\n# TYPE a gauge\na 1\n# TYPE b gauge\nb 2\n"
    assert split(one + b"\n" + one + one[:-4], 10) == [(10, one), (15, b"\n" + one), (21, one[:-4])]
    headed = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n" + one
    assert split(headed + headed) == [(1, headed), (9, headed)]
    assert split(b"no metrics") == [(1, b"no metrics")]


# --- arithmetic, against figures worked out by hand --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "want"),
    [([3.0, 5.0, 9.0], 6.0), ([3.0, 5.0, 1.0, 4.0], 6.0), ([5.0, 0.0], 0.0), ([7.0, 7.0], 0.0), ([7.0], None), ([], None)],
)
def test_the_growth_of_a_counter_survives_restarts(values: list[float], want: float | None) -> None:
    assert delta_counter(values) == want


def test_the_growth_of_a_histogram_is_taken_bucket_by_bucket() -> None:
    first, last = Histogram(((1.0, 2.0), (5.0, 4.0), (INF, 5.0)), 12.0, 5.0), Histogram(((1.0, 3.0), (5.0, 9.0), (INF, 10.0)), 40.0, 10.0)
    assert delta_histogram(first, last) == Histogram(((1.0, 1.0), (5.0, 5.0), (INF, 5.0)), 28.0, 5.0)


def test_after_a_restart_the_last_histogram_is_the_growth() -> None:
    first, last = Histogram(((1.0, 8.0), (INF, 9.0)), 12.0, 9.0), Histogram(((1.0, 1.0), (INF, 2.0)), 3.0, 2.0)
    assert delta_histogram(first, last) == last
    masked = Histogram(((1.0, 1.0), (INF, 20.0)), 300.0, 20.0)  # more in all, but a bucket fell
    assert delta_histogram(first, masked) == masked


def test_of_different_buckets_the_common_ones_are_compared() -> None:
    first, last = Histogram(((1.0, 2.0), (5.0, 4.0), (INF, 5.0)), 12.0, 5.0), Histogram(((2.0, 6.0), (5.0, 9.0), (INF, 10.0)), 40.0, 10.0)
    assert delta_histogram(first, last) == Histogram(((5.0, 5.0), (INF, 5.0)), 28.0, 5.0)
    assert sum_histograms([first, last]) == Histogram(((5.0, 13.0), (INF, 15.0)), 52.0, 15.0)


@pytest.mark.parametrize(
    ("q", "want"),
    [(0.0, 0.0), (0.2, 0.5), (0.4, 1.0), (0.6, 2.0), (0.8, 3.0), (0.9, 3.0), (1.0, 3.0)],
)
def test_quantiles_are_linear_within_a_bucket(q: float, want: float) -> None:
    # 10 observations: 4 up to 1, 4 more up to 3, 2 beyond: rank 2 is half of the first bucket, rank 6 half of the second
    assert quantile(Histogram(((1.0, 4.0), (3.0, 8.0), (INF, 10.0)), 20.0, 10.0), q) == pytest.approx(want)


def test_quantiles_of_nothing_are_unknown() -> None:
    assert quantile(Histogram(((1.0, 0.0), (INF, 0.0)), 0.0, 0.0), 0.5) is None
    assert quantile(Histogram(((INF, 5.0),), 9.0, 5.0), 0.5) is None
    assert quantile(Histogram(), 0.5) is None


# --- the table -------------------------------------------------------------------------------------------------------------------------


def test_every_signal_of_the_table_is_in_the_catalogue() -> None:
    used = [(m.name, m.type, m.signal) for m in METRICS if m.signal and m.signal != "info" and "{" not in m.signal]
    samples = {name for name, d in OBSERVATIONS.items() if d.kind == "sample"}
    known = {"counter": set(COUNTERS), "histogram": set(HISTOGRAMS), "gauge": samples}
    assert [row for row in used if row[2] not in known[row[1]]] == []
    reached = {signal for _, _, signal in used}
    assert (set(COUNTERS) | set(HISTOGRAMS)) - reached == {"http.2xx", "http.4xx", "http.5xx"}


def test_every_family_says_what_it_means() -> None:
    assert [m.name for m in METRICS if len(m.meaning) < 8 or not m.first_version[0].isdigit()] == []


def test_a_scrape_agrees_with_the_parser_of_prometheus() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    oracle = {s.name: s.value for f in text_string_to_metric_families(SCRAPE_032) for s in f.samples if s.labels.get("le", "8.0") == "8.0"}
    found = good(SCRAPE_032)
    assert dict(found.histograms["step.tokens", 0].buckets)[8.0] == oracle["vllm:iteration_tokens_total_bucket"]
    assert found.histograms["step.tokens", 0].sum == oracle["vllm:iteration_tokens_total_sum"]
    assert found.counters["tokens.prompt", 0] == oracle["vllm:prompt_tokens_total"]
