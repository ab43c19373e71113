"""Latency quantiles between scrapes and GPU memory between dumps, as a chart shows them."""

from __future__ import annotations

import math

import pytest

from vllm_doctor.model.case import Run, Track
from vllm_doctor.model.observations import Gpu, Histogram, Ref, Scrape
from vllm_doctor.signals.course import INTERVALS, Course, gpu_memory, latencies

GIB = 2**30


def scrape(time: float | None, fast: float, slow: float) -> Scrape:
    """A reading after `fast` requests of at most 1 s and `slow` ones of at most 10 s to the first token."""
    buckets = ((1.0, fast), (10.0, fast + slow), (math.inf, fast + slow))
    return Scrape("metrics", time, histograms={("latency.ttft", 0): Histogram(buckets, fast + 5 * slow, fast + slow)})


def test_a_quantile_is_of_what_finished_between_two_scrapes() -> None:
    track = Track("metrics", scrapes=(scrape(30.0, 10, 100), scrape(10.0, 0, 0), scrape(20.0, 10, 0)))
    assert latencies(track, 0) == [
        Course("latency.ttft.p50", "s", [(20.0, 0.5), (30.0, 5.5)]),  # ten in the first bucket; then a hundred in the second
        Course("latency.ttft.p95", "s", [(20.0, pytest.approx(0.95)), (30.0, pytest.approx(9.55))]),
    ]


def test_an_interval_without_requests_has_no_point() -> None:
    track = Track("metrics", scrapes=(scrape(10.0, 5, 0), scrape(20.0, 5, 0), scrape(30.0, 6, 0)))
    assert [(c.signal, [t for t, _ in c.points]) for c in latencies(track, 0)] == [("latency.ttft.p50", [30.0]), ("latency.ttft.p95", [30.0])]


@pytest.mark.parametrize("scrapes", [(), (scrape(10.0, 1, 1),), (scrape(None, 1, 1), scrape(None, 2, 2))], ids=["none", "one", "without times"])
def test_without_two_timed_scrapes_there_is_no_course(scrapes: tuple[Scrape, ...]) -> None:
    assert latencies(Track("metrics", scrapes=scrapes), 0) == []


def test_another_engine_has_its_own() -> None:
    assert latencies(Track("metrics", scrapes=(scrape(10.0, 1, 1), scrape(20.0, 2, 2))), 1) == []


def test_many_scrapes_are_read_at_a_stride() -> None:
    track = Track("metrics", scrapes=tuple(scrape(10.0 * n, n, 0) for n in range(8640)))
    assert all(INTERVALS // 2 < len(c.points) <= INTERVALS for c in latencies(track, 0))


def gpu(index: int, time: float | None, used: int | None) -> Gpu:
    return Gpu(index, "H100", Ref("smi", 1, ""), used_bytes=used, time=time)


def test_memory_is_a_course_for_each_gpu_that_was_seen_twice() -> None:
    run = Run("r1", started=1000.0, ended=2000.0)
    seen = [gpu(0, 1500.0, 2 * GIB), gpu(0, 1000.0, GIB), gpu(1, 1000.0, GIB), gpu(2, 1000.0, None), gpu(2, 1500.0, None), gpu(3, None, GIB)]
    assert gpu_memory(seen, run) == [Course("gpu.memory.0", "bytes", [(1000.0, float(GIB)), (1500.0, 2.0 * GIB)])]


@pytest.mark.parametrize("run", [Run("r1"), Run("r1", started=1000.0), Run("r1", started=9000.0, ended=9900.0)])
def test_dumps_of_another_time_or_clock_are_left_out(run: Run) -> None:
    assert gpu_memory([gpu(0, 1000.0, GIB), gpu(0, 1500.0, GIB)], run) == []


def test_the_width_is_the_usual_distance() -> None:
    assert [Course("a", "s", [(t, 1.0) for t in times]).width for times in ([], [1.0], [0.0, 0.2], [0.0, 10.0, 20.0, 90.0])] == [1, 1, 1, 10]
