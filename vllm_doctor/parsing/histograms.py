"""Arithmetic on Prometheus counters and histograms: growth over time, sums, quantiles. All pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ..model.figures import figure
from ..model.observations import Histogram


def delta_counter(values: Sequence[float]) -> float | None:
    """Growth over the readings of one counter, in order. A fall is a restart: what was counted since then is added.

    None with fewer than two readings: one of them is a lifetime total."""
    if len(values) < 2:
        return None
    return math.fsum(new - old if new >= old else new for old, new in pairwise(values))


def delta_histogram(first: Histogram, last: Histogram) -> Histogram:
    """What was observed between two readings. After a restart (anything fell) that is `last` itself, a lower bound.

    Where the bounds differ, those that both have are compared; all histograms share the infinite one."""
    known = dict(first.buckets)
    common = [(bound, count) for bound, count in last.buckets if bound in known]
    if last.count < first.count or any(count < known[bound] for bound, count in common):
        return last
    return Histogram(tuple((bound, count - known[bound]) for bound, count in common), last.sum - first.sum, last.count - first.count)


def sum_histograms(items: Iterable[Histogram]) -> Histogram:
    """One histogram over several models, engines or intervals, on the bounds that all of them have."""
    histograms = list(items)
    if not histograms:
        return Histogram()
    if len(histograms) == 1:
        return histograms[0]
    tables = [dict(h.buckets) for h in histograms]
    bounds = [bound for bound, _ in histograms[0].buckets if all(bound in table for table in tables)]
    buckets = tuple((bound, math.fsum(table[bound] for table in tables)) for bound in bounds)
    return Histogram(buckets, math.fsum(h.sum for h in histograms), math.fsum(h.count for h in histograms))


def quantile(histogram: Histogram, q: float) -> float | None:
    """The q-quantile (0 to 1) as Prometheus computes it: linear within a bucket, from 0 in the first one; the highest finite bound
    where it lies beyond. None when nothing was observed or there are no finite bounds."""
    buckets = histogram.buckets
    if len(buckets) < 2 or buckets[-1][1] <= 0 or not 0 <= q <= 1:
        return None
    rank = q * buckets[-1][1]
    index = next((i for i, (_, count) in enumerate(buckets[:-1]) if count >= rank), len(buckets) - 1)
    if index == len(buckets) - 1:
        return buckets[-2][0]
    end, count = buckets[index]
    if index == 0 and end <= 0:
        return end
    start, below = buckets[index - 1] if index else (0.0, 0.0)
    if count <= below:  # only for q = 0 in front of empty buckets
        return start
    return start + (end - start) * (rank - below) / (count - below)


def from_buckets(buckets: Iterable[tuple[float, float]], total: float | None, count: float | None) -> Histogram | None:
    """A histogram from its series, or None where some are missing or no numbers. Counts are made to ascend, as Prometheus does."""
    rows = list(buckets)
    if total is None or figure(total) is None or any(math.isnan(bound) or figure(value) is None for bound, value in rows):
        return None
    rows.sort()
    if not rows or rows[-1][0] != math.inf:
        return None
    result: list[tuple[float, float]] = []
    for bound, value in rows:
        below = result[-1][1] if result else 0.0
        if result and result[-1][0] == bound:
            result.pop()
        result.append((bound, max(value, below)))
    return Histogram(tuple(result), total, result[-1][1] if count is None or figure(count) is None else count)
