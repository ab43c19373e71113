"""What a chart shows besides samples: latency quantiles between scrapes, and the memory of each GPU over several dumps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..model.case import Run, Track
from ..model.observations import Gpu, Scrape
from ..parsing.histograms import delta_histogram, quantile

LATENCIES = ("latency.ttft", "latency.itl")
QUANTILES = (("p50", 0.5), ("p95", 0.95))
INTERVALS = 500
"""Most intervals of a series: more scrapes are read at a stride, so that each interval holds enough requests."""
SLACK = 300.0
"""Seconds by which GPU dumps may begin before a run or end after it, and still be taken to be on its clock."""


class Course(NamedTuple):
    """A series that is computed: its name, and (time, value) in order of time."""

    signal: str
    unit: str
    points: list[tuple[float, float]]

    @property
    def width(self) -> int:
        """The usual distance of two points in whole seconds, at least one."""
        steps = sorted(b[0] - a[0] for a, b in pairwise(self.points))
        return max(1, round(steps[len(steps) // 2])) if steps else 1


def latencies(track: Track, engine: int) -> list[Course]:
    """Median and 95th percentile of TTFT and ITL of what was observed between two scrapes, at the time of the later one.

    An interval in which nothing finished has no point. Scrapes without a time give none.
    """
    timed = sorted((s for s in track.scrapes if s.time is not None), key=_time)
    timed = timed[:: max(1, -(-len(timed) // INTERVALS))]
    result = []
    for name in LATENCIES:
        grown = []
        for before, after in pairwise(timed):
            first, last = before.histograms.get((name, engine)), after.histograms.get((name, engine))
            if first is not None and last is not None:
                grown.append((_time(after), delta_histogram(first, last)))
        for word, share in QUANTILES:
            points = [(time, value) for time, h in grown if h.count > 0 and (value := quantile(h, share)) is not None]
            if points:
                result.append(Course(f"{name}.{word}", "s", points))
    return result


def _time(scrape: Scrape) -> float:
    return scrape.time or 0.0


def gpu_memory(gpus: Iterable[Gpu], run: Run) -> list[Course]:
    """Used memory of each GPU that was seen at two times or more within the run. nvidia-smi prints the host's local time, as vLLM does;
    dumps that do not lie within the run are on another clock, or of another day."""
    seen: dict[int, dict[float, float]] = {}
    for gpu in gpus:
        if gpu.time is not None and gpu.used_bytes is not None:
            seen.setdefault(gpu.index, {})[gpu.time] = float(gpu.used_bytes)
    courses = [Course(f"gpu.memory.{index}", "bytes", sorted(points.items())) for index, points in sorted(seen.items()) if len(points) > 1]
    return [c for c in courses if _within(c.points, run)]


def _within(points: Sequence[tuple[float, float]], run: Run) -> bool:
    if run.started is None or run.ended is None:
        return False
    return points[0][0] >= run.started - SLACK and points[-1][0] <= run.ended + SLACK
