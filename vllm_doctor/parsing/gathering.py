"""What the fold holds of a part of a log until its end: bounded, and without text, which only what is kept at the end needs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..model.observations import EVENTS_KEPT, FACTS_KEPT, Point, Scalar, Series
from .line_parsers import Values

POINTS_HELD = 2048
"""Samples of one series that are held before they are put into buckets."""


class Seen(NamedTuple):
    """An event or fact before its Ref is made."""

    begin: int
    end: int
    line: int
    name: str
    value: Scalar | Values
    time: float | None
    engine: int | None
    process: str | None


class Gathering:
    """What is collected between two banners."""

    def __init__(self, start: int, line: int, begins: str | None = None, process: str | None = None, pid: int | None = None) -> None:
        self.start, self.line = start, line
        self.begins, self.process, self.pid = begins, process, pid
        self.facts: dict[tuple[str, Scalar, int | None, str | None], Seen] = {}
        self.first: dict[str, list[Seen]] = {}
        self.last: dict[str, deque[Seen | int]] = {}
        self.count: dict[str, int] = {}
        self.points: dict[tuple[str, int], list[Point]] = {}
        self.series: dict[tuple[str, int], Series] = {}
        self.counts: dict[str, int] = {}
        self.end, self.lines = start, 0
        self.last_time: float | None = None

    def event(self, seen: Seen) -> None:
        kind = seen.name
        self.count[kind] = self.count.get(kind, 0) + 1
        first = self.first.setdefault(kind, [])
        if len(first) < EVENTS_KEPT:
            first.append(seen)
        else:
            self.last.setdefault(kind, deque(maxlen=EVENTS_KEPT)).append(seen)

    def mark(self, kind: str, offset: int) -> None:
        """One more event of a kind that has been seen often; what it says is read when it turns out to be one of the last."""
        self.count[kind] += 1
        self.last[kind].append(offset)

    def fact(self, seen: Seen) -> None:
        assert not isinstance(seen.value, dict)
        key = (seen.name, seen.value, seen.engine, seen.process)
        if key not in self.facts and len(self.facts) < FACTS_KEPT:
            self.facts[key] = seen

    def sample(self, name: str, engine: int, point: Point) -> None:
        key = (name, engine)
        points = self.points.get(key)
        if points is None:
            points = self.points[key] = []
        points.append(point)
        if len(points) >= POINTS_HELD:
            self._settle(key)

    def _settle(self, key: tuple[str, int]) -> None:
        fresh = Series.of(self.points.pop(key, ()))
        self.series[key] = self.series[key].merge(fresh) if key in self.series else fresh

    def all_series(self) -> dict[tuple[str, int], Series]:
        for key in list(self.points):
            self._settle(key)
        return self.series
