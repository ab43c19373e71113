"""Windows worth judging: queueing episodes, and the whole run after warm-up."""

from __future__ import annotations

from ..model.case import Run, Track, Window
from ..model.observations import Point, Series

JOIN_GAP = 30.0
"""Episodes closer than this are one: three stats intervals, so that one lucky sample does not cut a queue in two."""


def windows(run: Run, engine: int) -> tuple[Window, ...]:
    """The whole of each track first, then its queueing episodes in order of time. A run without samples has one empty whole."""
    result: list[Window] = []
    for index, track in enumerate(run.tracks):
        whole = _whole(index, track, engine)
        if whole is not None:
            result.append(whole)
            result.extend(_queueing(index, track, engine))
    return tuple(result) or (Window(-1, run.started or 0.0, run.ended or 0.0, whole=True),)


def _span(track: Track, engine: int) -> tuple[float, float] | None:
    buckets = [list(s.buckets.values()) for (_, e), s in track.series.items() if e == engine and s.buckets]
    times = [time for found in buckets for time in (found[0].first.time, found[-1].last.time)]
    times += [s.time for s in track.scrapes if s.time is not None]
    return (min(times), max(times)) if times else None


def _whole(index: int, track: Track, engine: int) -> Window | None:
    """From the first sample that shows load, so that an idle start-up dilutes nothing; the sample before it is kept for deltas."""
    span = _span(track, engine)
    if span is None:
        return None
    start = span[0]
    loaded = [
        p.time for name in ("requests.running", "requests.waiting", "throughput.generation") for p in _points(track, name, engine) if p.value > 0
    ]
    if loaded:
        onset = min(loaded)
        start = max((p.time for p in _points(track, "requests.running", engine) if p.time < onset), default=onset)
    return Window(index, start, span[1], whole=True)


def _queueing(index: int, track: Track, engine: int) -> list[Window]:
    points = _points(track, "requests.waiting", engine)
    found: list[Window] = []
    start: float | None = None
    last_zero: float | None = None
    peak: Point | None = None
    for point in points:
        if point.value > 0:
            if start is None:
                start, peak = (last_zero if last_zero is not None else point.time), point
            elif peak is None or point.value > peak.value:
                peak = point
        elif start is not None and peak is not None:
            found.append(Window(index, start, point.time, onset_end=peak.time))
            start, peak = None, None
        if point.value == 0:
            last_zero = point.time
    if start is not None and peak is not None and points:
        found.append(Window(index, start, points[-1].time, onset_end=peak.time))
    return _joined(found, track, engine)


def _joined(found: list[Window], track: Track, engine: int) -> list[Window]:
    waiting = {p.time: p.value for p in _points(track, "requests.waiting", engine)}
    result: list[Window] = []
    for window in found:
        if result and window.start - result[-1].end < JOIN_GAP:
            earlier = result[-1]
            ends = [t for t in (earlier.onset_end, window.onset_end) if t is not None]
            result[-1] = Window(window.track, earlier.start, window.end, onset_end=max(ends, key=lambda t: (waiting.get(t, 0.0), -t)))
        else:
            result.append(window)
    return result


def _points(track: Track, name: str, engine: int) -> tuple[Point, ...]:
    series = track.series.get((name, engine))
    return series.points() if series else ()


def inside(series: Series | None, start: float, end: float) -> tuple[Point, ...]:
    """The points of a series within a window, both ends included."""
    return tuple(p for p in series.points() if start <= p.time <= end) if series else ()
