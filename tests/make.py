"""Short ways to build cases in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_doctor.model.case import Case, Run, Track
from vllm_doctor.model.observations import Bounded, Event, Fact, Point, Ref, Scalar, Scrape, Series


def ref(line: int = 1, text: str = "", source: str = "server.log") -> Ref:
    return Ref(source, line, text or f"line {line}")


def event(kind: str, line: int, time: float | None = None, process: str | None = None, **values: Scalar) -> Event:
    return Event(kind, ref(line), {f"{kind}.{k}": v for k, v in values.items()}, time, None, process)


def fact(name: str, value: Scalar, line: int = 1) -> Fact:
    return Fact(name, value, ref(line))


def series(values: Sequence[float], step: float = 10.0, start: float = 1000.0) -> Series:
    return Series.of(Point(v, start + i * step, ref(i + 1, f"sample {i}")) for i, v in enumerate(values))


def run(
    events: Sequence[Event] = (),
    facts: Sequence[Fact] = (),
    samples: Mapping[str, Sequence[float]] | None = None,
    scrapes: Sequence[Scrape] = (),
    version: str | None = "0.10.2",
    has_log: bool = True,
    engine: int = 0,
) -> Run:
    """A run of vLLM with ten-second samples and events in order of line."""
    kinds: dict[str, Bounded] = {}
    for one in events:
        kinds[one.kind] = kinds.get(one.kind, Bounded()).merge(Bounded.of(one))
    stated = [fact("vllm.version", version)] if version else []
    tracks = (Track("log", {(n, engine): series(v) for n, v in (samples or {}).items()}, tuple(scrapes)),) if samples or scrapes else ()
    length = max((len(v) for v in (samples or {}).values()), default=0)
    return Run(
        id="r1",
        sources=("server.log",),
        facts=(*stated, *facts),
        events=kinds,
        tracks=tracks,
        has_log=has_log,
        has_banner=version is not None,
        started=1000.0,
        ended=1000.0 + 10.0 * max(0, length - 1),
    )


def case(*runs: Run) -> Case:
    return Case(runs=runs)
