"""Small plots of one row for terminals."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..model.report import SeriesReport
from .chart import GAP, seconds, usual_distance

BARS = "▁▂▃▄▅▆▇█"
FEWEST = 5
"""A series of fewer points is better told in words."""


def span_of(series: Iterable[SeriesReport]) -> tuple[float, float] | None:
    """First and last time of the series together, None where they have no duration."""
    times = [t for s in series for point in s.points if (t := seconds(point[0])) is not None]
    return (min(times), max(times)) if times and max(times) > min(times) else None


def peak(series: SeriesReport) -> float | None:
    """The highest value, None where there is none."""
    return max((point[3] for point in series.points if math.isfinite(point[3])), default=None)


def spark(series: SeriesReport, start: float, end: float, top: float, width: int) -> str:
    """`width` bars from `start` to `end`, each as high as the peak of its time; a space where nothing was measured.

    A step that falls between two samples at their usual distance repeats the one before, as a line in a chart would run on. The lowest
    bar is 0 and nothing else: what is above 0 is at least one step higher, and only `top` reaches the highest.
    """
    points = sorted(
        (t, point[3]) for point in series.points if (t := seconds(point[0])) is not None and start <= t <= end and math.isfinite(point[3])
    )
    steps: list[float | None] = [None] * width
    longest = GAP * usual_distance([t for t, _ in points])
    before: tuple[float, int] | None = None
    for at, value in points:
        slot = min(int((at - start) / (end - start) * width), width - 1)
        if before is not None and at - before[0] <= longest:
            for empty in range(before[1] + 1, slot):
                steps[empty] = steps[before[1]]
        steps[slot] = max(value, steps[slot] or 0.0)
        before = at, slot
    return "".join(" " if v is None else BARS[_height(v / top if top > 0 else 0.0)] for v in steps)


def _height(share: float) -> int:
    if share <= 0:
        return 0
    return 7 if share >= 1 else max(1, min(6, round(share * 7)))
