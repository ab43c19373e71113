"""Signals against values computed by hand."""

from __future__ import annotations

from tests.make import case, event, fact, run
from vllm_doctor.model.case import Known, Run, Unknown
from vllm_doctor.model.observations import Histogram, Ref, Scrape
from vllm_doctor.ruleset.load import load
from vllm_doctor.signals.evaluate import Evaluator
from vllm_doctor.signals.windows import windows


def value(name: str, one: Run, window: int = 0) -> float | str:
    """The number, or `?` and what is missing."""
    found = Evaluator(case(one), load().flags).value(name, one, 0, windows(one, 0)[window])
    return round(found.value, 6) if isinstance(found, Known) else f"?{found.missing}"


QUEUE = run(
    facts=[fact("flag.max-num-seqs", 8)],
    samples={
        "requests.running": [2, 8, 6, 5, 5, 1],
        "requests.waiting": [0, 1, 3, 4, 4, 0],
        "kv_cache.usage": [0.2, 0.9, 1.0, 0.9, 0.8, 0.1],
    },
)


def test_aggregates_of_samples() -> None:
    assert value("requests.waiting.max", QUEUE) == 4
    assert value("requests.waiting.share_above_zero", QUEUE) == round(4 / 6, 6)
    assert value("kv_cache.usage.while_waiting", QUEUE) == 0.9
    assert value("kv_cache.usage.max_while_waiting", QUEUE) == 1.0
    assert value("requests.running.min_while_waiting", QUEUE) == 5
    assert value("requests.running.p50", QUEUE) == 5


def test_a_share_of_two_samples_is_unknown() -> None:
    short = run(samples={"requests.waiting": [1, 1]})
    assert value("requests.waiting.share_above_zero", short) == "?more-samples"
    assert value("requests.waiting.trend", short) == "?more-samples"
    assert value("requests.waiting.max", short) == 1


def test_a_trend_is_per_minute() -> None:
    assert value("requests.waiting.trend", run(samples={"requests.waiting": [0, 1, 2, 3]})) == 6.0


def test_requests_put_back_are_counted_only_while_nobody_arrives() -> None:
    # 8+1 -> 6+3 puts two back; 6+3 -> 5+4 one; 5+4 -> 5+4 none; the first step has arrivals
    assert value("requests.demoted", QUEUE, window=1) == 3
    arrivals = run(samples={"requests.running": [8, 7, 6], "requests.waiting": [1, 5, 9]})
    assert value("requests.demoted", arrivals) == 0


def test_slots_are_judged_by_what_ran_while_others_waited() -> None:
    assert value("scheduler.slots.used_ratio", QUEUE) == 1.0
    assert value("scheduler.slots.full_share", QUEUE) == 0.25
    assert value("scheduler.slots.used_ratio", run(samples={"requests.running": [3, 3, 3], "requests.waiting": [0, 0, 0]})) == "?nobody-waited"


def test_an_episode_begins_with_the_last_quiet_sample() -> None:
    whole, episode = windows(QUEUE, 0)
    assert whole.whole
    assert (episode.start, episode.end, episode.onset_end) == (1000.0, 1050.0, 1030.0)


def test_episodes_thirty_seconds_apart_are_two_and_closer_ones_are_one() -> None:
    apart = run(samples={"requests.running": [1] * 8, "requests.waiting": [0, 2, 0, 0, 0, 0, 3, 0]})
    near = run(samples={"requests.running": [1] * 6, "requests.waiting": [0, 2, 0, 0, 3, 0]})
    assert len(windows(apart, 0)) == 3
    assert len(windows(near, 0)) == 2


def scrape(time: float, **figures: float) -> Scrape:
    refs = {n: Ref("m.txt", 1, n) for n in ("requests.finished", "scheduler.preemptions", "latency.ttft")}
    return Scrape(
        source="m.txt",
        time=time,
        gauges={("requests.running", 0): figures.get("running", 0.0), ("requests.waiting", 0): figures.get("waiting", 0.0)},
        counters={("requests.finished", 0): figures.get("finished", 0.0), ("scheduler.preemptions", 0): figures.get("preemptions", 0.0)},
        histograms={
            ("latency.ttft", 0): Histogram(
                ((1.0, figures.get("started", 0.0)), (float("inf"), figures.get("started", 0.0))), 0.0, figures.get("started", 0.0)
            )
        },
        refs=refs,
    )


def test_counters_grow_between_scrapes_and_survive_a_restart() -> None:
    one = run(scrapes=[scrape(1000, preemptions=5), scrape(1010, preemptions=9), scrape(1020, preemptions=2)])
    assert value("scheduler.preemptions.delta", one) == 6
    assert value("scheduler.preemptions.rate", one) == 0.3


def test_one_scrape_has_no_deltas() -> None:
    assert value("scheduler.preemptions.delta", run(scrapes=[scrape(1000, preemptions=5)])) == "?metrics-scrapes"


def test_vanished_requests_give_everybody_present_the_benefit_of_the_doubt() -> None:
    one = run(scrapes=[scrape(1000), scrape(1060, started=100, finished=60, running=6, waiting=4)])
    assert value("requests.unfinished.delta", one) == 30
    assert value("requests.unfinished.share", one) == 0.3
    busy = run(scrapes=[scrape(1000, waiting=50), scrape(1060, started=50, finished=50)])
    assert value("requests.unfinished.delta", busy) == 0


def test_out_of_memory_arithmetic() -> None:
    gib = 2**30
    one = run(
        events=[
            event("oom", 5, requested=gib, total=40 * gib, free=gib // 2, this_process=30 * gib, allocated=27 * gib, reserved_unallocated=3 * gib)
        ]
    )
    assert value("oom.reserved_to_request", one) == 3.0
    assert value("oom.reserved_share", one) == 0.1
    assert value("oom.foreign", one) == 9.5 * gib
    assert value("oom.reserved_to_request", run()) == "?oom-text"


def test_the_order_of_lines_tells_a_stop_from_a_crash() -> None:
    stopped = run(events=[event("shutdown.requested", 10), event("engine.dead_error", 20)])
    crashed = run(events=[event("engine.died", 10), event("shutdown.http", 20)])
    assert value("shutdown.before_failure", stopped) == 1
    assert value("shutdown.cut_streams", stopped) == 1
    assert value("shutdown.before_failure", crashed) == 0


def test_an_exception_long_before_a_death_is_not_its_cause() -> None:
    refused = event("exception", 3, time=1000.0, process="APIServer", type="ValueError")
    own = event("exception", 90, time=1500.0, process="EngineCore_DP0", type="RuntimeError")
    death = event("engine.died", 100, time=1501.0)
    assert value("engine.exception.count", run(events=[refused, death])) == 0
    assert value("engine.exception.count", run(events=[own, death])) == 1


def test_a_default_is_used_only_where_the_version_leaves_no_choice() -> None:
    assert value("scheduler.max_num_seqs", run(version="0.5.5")) == 256
    assert value("scheduler.max_num_seqs", run(version="0.10.2")) == "?launch-command"  # 256 or 1024, by the GPU
    assert value("scheduler.max_num_seqs", run(version=None)) == "?launch-command"  # an excerpt may hide the option
    assert value("memory.utilization_in_force", run(version="0.19.1")) == 0.9
    assert value("memory.utilization_in_force", run(version="0.20.0")) == 0.92


def test_absence_of_metrics_is_unknown_and_never_zero() -> None:
    one = run(samples={"requests.running": [1, 2, 3]})
    found = Evaluator(case(one), []).value("scheduler.preemptions.delta", one, 0, windows(one, 0)[0])
    assert found == Unknown("metrics-scrapes")
