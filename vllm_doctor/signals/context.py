"""What a signal function gets: the case, the run, the engine, the window, and a way to ask for other signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ..model.case import Case, Run, Track, Value, Window
from ..model.observations import Bucket, Scrape, Series

if TYPE_CHECKING:
    from .evaluate import Evaluator


class Context(Struct, frozen=True):
    case: Case
    run: Run
    engine: int
    window: Window
    evaluator: Evaluator

    @property
    def track(self) -> Track | None:
        return self.run.tracks[self.window.track] if 0 <= self.window.track < len(self.run.tracks) else None

    def other(self, name: str) -> Value:
        """Another signal over the same window."""
        return self.evaluator.value(name, self.run, self.engine, self.window)

    def series(self, name: str) -> Series | None:
        return self.track.series.get((name, self.engine)) if self.track else None

    def buckets(self, name: str, until: float | None = None) -> dict[int, Bucket]:
        """Buckets of a series that begin and end within the window (or up to `until`), by slot."""
        series = self.series(name)
        if series is None:
            return {}
        end = self.window.end if until is None else until
        return {slot: b for slot, b in series.buckets.items() if b.last.time >= self.window.start and b.first.time <= end}

    def scrapes(self) -> tuple[Scrape, ...]:
        """Scrapes that bound the window: the last one at or before its start, to the last one at or before its end."""
        if self.track is None:
            return ()
        timed = [s for s in self.track.scrapes if s.time is not None]
        if len(timed) < len(self.track.scrapes):
            return self.track.scrapes if self.window.whole else ()
        before = [s for s in timed if s.time is not None and s.time <= self.window.start]
        within = [s for s in timed if s.time is not None and self.window.start < s.time <= self.window.end]
        return tuple(before[-1:] + within)
