"""Counters and histograms over a window: growth between scrapes, with restarts of the counter, and quantiles of the growth."""

from __future__ import annotations

from ..model.case import Known, Unknown, Value
from ..model.observations import Histogram, Ref, Scrape
from ..parsing.histograms import delta_counter, delta_histogram, quantile
from .context import Context


def _readings(name: str, context: Context, table: str) -> list[tuple[Scrape, object]]:
    result = []
    for scrape in context.scrapes():
        values = getattr(scrape, table)
        key = (name, context.engine)
        if key not in values and (name, 0) in values and name.startswith(("http.", "process.", "requests.rejected")):
            key = (name, 0)  # the API server counts for all engines
        if key in values:
            result.append((scrape, values[key]))
    return result


def _refs(name: str, first: Scrape, last: Scrape) -> tuple[Ref, ...]:
    return tuple(s.refs[name] for s in (last, first) if name in s.refs)  # the later line shows the growth


def counter(name: str, word: str, context: Context) -> Value:
    """`delta` or `rate` of a counter over the window. Needs two scrapes."""
    readings = _readings(name, context, "counters")
    if len(readings) < 2:
        return Unknown("metrics-scrapes")
    (first, _), (last, _) = readings[0], readings[-1]
    growth = delta_counter([v for _, v in readings if isinstance(v, int | float)])
    if growth is None:
        return Unknown("metrics-scrapes")
    if word == "delta":
        return Known(growth, _refs(name, first, last), len(readings))
    if first.time is None or last.time is None or last.time <= first.time:
        return Unknown("scrape-times")
    return Known(growth / (last.time - first.time), _refs(name, first, last), len(readings))


def growth(name: str, context: Context) -> tuple[Histogram, tuple[Ref, ...]] | None:
    """The histogram of what happened within the window, or None without two scrapes of it."""
    readings = _readings(name, context, "histograms")
    if len(readings) < 2:
        return None
    (first, before), (last, after) = readings[0], readings[-1]
    assert isinstance(before, Histogram)
    assert isinstance(after, Histogram)
    return delta_histogram(before, after), _refs(name, first, last)


def histogram(name: str, word: str, context: Context) -> Value:
    """`mean`, a quantile, `max` (upper bound of the highest bucket hit) or `count` of a histogram's growth over the window."""
    found = growth(name, context)
    if found is None:
        return Unknown("metrics-scrapes")
    grown, refs = found
    samples = int(grown.count)
    if word == "count":
        return Known(grown.count, refs, samples)
    if samples <= 0:
        return Unknown("no-finished-requests")
    if word == "mean":
        return Known(grown.sum / grown.count, refs, samples)
    if word == "max":
        highest = highest_bucket(grown)
        return Unknown("no-finished-requests") if highest is None else Known(highest[1], refs, samples)
    value = quantile(grown, {"p50": 0.5, "p95": 0.95, "p99": 0.99}[word])
    return Unknown("no-finished-requests") if value is None else Known(value, refs, samples)


def each_bucket(grown: Histogram) -> list[tuple[float, float, float]]:
    """(lower bound, upper bound, observations) of each bucket; the last upper bound is infinite."""
    result = []
    lower, below = 0.0, 0.0
    for upper, cumulative in grown.buckets:
        result.append((lower, upper, cumulative - below))
        lower, below = upper, cumulative
    return result


def highest_bucket(grown: Histogram) -> tuple[float, float] | None:
    """Bounds of the highest bucket that was hit; an infinite upper bound is replaced by the lower one (a least value)."""
    hit = [(low, high) for low, high, n in each_bucket(grown) if n > 0]
    if not hit:
        return None
    low, high = hit[-1]
    return low, (low if high == float("inf") else high)
