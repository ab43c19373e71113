"""The fold: parts, processes, engines, times, context, counts."""

from __future__ import annotations

from array import array

import pytest

from vllm_doctor.model.observations import Clock, Part, StreamTally
from vllm_doctor.parsing import log, scan
from vllm_doctor.ruleset.load import load

FORMATS = load().formats
NOV_30 = 1796040000.0 - 12 * 3600  # 2026-11-30 00:00:00, read as UTC


def fold(text: str, clock: Clock | None = None) -> StreamTally:
    data = text.encode()
    return log.fold(data, "server.log", clock or log.clock_of(data, 2026), FORMATS)


def part(text: str) -> Part:
    [only] = fold(text).parts
    return only


def stats(time: str, running: int = 1, engine: str = "Engine 000: ") -> str:
    return (
        f"(APIServer pid=7) INFO {time} [loggers.py:123] {engine}Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%\n"
    )


def test_a_stats_line_gives_samples_at_its_time_with_its_line() -> None:
    series = part("noise\n" + stats("11-30 13:00:01", 5)).series["requests.running", 0]
    [point] = series.points()
    assert (point.value, point.time, point.ref.line) == (5.0, NOV_30 + 13 * 3600 + 1, 2)
    assert point.ref.text.startswith("(APIServer pid=7) INFO 11-30 13:00:01")


def test_data_parallel_engines_are_kept_apart() -> None:
    found = part(stats("11-30 13:00:01", 5) + stats("11-30 13:00:01", 9, "Engine 003: ")).series
    assert {engine: s.points()[0].value for (name, engine), s in found.items() if name == "requests.running"} == {0: 5.0, 3: 9.0}


def test_every_banner_starts_a_part_that_remembers_who_printed_it() -> None:
    text = (
        "first words\n"
        "(APIServer pid=7) INFO 11-30 12:58:00 [api_server.py:1896] vLLM API server version 0.10.2\n"
        "\x1b[1;36m(APIServer pid=7)\x1b[0;0m \x1b[1;36m(EngineCore_DP1 pid=9)\x1b[0;0m INFO 11-30 12:58:01 [core.py:76] Initializing a V1 LLM "
        "engine (v0.10.2) with config: model='m', max_seq_len=2048\n"
    )
    parts = fold(text).parts
    assert [(p.begins, p.begins_process, p.begins_pid, p.lines) for p in parts] == [
        (None, None, None, 1),
        ("api", "APIServer", 7, 1),
        ("engine", "EngineCore_DP1", 9, 1),
    ]
    fact = next(f for f in parts[2].facts if f.name == "vllm.version")
    assert (fact.value, fact.engine, fact.process, fact.ref.line, fact.time) == ("0.10.2", 1, "EngineCore_DP1", 3, NOV_30 + 12 * 3600 + 58 * 60 + 1)


def test_events_carry_two_lines_of_context_on_each_side() -> None:
    text = "a\nb\nc\nINFO:     Application startup complete.\nd\ne\nf\n"
    [event] = part(text).events["startup.complete"].events
    assert (event.ref.before, event.ref.line, event.ref.after) == (("b", "c"), 4, ("d", "e"))


def test_a_line_without_a_stamp_has_the_time_of_the_last_one_before_it() -> None:
    text = 'INFO 11-30 13:00:01 [a.py:1] x\nINFO:     127.0.0.1:1 - "GET / HTTP/1.1" 200 OK\nINFO:     Application startup complete.\n'
    [event] = part(text).events["startup.complete"].events
    assert event.time == NOV_30 + 13 * 3600 + 1


def test_a_log_over_new_year_goes_on_in_the_next_year() -> None:
    text = stats("12-31 23:59:55") + stats("01-01 00:00:05")
    clock = log.clock_of(text.encode(), 2027)
    assert clock == Clock(year=2026, year_known=True, first_month=12)
    times = [p.time for p in fold(text, clock).parts[0].series["requests.running", 0].points()]
    assert times[1] - times[0] == 10


def test_a_clock_without_any_hint_does_not_claim_to_know_the_year() -> None:
    assert log.clock_of(stats("11-30 13:00:01").encode(), None) == Clock(year=1970)
    assert log.clock_of(b"2024-12-23 18:28:10 - vllm.engine.metrics - INFO - x\n", None) == Clock(year=2024, year_known=True)


def test_a_custom_logging_format_still_gives_time_and_samples() -> None:
    text = (
        "2024-12-23 18:28:10 - vllm.engine.metrics - INFO - Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 45.7 tokens/s, "
        "Running: 1 reqs, Swapped: 0 reqs, Pending: 3 reqs, GPU KV cache usage: 3.1%, CPU KV cache usage: 0.0%.\n"
    )
    [point] = part(text).series["requests.waiting", 0].points()
    assert (point.value, point.time) == (3.0, 1734978490.0)


def test_access_lines_are_counted_by_class_and_posts_apart() -> None:
    ok, refused, failed = (f'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" {s}\n' for s in ("200 OK", "400 Bad Request", "500 Oh"))
    get, proxied = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Down\n', 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.0" 200 OK\n'
    counts = {name: c.count for name, c in part(ok * 3 + refused * 2 + failed + get + proxied).counts.items()}
    assert counts == {
        "http.responses.2xx": 4,
        "http.responses.4xx": 2,
        "http.responses.5xx": 2,
        "http.inference.2xx": 4,
        "http.inference.4xx": 2,
        "http.inference.5xx": 1,
    }


def test_access_lines_are_counted_in_the_colours_of_a_terminal_too() -> None:
    line = '\x1b[32mINFO\x1b[0m:     127.0.0.1:1 - "\x1b[1mPOST /v1/completions HTTP/1.1\x1b[0m" \x1b[{}m{}\x1b[0m\n'
    text = line.format(32, "200 OK") * 3 + line.format(31, "400 Bad Request") * 2 + line.format(91, "500 Internal Server Error")
    assert {name: c.count for name, c in part(text).counts.items()} == {
        "http.responses.2xx": 3,
        "http.responses.4xx": 2,
        "http.responses.5xx": 1,
        "http.inference.2xx": 3,
        "http.inference.4xx": 2,
        "http.inference.5xx": 1,
    }


def test_of_many_tracebacks_the_first_and_last_are_read_and_all_are_counted() -> None:
    one = (
        "(APIServer pid=7) ERROR 11-30 13:{0:02d}:00 [serving.py:417] Traceback (most recent call last):\n"
        '(APIServer pid=7) ERROR 11-30 13:{0:02d}:00 [serving.py:417]   File "/x/vllm/v1/engine/async_llm.py", line 1, in generate\n'
        "(APIServer pid=7) ERROR 11-30 13:{0:02d}:00 [serving.py:417] ValueError: number {0}\n"
    )
    found = part("".join(one.format(i) for i in range(60))).events["exception"]
    assert found.count == 60
    assert [e.values["exception.message"] for e in found.events] == [f"number {i}" for i in (*range(16), *range(44, 60))]
    assert found.events[-1].ref.line == 180


def test_a_word_behind_another_bracket_is_no_request() -> None:
    text = "INFO 11-30 13:00:00 [a.py:1] the user wrote [x] Received request 1: params: x\n"
    assert "request.received" not in part(text * 40).events


def test_of_many_requests_the_first_and_last_are_kept_and_all_are_counted() -> None:
    text = "".join(f"INFO 11-30 13:{i // 60:02d}:{i % 60:02d} [logger.py:39] Received request r{i}: params: x\n" for i in range(500))
    found = part(text).events["request.received"]
    assert found.count == 500
    assert [e.ref.line for e in found.events] == [*range(1, 17), *range(485, 501)]
    assert found.events[-1].time == NOV_30 + 13 * 3600 + 499


def test_a_traceback_is_one_exception_with_its_phase_and_an_engine_dead_error_is_not_one() -> None:
    text = """\
Traceback (most recent call last):
  File "/x/vllm/v1/worker/gpu_worker.py", line 1, in load_model
    f()
ValueError: first line
Traceback (most recent call last):
  File "/x/vllm/v1/engine/async_llm.py", line 1, in output_handler
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""
    found = part(text).events
    assert [e.values for e in found["exception"].events] == [
        {"exception.type": "ValueError", "exception.message": "first line", "exception.phase": "weights"}
    ]
    assert found["engine.dead_error"].count == 1


def test_a_validation_error_keeps_the_line_that_says_what_is_wrong() -> None:
    text = "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, heads (4) by size (3). [type=x]\n"
    [event] = part(text).events["exception"].events
    assert event.values["exception.message"] == "1 validation error for VllmConfig; Value error, heads (4) by size (3). [type=x]"


def test_an_orderly_stop_is_requested_and_a_death_is_not_although_both_lines_say_shutdown() -> None:
    stop = "(APIServer pid=7) INFO 11-30 13:57:51 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    death = "(APIServer pid=7) WARNING 11-30 13:57:07 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup\n"
    cleanup = "(APIServer pid=7) INFO 11-30 13:57:07 [core_client.py:770] [shutdown] MPClient: start timeout=default\n"
    assert set(part(stop).events) == {"shutdown.requested"}
    assert set(part(death + cleanup).events) == {"engine.died"}


def test_an_error_glued_to_a_progress_bar_is_seen() -> None:
    text = "Loading:  10%|# | 1/9\rLoading:  20%|# | 2/9\rValueError: No available memory for the cache blocks. Try increasing\r\n"
    assert part(text).events["startup.no_kv_memory"].count == 1


def test_a_number_behind_a_hard_wrap_is_joined() -> None:
    text = "ValueError: The model's max seq len (30000) is larger than the maximum number of tokens that can be stored in KV cache (\n3984). Try\n"
    [event] = part(text).events["startup.kv_below_max_len"].events
    assert event.values == {"startup.kv_below_max_len.max_model_len": 30000, "startup.kv_below_max_len.capacity": 3984}


def test_stamps_and_line_numbers_of_a_wrapper_replace_the_lines_own() -> None:
    tally = log.fold(stats("11-30 13:00:01").encode(), "s", Clock(2026), FORMATS, array("q", [42]), array("d", [1e9]))
    [point] = tally.parts[0].series["requests.running", 0].points()
    assert (point.time, point.ref.line) == (1e9, 42)


def test_of_a_crash_loop_the_first_and_latest_lives_are_kept() -> None:
    one = "INFO 11-30 12:58:00 [api_server.py:1896] vLLM API server version 0.8.5\n"
    tally = fold(one * 500)
    assert (tally.parts_seen, len(tally.parts)) == (500, 64)
    assert [p.facts[0].ref.line for p in (tally.parts[0], tally.parts[-1])] == [1, 500]


def test_samples_that_are_no_finite_numbers_are_left_out() -> None:
    assert ("requests.running", 0) not in part(stats("11-30 13:00:01").replace("Running: 1", "Running: nan")).series


@pytest.mark.parametrize("data", [b"", b"abcabc", b"xxaXab\nab", b"ababab" * 50])
def test_both_searches_find_the_same(data: bytes) -> None:
    literals = [b"ab", b"abc", b"bab"]
    assert scan.all_at_once(literals)(data) == scan.one_by_one(literals)(data)
