"""The timeline of a report as data: lines in panels over one time axis, with events and phases. Pure; drawn by `picture` and in the page.

Texts are cleaned here, because a chart leaves the templates as JSON and as SVG.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from typing import NamedTuple

from ..model.report import SeriesReport, TimelineEntry
from .plain import clean
from .telling import Telling

POINTS = 4000
"""Points of all lines together. With them a page stays well below 300 kB, and a line has more points than a panel has pixels to show."""
MOST_POINTS, FEWEST_POINTS = 900, 100
"""Points of one line."""
EVENTS = 40
"""Marked events; a server that restarts for days has hundreds."""
GAP = 6.0
"""A line breaks where the distance of two points is this many times the usual one: nothing was measured there."""

PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests", ("requests.running", "requests.waiting", "requests.swapped")),
    ("kv_cache", ("kv_cache.usage",)),
    ("throughput", ("throughput.prompt", "throughput.generation")),
)
"""Panels in their order. Series of other names follow, one panel for each family and unit."""


Row = tuple[float, float, float, float]
"""Time, lowest, mean, highest; None in a list of rows is a break."""


class Line(NamedTuple):
    """`low`, `mean` and `high` per time in seconds since 1970 on the input's own clock; None in all three where nothing was measured."""

    label: str
    times: list[float]
    low: list[float | None]
    mean: list[float | None]
    high: list[float | None]


class Panel(NamedTuple):
    title: str
    unit: str
    top: float  # of the scale, which starts at 0
    lines: list[Line]


class Mark(NamedTuple):
    """An event. `bad` ones are failures."""

    number: int
    time: float
    text: str
    bad: bool
    entry: TimelineEntry


class Phase(NamedTuple):
    kind: str  # "startup", "trouble", "down"
    start: float
    end: float
    label: str


class Chart(NamedTuple):
    start: float
    end: float
    panels: list[Panel]
    marks: list[Mark]
    phases: list[Phase]


_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d{1,6})?")
_BAD = ("oom", "error", "died", "killed", "failed", "crash", "preempt", "fatal", "exception", "disconnected", "no_kv_memory", "too_")


def seconds(iso: str | None) -> float | None:
    """An ISO time as seconds since 1970, its zone left aside: a report has one clock. None for anything else."""
    found = _ISO.match(iso or "")
    if not found:
        return None
    try:
        moment = datetime(*(int(found[i]) for i in range(1, 7)), tzinfo=timezone.utc)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    return moment.timestamp() + float(found[7] or 0)


def iso(time: float) -> str:
    """Seconds since 1970 as an ISO time without zone."""
    return datetime.fromtimestamp(time, timezone.utc).replace(tzinfo=None).isoformat(timespec="seconds")


def chart(telling: Telling) -> Chart | None:
    """The timeline, or None where no series has two points: a picture of less says nothing that the list of events does not."""
    report = telling.report
    panels = _panels(telling, report.series)
    if not panels:
        return None
    times = [t for p in panels for line in p.lines for t in line.times]
    marks = _marks(report.timeline)
    start, end = min([*times, *(m.time for m in marks)]), max([*times, *(m.time for m in marks)])
    if end <= start:
        return None
    return Chart(start, end, panels, marks, _phases(telling, start, end))


def _panels(telling: Telling, series: Sequence[SeriesReport]) -> list[Panel]:
    engines = sorted({s.engine for s in series})
    grouped: dict[tuple[str, int, int], list[SeriesReport]] = {}
    seen: dict[tuple[str, str, int], int] = {}
    for s in series:  # one run after the other is one line; two clocks of one run are two
        twin = seen[s.run, s.signal, s.engine] = seen.get((s.run, s.signal, s.engine), -1) + 1
        grouped.setdefault((s.signal, s.engine, twin), []).append(s)
    limit = max(FEWEST_POINTS, min(MOST_POINTS, POINTS // max(len(grouped), 1)))
    named = {signal: panel for panel, signals in PANELS for signal in signals}
    order = [panel for panel, _ in PANELS]
    panels: dict[tuple[int, str, str], list[tuple[str, Line]]] = {}
    for (signal, engine, _twin), parts in grouped.items():
        line = _line(telling, parts, limit, engine if len(engines) > 1 else None)
        if sum(v is not None for v in line.mean) < 2:
            continue
        word = named.get(signal, _family(signal))
        if len(engines) > 1:
            word = signal  # running and waiting of many engines in one panel would be a tangle
        rank = order.index(named[signal]) if signal in named else len(order)
        panels.setdefault((rank, word, parts[0].unit), []).append((signal, line))
    result = []
    for (rank, word, unit), lines in sorted(panels.items(), key=lambda item: item[0]):
        fixed = PANELS[rank][1] if rank < len(PANELS) else ()
        lines.sort(key=lambda pair: (fixed.index(pair[0]) if pair[0] in fixed else 0, pair[0]))
        peak = max((v for _, line in lines for v in line.high if v is not None), default=0.0)
        scale = 2.0**30 if unit == "bytes" else 1.0
        top = max(1.0, peak) if unit == "ratio" else _round_top(peak / scale) * scale
        result.append(Panel(clean(telling.panel(word)), clean(unit), top, [line for _, line in lines]))
    return result


def _family(signal: str) -> str:
    """What shares a panel: quantiles of one latency, else what has the first word in common."""
    return signal.rpartition(".")[0] if signal.startswith("latency.") and signal.count(".") > 1 else signal.partition(".")[0]


def _round_top(peak: float) -> float:
    """The end of a scale that holds `peak` and whose half is a round figure too."""
    if peak <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(peak))
    return next(power * n for n in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10, 12) if power * n >= peak)


def _line(telling: Telling, parts: Iterable[SeriesReport], limit: int, engine: int | None) -> Line:
    label = ""
    rows: list[Row | None] = []
    for part in parts:
        label = telling.signal(part.signal)
        points = sorted(
            (t, *map(float, values))
            for time, *values in part.points
            if (t := seconds(time)) is not None and len(values) == 3 and all(math.isfinite(v) for v in values)
        )
        rows += [*([None] if rows else []), *points]  # type: ignore[list-item]
    if engine is not None:
        label = telling._("engine {n}").format(n=engine)
    line = Line(clean(label), [], [], [], [])
    previous: float | None = None
    kept = _thinned(rows, limit)
    usual = usual_distance([row[0] for row in kept if row])
    for row in kept:
        if previous is not None and (row is None or row[0] - previous > GAP * usual):
            line.times.append(round(previous + 0.001, 3))
            for values in (line.low, line.mean, line.high):
                values.append(None)
        previous = None if row is None else row[0]
        if row is not None:
            line.times.append(round(row[0], 3))
            for values, value in zip((line.low, line.mean, line.high), row[1:], strict=True):
                values.append(value)
    return line


def usual_distance(times: Sequence[float]) -> float:
    """The upper quartile of the distances between neighbours, infinite for fewer than two."""
    steps = sorted(b - a for a, b in pairwise(times) if b > a)
    return steps[len(steps) * 3 // 4] if steps else math.inf


def _thinned(rows: list[Row | None], limit: int) -> list[Row | None]:
    """At most about `limit` rows: neighbours in time merge, and keep the lowest low and the highest high, so no peak is lost."""
    real = [r for r in rows if r]
    if len(real) <= limit:
        return rows
    start, width = real[0][0], (max(r[0] for r in real) - real[0][0]) / limit or 1.0
    out: list[Row | None] = []
    slot = -1
    bucket: list[Row] = []

    def close() -> None:
        if bucket:
            mean = sum(r[2] for r in bucket) / len(bucket)
            out.append((bucket[0][0], min(r[1] for r in bucket), mean, max(r[3] for r in bucket)))
            bucket.clear()

    for row in rows:
        if row is None:
            close()
            out.append(None)
            continue
        own = int((row[0] - start) / width)
        if own != slot:
            close()
        slot = own
        bucket.append(row)
    close()
    return out


def _marks(timeline: Iterable[TimelineEntry]) -> list[Mark]:
    timed = [(t, e) for e in timeline if (t := seconds(e.time)) is not None]
    bad = [(t, e, any(word in e.kind for word in _BAD)) for t, e in timed]
    if len(bad) > EVENTS:  # failures matter most
        bad = sorted(sorted(bad, key=lambda m: not m[2])[:EVENTS], key=lambda m: m[0])
    return [Mark(n, t, clean(e.text), is_bad, e) for n, (t, e, is_bad) in enumerate(bad, 1)]


def clusters(places: Sequence[float], width: float) -> list[list[int]]:
    """Indices of ascending `places` in groups whose members lie closer than `width` to the group's first: their labels would overlap."""
    groups: list[list[int]] = []
    for i, place in enumerate(places):
        if groups and place - places[groups[-1][0]] < width:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _phases(telling: Telling, start: float, end: float) -> list[Phase]:
    _, report = telling._, telling.report
    phases: list[Phase] = []
    up = {e.run: seconds(e.time) for e in reversed(report.timeline) if e.kind == "startup.complete"}
    previous: float | None = None
    for run in report.runs:
        began, ended = seconds(run.started), seconds(run.ended)
        if previous is not None and began is not None and began > previous:
            phases.append(Phase("down", previous, began, _("not running")))
        ready = up.get(run.id)
        if began is not None and ready is not None and ready > began:
            phases.append(Phase("startup", began, ready, _("start-up")))
        previous = ended if run.end in ("crashed", "stopped") else None
    lead = telling.lead
    if lead is not None:
        first, last = seconds(lead.first_time), seconds(lead.last_time)
        if first is not None and last is not None and last > first:
            phases.append(Phase("trouble", first, last, _("the trouble")))
    return [p._replace(start=max(p.start, start), end=min(p.end, end)) for p in phases if p.end > start and p.start < end]
