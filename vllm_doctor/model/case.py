"""The case: what the inputs say, put together. Runs of servers, and what concerns the host."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from .observations import Bounded, Count, Event, Fact, Gpu, Issue, Launch, Ref, Scalar, Scrape, Series, SocketQueue

End = Literal["running", "stopped", "crashed", "unknown"]


class Known(Struct, frozen=True):
    """A signal's value in its catalogue unit, with up to three lines that show it and the number of samples behind it."""

    value: float
    refs: tuple[Ref, ...] = ()
    samples: int = 0


class Unknown(Struct, frozen=True):
    """A signal that the inputs do not give. `missing` is a key of `rules/knowledge/inputs.yaml`: what to attach, and how."""

    missing: str


Value = Known | Unknown


class Track(Struct, frozen=True):
    """Samples on one time axis: a log's, a set of scrapes', or both where their clocks could be aligned."""

    name: str
    series: dict[tuple[str, int], Series] = field(default_factory=dict)
    scrapes: tuple[Scrape, ...] = ()


class Window(Struct, frozen=True):
    """A stretch of one track. `whole` is the run after warm-up. `onset_end` bounds trends and arrivals of a queueing episode:
    the time of the largest Waiting."""

    track: int
    start: float
    end: float
    whole: bool = False
    onset_end: float | None = None


class Run(Struct, frozen=True):
    """One life of a server process, from its banner to its end. Facts keep every process's statement; events keep their order
    by line within a source."""

    id: str
    sources: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    events: dict[str, Bounded] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)
    tracks: tuple[Track, ...] = ()
    launch: Launch | None = None
    has_log: bool = False
    has_banner: bool = False
    started: float | None = None
    ended: float | None = None
    end: End = "unknown"

    def fact(self, name: str) -> Fact | None:
        """The first statement of a fact."""
        return next((f for f in self.facts if f.name == name), None)

    def text(self, name: str) -> str | None:
        found = self.fact(name)
        return None if found is None else str(found.value)

    def events_of(self, kind: str) -> tuple[Event, ...]:
        return self.events[kind].events if kind in self.events else ()

    def event_count(self, kind: str) -> int:
        return self.events[kind].count if kind in self.events else 0

    @property
    def version(self) -> str | None:
        return self.text("vllm.version")

    @property
    def engines(self) -> tuple[int, ...]:
        """Data-parallel indices seen."""
        seen = {engine for track in self.tracks for _, engine in track.series}
        return tuple(sorted(seen)) or (0,)

    def flags(self) -> dict[str, Scalar]:
        """Launch options as given, from the log or the command, by option without dashes."""
        result: dict[str, Scalar] = {}
        if self.launch:
            result.update({k.lstrip("-"): v for k, v in self.launch.flags.items()})
        result.update({f.name.removeprefix("flag."): f.value for f in self.facts if f.name.startswith("flag.")})
        return result


class SourceSummary(Struct, frozen=True):
    """What was handed over and what it turned out to hold."""

    name: str
    kinds: tuple[str, ...]
    bytes: int
    lines: int
    first_time: float | None = None
    last_time: float | None = None


class Case(Struct, frozen=True):
    """Everything that the inputs say."""

    runs: tuple[Run, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    sockets: tuple[SocketQueue, ...] = ()
    host_events: dict[str, Bounded] = field(default_factory=dict)
    has_kernel_log: bool = False
    sources: tuple[SourceSummary, ...] = ()
    issues: tuple[Issue, ...] = ()
