"""Aggregates of sampled gauges over a window."""

from __future__ import annotations

from collections.abc import Callable

from ..model.case import Known, Unknown, Value
from ..model.observations import Bucket, Point, Ref
from .context import Context
from .windows import inside

MIN_SAMPLES = 3
"""Shares and trends of fewer samples say more about the sampling than about the server (DESIGN section 2)."""

SHOWN_BY = {"process.": "metrics-scrapes", "step.": "iteration-details", "spec_decode.": "spec-decode-lines"}
"""Samples that other lines than the stats line carry, and what to attach for them."""


def aggregate(name: str, word: str, context: Context) -> Value:
    """One aggregate of a sampled series; `word` is one of the catalogue's aggregates."""
    points = inside(context.series(name), context.window.start, context.window.end)
    if not points and word == "samples" and (context.run.has_log or context.track):
        return Known(0.0)  # that there is none is known; what it would have said is not
    if not points:
        return Unknown(next((key for prefix, key in SHOWN_BY.items() if name.startswith(prefix)), "stats-lines"))
    if word.endswith("while_waiting"):
        return _while_waiting(name, word, context)
    return _WORDS[word](points)


def _known(value: float, points: tuple[Point, ...], *shown: Point) -> Known:
    return Known(value, tuple(p.ref for p in shown[:3]), len(points))


def _max(points: tuple[Point, ...]) -> Value:
    best = max(points, key=lambda p: p.value)
    return _known(best.value, points, best)


def _min(points: tuple[Point, ...]) -> Value:
    best = min(points, key=lambda p: p.value)
    return _known(best.value, points, best)


def _mean(points: tuple[Point, ...]) -> Value:
    return _known(sum(p.value for p in points) / len(points), points, max(points, key=lambda p: p.value))


def _quantile(share: float) -> Callable[[tuple[Point, ...]], Value]:
    def compute(points: tuple[Point, ...]) -> Value:
        ranked = sorted(points, key=lambda p: p.value)
        chosen = ranked[min(len(ranked) - 1, round(share * (len(ranked) - 1)))]
        return _known(chosen.value, points, chosen)

    return compute


def _last(points: tuple[Point, ...]) -> Value:
    return _known(points[-1].value, points, points[-1])


def _count(points: tuple[Point, ...]) -> Value:
    return _known(float(len(points)), points, points[0], points[-1])


def _share(points: tuple[Point, ...]) -> Value:
    if len(points) < MIN_SAMPLES:
        return Unknown("more-samples")
    above = [p for p in points if p.value > 0]
    largest = sorted(above, key=lambda p: -p.value)[:1]
    return _known(len(above) / len(points), points, *(largest or points[:1]))


def slope_per_minute(points: tuple[Point, ...]) -> float | None:
    """Least-squares slope, per minute; None for fewer than three samples or no spread in time."""
    if len(points) < MIN_SAMPLES:
        return None
    mean_t = sum(p.time for p in points) / len(points)
    mean_v = sum(p.value for p in points) / len(points)
    spread = sum((p.time - mean_t) ** 2 for p in points)
    if spread == 0:
        return None
    return 60 * sum((p.time - mean_t) * (p.value - mean_v) for p in points) / spread


def _trend(points: tuple[Point, ...]) -> Value:
    slope = slope_per_minute(points)
    return Unknown("more-samples") if slope is None else _known(slope, points, points[0], points[-1])


_WORDS: dict[str, Callable[[tuple[Point, ...]], Value]] = {
    "max": _max,
    "min": _min,
    "mean": _mean,
    "p50": _quantile(0.50),
    "p95": _quantile(0.95),
    "last": _last,
    "samples": _count,
    "share_above_zero": _share,
    "trend": _trend,
}


def waiting_slots(context: Context) -> set[int]:
    """Slots of the waiting series in which somebody waited."""
    return {slot for slot, bucket in context.buckets("requests.waiting").items() if bucket.max.value > 0}


def while_waiting(name: str, context: Context) -> list[Bucket]:
    """Buckets of a series at the moments when requests waited. Empty where nobody waited or nothing coincides."""
    own, waiting = context.series(name), context.series("requests.waiting")
    if own is None or waiting is None:
        return []
    exponent = max(own.exponent, waiting.exponent)
    slots = {slot >> (exponent - waiting.exponent) for slot in waiting_slots(context)}
    return [b for slot, b in context.buckets(name).items() if slot >> (exponent - own.exponent) in slots]


def _while_waiting(name: str, word: str, context: Context) -> Value:
    if context.series("requests.waiting") is None:
        return Unknown("stats-lines")
    found = while_waiting(name, context)
    if not found:
        return Unknown("nobody-waited")
    highest, lowest = max(found, key=lambda b: b.max.value).max, min(found, key=lambda b: b.min.value).min
    total = sum(b.count for b in found)
    if word == "max_while_waiting":
        return Known(highest.value, (highest.ref,), total)
    if word == "min_while_waiting":
        return Known(lowest.value, (lowest.ref,), total)
    refs: tuple[Ref, ...] = (highest.ref,) if highest.ref == lowest.ref else (highest.ref, lowest.ref)
    return Known(sum(b.sum for b in found) / total, refs, total)
