"""What the fold holds of a part of a log until its end: bounded, and without text, which only what is kept at the end needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..model.observations import EVENTS_KEPT, FACTS_KEPT, Point, Ref, Scalar, Series
from .line_parsers import RAW_STATS_GIVE, Values

POINTS_HELD = 2048
"""Samples of one series that are held before they are put into buckets."""
ROWS_HELD = 8192
"""The same for stats lines of the usual form, each of which gives a sample of several series."""


_PERCENT = ("kv_cache.usage", "prefix_cache.hit_rate")


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


class Row(NamedTuple):
    """A stats line of the usual form."""

    time: float
    begin: int
    end: int
    line: int
    values: tuple[bytes, ...]


class Gathering:
    """What is collected between two banners."""

    def __init__(
        self,
        start: int,
        line: int,
        begins: str | None = None,
        process: str | None = None,
        pid: int | None = None,
    ) -> None:
        self.start, self.line = start, line
        self.begins, self.process, self.pid = begins, process, pid
        self.facts: dict[tuple[str, Scalar, int | None, str | None], Seen] = {}
        self.first: dict[str, list[Seen]] = {}
        self.last: dict[str, deque[Seen | int]] = {}
        self.count: dict[str, int] = {}
        self.points: dict[tuple[str, int], list[Point]] = {}
        self.rows: dict[int, list[Row]] = {}
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
        """One more event of a kind that has been seen often, by an offset in its line."""
        self.count[kind] += 1
        self.last.setdefault(kind, deque(maxlen=EVENTS_KEPT)).append(offset)

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

    def row(self, engine: int, row: Row, ref: Callable[[Row], Ref]) -> None:
        """Takes a stats line; `ref` makes its Ref if it is one that is kept."""
        rows = self.rows.get(engine)
        if rows is None:
            rows = self.rows[engine] = []
        rows.append(row)
        if len(rows) >= ROWS_HELD:
            self._settle_rows(engine, ref)

    def _settle(self, key: tuple[str, int]) -> None:
        self._add(key, Series.of(self.points.pop(key, ())))

    def _settle_rows(self, engine: int, ref: Callable[[Row], Ref]) -> None:
        rows = self.rows.pop(engine)
        columns = {}
        for name, texts in zip(RAW_STATS_GIVE, zip(*(row.values for row in rows), strict=True), strict=True):
            values = list(map(float, texts))
            columns[name, engine] = [value / 100 for value in values] if name in _PERCENT else values
        for key, fresh in Series.of_columns([row.time for row in rows], columns, lambda at: ref(rows[at])).items():
            self._add(key, fresh)

    def _add(self, key: tuple[str, int], fresh: Series) -> None:
        self.series[key] = self.series[key].merge(fresh) if key in self.series else fresh

    def all_series(self, ref: Callable[[Row], Ref]) -> dict[tuple[str, int], Series]:
        for engine in list(self.rows):
            self._settle_rows(engine, ref)
        for key in list(self.points):
            self._settle(key)
        return self.series
