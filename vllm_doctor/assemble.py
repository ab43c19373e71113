"""Puts the pieces together: parts of streams become runs, scrapes and logs share an axis where their clocks can be matched.

Pure: streams and observations in, a Case out. Everything that needs the whole happens here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from .model.case import Case, End, Run, SourceSummary, Track
from .model.observations import Bounded, Event, Gpu, Issue, Launch, Part, Point, Scrape, Series, SocketQueue, StreamTally
from .model.timebound import TimeBound
from .versions import satisfies

QUARTER = 900.0
"""Time zones differ by multiples of a quarter of an hour (real zones of the world)."""
START_LAG = (-5.0, 240.0)
"""From the API server's process start to its first stamped line, in seconds: Python imports take 5-60 s (own captures), a cold disk more."""
OVERLAP_SLACK = 600.0
"""Scrapes may begin before the first line or go on after the last one by so much and still belong to the log."""

QUIET_BEFORE_BANNER = frozenset({"exception"})
"""Events that a server's own start may print before its banner (import warnings with tracebacks)."""


Origin = tuple[str, str]
"""(source, origin within it): the name of a stream."""


class Inputs(Struct, frozen=True):
    """What parsing found in all sources, in the order in which they were given."""

    tallies: tuple[tuple[Origin, StreamTally], ...] = ()  # refs already count in the source
    scrapes: tuple[Scrape, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    sockets: tuple[SocketQueue, ...] = ()
    launches: tuple[Launch, ...] = ()
    sources: tuple[SourceSummary, ...] = ()
    issues: tuple[Issue, ...] = ()
    has_kernel_log: bool = False
    zones: dict[Origin, float] = {}  # seconds east of UTC, where a wrapper's stamp told


def assemble(inputs: Inputs) -> Case:
    """The case behind the inputs."""
    issues = list(inputs.issues)
    host: dict[str, Bounded] = {}
    logged: list[tuple[Run, float | None]] = []
    for origin, parts in _by_stream(inputs.tallies).items():
        for part in parts:
            for kind, events in part.events.items():
                if kind.startswith("kernel."):
                    host[kind] = host[kind].merge(events) if kind in host else events
        logged += [(run, inputs.zones.get(origin)) for run in map(_run, _lives(parts)) if not _empty(run)]
    runs = _with_launch(_with_scrapes(logged, inputs.scrapes, issues), inputs.launches)
    if not runs and (inputs.gpus or inputs.launches):
        runs = [Run(id="", sources=tuple(s.name for s in inputs.sources), launch=inputs.launches[0] if inputs.launches else None)]
    runs = [structs.replace(run, id=f"r{i}", end=_end(run, followed=_followed(run, runs[i:]))) for i, run in enumerate(runs, 1)]
    return Case(
        runs=tuple(runs),
        gpus=inputs.gpus,
        sockets=inputs.sockets,
        host_events=host,
        has_kernel_log=inputs.has_kernel_log or bool(host),
        sources=inputs.sources,
        issues=tuple(issues),
    )


def _by_stream(tallies: Iterable[tuple[Origin, StreamTally]]) -> dict[Origin, list[Part]]:
    """Parts per stream; several segments of one stream (a paste with prose in between) follow one another."""
    result: dict[Origin, list[Part]] = {}
    for name, tally in tallies:
        result.setdefault(name, []).extend(tally.parts)
    return result


def _empty(run: Run) -> bool:
    """A stream that only holds kernel lines, prose or nothing is no server."""
    own = {k for k in run.events if not k.startswith("kernel.")}
    return not (run.facts or own or run.tracks or run.counts)


def _lives(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts grouped into lives of a server. One start prints several banners: version, arguments, one per engine."""
    lives: list[list[Part]] = []
    for part in parts:
        if lives and _continues(lives[-1], part):
            lives[-1].append(part)
        else:
            lives.append([part])
    return lives


def _continues(life: list[Part], part: Part) -> bool:
    if part.begins is None:
        return True
    if part.begins == "api":
        return not any(_progressed(p) for p in life)
    # A second engine of the same life has another process tag or index (data parallel); the same one again is a new life.
    engines = {(p.begins_process, p.begins_pid) for p in life if p.begins == "engine"}
    return (part.begins_process, part.begins_pid) not in engines and not any("startup.complete" in p.events for p in life)


def _progressed(part: Part) -> bool:
    """Has this part got further than a server's first lines?"""
    return part.begins == "engine" or bool(part.series) or bool(set(part.events) - QUIET_BEFORE_BANNER) or bool(part.counts)


def _run(parts: Sequence[Part]) -> Run:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    sources = {f.ref.source for f in whole.facts} | {e.ref.source for b in whole.events.values() for e in b.events}
    sources |= {p.ref.source for s in whole.series.values() for p in s.points()[:1]}
    return Run(
        id="",
        sources=tuple(sorted(sources)),
        facts=whole.facts,
        events={k: _distinct(b) for k, b in whole.events.items() if not k.startswith("kernel.")},
        counts=whole.counts,
        tracks=(Track("log", whole.series),) if whole.series else (),
        has_log=True,
        has_banner=any(p.begins for p in parts),
        started=whole.first_time,
        ended=whole.last_time,
    )


def _distinct(events: Bounded) -> Bounded:
    """An error is often printed twice or by every rank: by the engine with a prefix, then as the bare traceback. One event says it,
    if its figures and its time (or the lack of one) are the same."""
    seen: dict[tuple[tuple[str, object], ...], Event] = {}
    for event in events.events:
        figures = tuple(sorted((k, v) for k, v in event.values.items() if not k.endswith((".phase", ".frame", ".gpu"))))
        if not figures:
            return events
        earlier = seen.get(figures)
        if earlier is None:
            seen[figures] = event
        elif _says_more(event, earlier):
            seen[figures] = structs.replace(event, time=earlier.time if event.time is None else event.time)
    if len(seen) == len(events.events):
        return events
    kept = sorted(seen.values(), key=lambda e: (e.ref.source, e.ref.line))
    return Bounded.of(*kept)


def _says_more(event: Event, earlier: Event) -> bool:
    """Does the repetition know a phase that the first one did not?"""
    phase = f"{event.kind}.phase"
    return earlier.values.get(phase) in (None, "unknown") and event.values.get(phase) not in (None, "unknown")


def _with_scrapes(logged: Sequence[tuple[Run, float | None]], scrapes: Sequence[Scrape], issues: list[Issue]) -> list[Run]:
    """Attaches scrapes to the runs they belong to, on the log's clock where it can be matched. Runs come with their clock's zone."""
    result = [run for run, _ in logged]
    zones = [zone for _, zone in logged]
    for group in _by_process(scrapes):
        matches = [(i, offset) for i, run in enumerate(result) if (offset := _offset(run, zones[i] if i < len(zones) else None, group)) is not None]
        if len(matches) == 1:
            index, offset = matches[0]
            result[index] = _joined(result[index], group, offset)
        elif len(result) == 1 and _may_belong(result[0], group):
            result[0] = structs.replace(result[0], tracks=(*result[0].tracks, _track(group)))
            if result[0].tracks[0].name == "log":
                issues.append(Issue("clocks-apart", "The log and the metrics could not be put on one clock; each is judged by itself."))
        else:
            times = [s.time for s in group if s.time is not None]
            started, ended = (min(times), max(times)) if times else (None, None)
            names = tuple(dict.fromkeys(s.source for s in group))
            result.append(Run(id="", sources=names, tracks=(_track(group),), started=started, ended=ended))
    return result


def _may_belong(run: Run, scrapes: Sequence[Scrape]) -> bool:
    """Can scrapes whose clock could not be matched still be of the only run there is? Not where both tell when they started: then
    they are of two processes."""
    told = ("process.start_time", 0) in scrapes[0].gauges and any(s.time is not None for s in scrapes)
    return run.has_log and not any(t.scrapes for t in run.tracks) and not (told and run.has_banner and run.started is not None)


def _by_process(scrapes: Sequence[Scrape]) -> list[list[Scrape]]:
    """Scrapes of one server process, in order of time. A changed start time is another process: counters begin again."""
    groups: dict[float | None, list[Scrape]] = {}
    for scrape in scrapes:
        groups.setdefault(scrape.gauges.get(("process.start_time", 0)), []).append(scrape)
    return [sorted(g, key=lambda s: (s.time if s.time is not None else 0.0, s.order)) for g in groups.values()]


def _offset(run: Run, zone: float | None, scrapes: Sequence[Scrape]) -> float | None:
    """Seconds to add to a scrape's Unix time to get the log's clock, or None where that cannot be told.

    The API server's process start is in the metrics and its first line in the log: they are some seconds apart plus the zone."""
    start = scrapes[0].gauges.get(("process.start_time", 0))
    times = [s.time for s in scrapes if s.time is not None]
    if run.started is None or run.ended is None or not times:
        return None
    if zone is not None:
        offset = zone
    elif start is not None and run.has_banner:
        lag = run.started - start
        offset = QUARTER * round((lag - (START_LAG[0] + START_LAG[1]) / 2) / QUARTER)
        if not START_LAG[0] <= lag - offset <= START_LAG[1]:
            return None
    else:
        return _offset_by_samples(run, scrapes)
    if min(times) + offset > run.ended + OVERLAP_SLACK or max(times) + offset < run.started - OVERLAP_SLACK:
        return None
    return offset


ZONES = range(-14 * 4, 14 * 4 + 1)
"""Offsets of the world's zones in quarters of an hour."""
AGREEING, ELSEWHERE = 0.75, 0.5
"""Share of the log's samples that the scrapes around them must confirm at the right offset, and must not reach at any other."""
MIN_MATCHES = 3


def _offset_by_samples(run: Run, scrapes: Sequence[Scrape]) -> float | None:
    """The offset at which the log's own samples lie between the scrapes around them. None unless one offset stands out: a log and
    scrapes of different hours agree nowhere, those of an idle server everywhere."""
    series = {
        name: run.tracks[0].series[name, 0].points()
        for name in ("requests.running", "requests.waiting")
        if run.tracks and (name, 0) in run.tracks[0].series
    }
    timed = [s for s in scrapes if s.time is not None]
    scores: dict[float, float] = {}
    for quarter in ZONES:
        offset = quarter * QUARTER
        hits = [h for name, points in series.items() for p in points if (h := _confirmed(name, p, timed, offset)) is not None]
        if len(hits) >= MIN_MATCHES * len(series):
            scores[offset] = sum(hits) / len(hits)
    varied = any(len({p.value for p in points}) > 1 for points in series.values())
    best = sorted(scores.items(), key=lambda item: -item[1])[:2]
    if not varied or not best or best[0][1] < AGREEING or (len(best) > 1 and best[1][1] > ELSEWHERE):
        return None
    return best[0][0]


def _confirmed(name: str, point: Point, scrapes: Sequence[Scrape], offset: float) -> bool | None:
    """Does a log sample lie within what the scrapes before and after it say (one more or less)? None outside the scrapes."""
    before = [s for s in scrapes if s.time is not None and s.time + offset <= point.time and (name, 0) in s.gauges]
    after = [s for s in scrapes if s.time is not None and s.time + offset >= point.time and (name, 0) in s.gauges]
    if not before or not after:
        return None
    pair = (before[-1].gauges[name, 0], after[0].gauges[name, 0])
    return min(pair) - 1 <= point.value <= max(pair) + 1


def _track(scrapes: Sequence[Scrape], offset: float = 0.0) -> Track:
    """Gauges as series, and the scrapes themselves for counters and histograms."""
    moved = tuple(structs.replace(s, time=None if s.time is None else s.time + offset) for s in scrapes)
    points: dict[tuple[str, int], list[Point]] = {}
    for i, scrape in enumerate(moved):
        time = scrape.time if scrape.time is not None else float(i)
        for (name, engine), value in scrape.gauges.items():
            if name in scrape.refs:
                points.setdefault((name, engine), []).append(Point(value, time, scrape.refs[name]))
    return Track("metrics", {key: Series.of(p) for key, p in points.items()}, moved)


def _joined(run: Run, scrapes: Sequence[Scrape], offset: float) -> Run:
    metrics = _track(scrapes, offset)
    log = run.tracks[0].series if run.tracks else {}
    series = dict(log)
    for key, own in metrics.series.items():
        series[key] = series[key].merge(own) if key in series else own
    times = [s.time for s in metrics.scrapes if s.time is not None]
    return structs.replace(
        run,
        tracks=(Track("log and metrics", series, metrics.scrapes),),
        sources=tuple(dict.fromkeys((*run.sources, *(s.source for s in scrapes)))),
        started=min([t for t in (run.started, *times) if t is not None], default=None),
        ended=max([t for t in (run.ended, *times) if t is not None], default=None),
    )


def _with_launch(runs: list[Run], launches: Sequence[Launch]) -> list[Run]:
    """The launch command belongs to the run that names the same model, or to all where only one command was given."""
    if not launches:
        return runs
    result = []
    for run in runs:
        model = run.text("model.name")
        match = [x for x in launches if x.model and model and x.model == model] or (list(launches) if len(launches) == 1 else [])
        result.append(structs.replace(run, launch=match[0]) if match else run)
    return result


def _followed(run: Run, later: Sequence[Run]) -> bool:
    return any(set(run.sources) & set(other.sources) and other.has_banner for other in later)


def _end(run: Run, followed: bool) -> End:
    """How the run ended, by what its log says. A stop that was asked for stays one although errors follow it."""
    stop = stop_asked(run)
    failure = first_line(run, ("engine.died", "worker.died", "engine.fatal_error", "startup.failed", *STARTUP_FAILURES))
    if stop and (not failure or _before(stop, failure)):
        return "stopped"
    served = "startup.complete" in run.events or any(track.series for track in run.tracks)
    if failure or (not served and {"exception", "oom", *STARTUP_REFUSALS} & set(run.events)):
        return "crashed"  # an exception of a serving front end may concern one request; before that nothing else is there to raise it
    if followed:
        return "unknown"
    return "running" if served else "unknown"


def stop_asked(run: Run) -> Event | None:
    """The line that shows that somebody asked the server to stop. uvicorn's own `Shutting down` follows a dead engine as well: it
    counts only for servers before 0.6.3, which print nothing of their own on a signal."""
    asked = first_line(run, ("shutdown.requested",))
    if asked is None and satisfies(run.version, "<0.6.3") is True:
        asked = first_line(run, ("shutdown.http",))
    return asked


STARTUP_FAILURES = (
    "startup.no_kv_memory",
    "startup.kv_below_max_len",
    "startup.free_below_budget",
    "startup.memory_changed",
    "startup.sampler_oom",
    "startup.weights_oom",
    "startup.port_in_use",
)
"""Start-up failures that say why, in the order in which vLLM can meet them."""

STARTUP_REFUSALS = (
    "startup.options_rejected",
    "startup.config_rejected",
    "startup.model_config_rejected",
    "startup.options_conflict",
    "startup.length_above_model",
    "startup.too_few_gpus",
    "startup.unsupported",
    "startup.driver_unusable",
    "startup.model_missing",
    "startup.model_forbidden",
    "startup.model_unreachable",
    "startup.weights_missing",
    "startup.rendezvous_port_in_use",
)
"""What ends a start, but may concern a single request (an adapter, a plug-in) once the server serves."""


def first_line(run: Run, kinds: Iterable[str]) -> Event | None:
    """The earliest event of these kinds, by line within the run's log."""
    found = [run.events[k].first[0] for k in kinds if k in run.events and run.events[k].first]
    return min(found, key=lambda e: (e.ref.source, e.ref.line), default=None)


def _before(a: Event, b: Event) -> bool:
    if a.ref.source == b.ref.source:
        return a.ref.line < b.ref.line
    return a.time is not None and b.time is not None and a.time < b.time


def within(case: Case, since: TimeBound | None, until: TimeBound | None) -> Case:
    """The case as if only what lies between the bounds had been seen. Facts and whatever has no time stay."""
    starts = [r.started for r in case.runs if r.started is not None]
    ends = [r.ended for r in case.runs if r.ended is not None]
    if not starts or not ends:
        return case
    low = since.resolve(min(starts), max(ends)) if since else float("-inf")
    high = until.resolve(min(starts), max(ends)) if until else float("inf")
    runs = [_clipped(run, low, high) for run in case.runs if run.started is None or run.ended is None or (run.started <= high and run.ended >= low)]
    return structs.replace(case, runs=tuple(runs))


def _clipped(run: Run, low: float, high: float) -> Run:
    def inside(time: float | None) -> bool:
        return time is None or low <= time <= high

    events: dict[str, Bounded] = {}
    for kind, bounded in run.events.items():
        kept = [e for e in bounded.events if inside(e.time)]
        if kept:
            events[kind] = bounded if len(kept) == len(bounded.events) else Bounded.of(*kept)
    tracks = []
    for track in run.tracks:
        series = {}
        for key, whole in track.series.items():
            buckets = {slot: b for slot, b in whole.buckets.items() if inside(b.first.time) and inside(b.last.time)}
            if buckets:
                series[key] = Series(buckets, whole.exponent)
        tracks.append(Track(track.name, series, tuple(s for s in track.scrapes if inside(s.time))))
    started = None if run.started is None else max(run.started, low)
    ended = None if run.ended is None else min(run.ended, high)
    clipped = structs.replace(run, events=events, tracks=tuple(tracks), started=started, ended=ended)
    return structs.replace(clipped, end=run.end if run.ended is None or run.ended <= high else _end(clipped, followed=False))
