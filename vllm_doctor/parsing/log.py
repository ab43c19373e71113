"""The fold: one pass over the raw bytes of a stream of log lines, which Python touches only where a literal was found.

Access lines, most of a busy server's log, are counted by whole blocks. `fold(a + b) == fold(a).merge(fold(b))` for every cut that
`blocks.boundary` allows.
"""

from __future__ import annotations

import bisect
import datetime
import math
import re
from array import array

from ..model.catalogue import OBSERVATIONS, observation
from ..model.observations import (
    CONTEXT,
    EVENTS_KEPT,
    PARTS_KEPT,
    Bounded,
    Clock,
    Count,
    Event,
    Fact,
    Part,
    Point,
    Ref,
    StreamTally,
)
from ..ruleset.schema import Format
from . import formats as reading
from . import lines, scan, stamps_in, tracebacks
from .blocks import blocks, boundary, cuts
from .gathering import Gathering, Seen
from .line_parsers import Line, Values
from .wrappers import YEARLESS

__all__ = ["blocks", "boundary", "clock_of", "cuts", "fold"]

MAX_LINE = 2**20
"""Bytes of one line that are decoded."""
MAX_PATH = 4096
"""Bytes of a request's path in an access line."""
MANY = 2 * EVENTS_KEPT
"""Events of a kind after which further ones are only counted until they turn out to be among the last."""
MAX_ENGINE = 4095
MAX_CONTEXT = 400
"""Characters kept of a neighbouring line."""

_KINDS = {name: d.kind for name, d in OBSERVATIONS.items()}
_DP = re.compile(r"_DP(\d{1,4})")
_JOINABLE = 2
"""Following lines that a hard wrap may have cut off."""


def clock_of(data: bytes, year_hint: int | None) -> Clock:
    """What the stamps of a stream tell about its clock.

    A stamp with a year makes the year known. Else the year is the hint's (the file's age, a scrape), which the last stamp gets; a
    log whose months fall from December to January started the year before.
    """
    first, last = stamps_in.first(data, 0, len(data)), stamps_in.last(data, 0, len(data))
    for found in (first, last):
        if found is not None and len(found[0]) > 5:
            return Clock(year=int(found[0][:4]), year_known=True)
    year = year_hint or 1970
    if first is not None and last is not None and first[0][:2] > last[0][:2]:
        return Clock(year=year - 1, year_known=year_hint is not None, first_month=int(first[0][:2]))
    return Clock(year=year, year_known=year_hint is not None)


def fold(
    data: bytes, source: str, clock: Clock, formats: list[Format], lines: array[int] | None = None, stamps: array[float] | None = None
) -> StreamTally:
    """Everything that the formats find in a stream of log lines.

    `lines` are the original line numbers where they are not 1, 2, 3 ...; `stamps` are the wrapper's times per line (NaN where it has
    none), which then replace the lines' own. Times in the result are on the stream's clock. Never raises on any bytes.
    """
    return _Fold(data, source, clock, reading.table(formats), lines, _dated(stamps, clock)).run()


def _dated(stamps: array[float] | None, clock: Clock) -> array[float] | None:
    """Stamps of a wrapper that prints no year, moved from `YEARLESS` to the clock's years."""
    first = next((s for s in stamps or () if not math.isnan(s)), None)
    if stamps is None or first is None or datetime.datetime.fromtimestamp(first, datetime.timezone.utc).year != YEARLESS:
        return stamps
    moved = array("d")
    for stamp in stamps:
        if math.isnan(stamp):
            moved.append(stamp)
            continue
        moment = datetime.datetime.fromtimestamp(stamp, datetime.timezone.utc)
        year = clock.year + (moment.month < clock.first_month)
        start = datetime.datetime(YEARLESS, moment.month, 1, tzinfo=datetime.timezone.utc)
        moved.append(stamp - start.timestamp() + datetime.datetime(year, moment.month, 1, tzinfo=datetime.timezone.utc).timestamp())
    return moved


def _engine_of(process: str | None) -> int | None:
    """The data-parallel index in a process tag."""
    found = _DP.search(process) if process is not None else None
    return int(found[1]) if found else None


class _Fold:
    def __init__(
        self,
        data: bytes,
        source: str,
        clock: Clock,
        table: reading.Table,
        numbers: array[int] | None,
        stamps: array[float] | None,
    ) -> None:
        self.data, self.source, self.clock, self.table = data, source, clock, table
        self.numbers, self.stamps = numbers, stamps
        self.given_up = table.disabled()
        self.counted_to = 0  # offset up to which newlines are counted
        self.index = 0  # lines before `counted_to`
        self.stamp_searched = 0  # offset up to which the last stamp is known
        self.stamp_time: float | None = None
        self.owned: dict[int, tracebacks.Traceback] = {}
        self.part = Gathering(0, 0)
        self.done: list[Gathering] = []
        self.errors: dict[int, list[int]] = {reading.REFUSED: [], reading.FAILED: [], reading.OLD: []}
        self.seen = 0

    def run(self) -> StreamTally:
        data = self.data
        if not data:
            return StreamTally()
        hits = self._without_access(self.table.find(data))
        i, total = 0, len(hits)
        marks = self.table.marks
        while i < total:
            offset, index = hits[i]
            kind = marks.get(index)
            if kind is not None and self.part.count.get(kind, 0) >= MANY and data[offset - 2 : offset] == b"] ":
                self.part.mark(kind, offset)
                i += 1
                continue
            begin = data.rfind(b"\n", 0, offset) + 1
            end = data.find(b"\n", offset)
            if end < 0:
                end = len(data)
            ids: set[int] = set()
            while i < total and hits[i][0] < end:
                offset, index = hits[i]
                i += 1
                if index < 0:
                    ids.add(reading.ERROR)
                    continue
                owners = self.table.owners[index]
                ids.update(owners)
                if owners[0] == reading.TRACEBACK:
                    found = tracebacks.follow(data, offset)
                    if found is not None and found.raised_at not in self.owned:
                        self.owned[found.raised_at] = found
                        bisect.insort(hits, (found.raised_at, -1), i)
                        total += 1
            self._line(begin, end, ids)
        return self._tally()

    def _without_access(self, hits: scan.Hits) -> scan.Hits:
        """Puts the access lines that report an error aside."""
        aside = {index: self.errors[owners[0]] for index, owners in enumerate(self.table.owners) if owners[0] in self.errors}
        rest = []
        for hit in hits:
            if hit[1] in aside:
                aside[hit[1]].append(hit[0])
            else:
                rest.append(hit)
        return rest

    # one line

    def _line(self, begin: int, end: int, ids: set[int]) -> None:
        data = self.data
        raw = data[begin : min(end, begin + MAX_LINE)]
        if b"\r" in raw:
            raw = raw.rstrip(b"\r")
        if b"\r" in raw:
            for piece in raw.split(b"\r"):
                own = {i for i in ids if i >= 0 and any(t.encode() in piece for t in self.table.readers[i].literals)}
                if own or (begin in self.owned):
                    self._message(begin, end, own | (ids & {reading.ERROR}), lines.text_of(piece))
            return
        self._message(begin, end, ids, lines.text_of(raw))

    def _message(self, begin: int, end: int, ids: set[int], text: str) -> None:
        head = lines.head(text)
        line = Line(text[head.start :], head.process, head.level, lambda: self._frames(begin))
        readers = sorted(i for i in ids if i >= 0)
        found = self.table.read(readers, line) if readers else []
        if readers and not found:
            joined = self._joined(end)
            if joined:
                whole = Line(line.message.rstrip() + joined, line.process, line.level, line.frames)
                found = self.table.read(readers, whole)
        error = self._error(begin, line, head) if reading.ERROR in ids else None
        if not found and error is None:
            return
        number = self._number(begin)
        time = self._time(begin, number, head)
        for reader, values in found:
            if reader.begins is not None:
                self._close(begin, number)
                self.part = Gathering(begin, number, reader.begins, head.process, head.pid)
            if reader.samples and time is not None:
                self._sample(values, number, time, head.process, text)
            else:
                self._route(values, begin, end, number, time, head.process, text)
        if error is not None:
            self._route(error, begin, end, number, time, head.process, text)

    def _error(self, begin: int, line: Line, head: lines.Head) -> Values | None:
        """The exception that a line names: the last line of a traceback, or one that reads like it."""
        owned = begin in self.owned
        if not owned and (head.level in ("INFO", "DEBUG", "WARNING") or not tracebacks.names_error(line.message)):
            return None
        raised = tracebacks.raised(line.message)
        if raised is None:
            return None
        name, message = raised
        if name.endswith("DeadError"):
            return {"engine.dead_error": True}
        if re.search(r"validation errors? for \w+$", message):
            message += ";" + self._next_line(begin)
        phase, _ = tracebacks.phase(line.frames())
        return {"exception.type": name, "exception.message": message[: lines.MAX_TEXT], "exception.phase": phase}

    def _next_line(self, begin: int) -> str:
        """The next line's message if it is indented."""
        end = self.data.find(b"\n", begin)
        text = "" if end < 0 else self._context_line(end + 1)
        message = text[lines.head(text).start :]
        return " " + message.strip() if message.startswith(" ") else ""

    def _frames(self, begin: int) -> tuple[tracebacks.Frame, ...]:
        owned = self.owned.get(begin)
        if owned is not None:
            return owned.frames(self.data)
        return tracebacks.above(self.data, begin) or tracebacks.below(self.data, begin)

    def _joined(self, end: int) -> str:
        """The next lines, if they have no head of their own and are not indented: what a hard wrap cut off."""
        text = ""
        for _ in range(_JOINABLE):
            if end + 1 >= len(self.data):
                break
            after = self.data.find(b"\n", end + 1, end + 4096)
            piece = lines.text_of(self.data[end + 1 : after if after >= 0 else end + 4096]).rstrip("\r")
            head = lines.head(piece)
            if not piece or piece[0] in " \t" or head.level is not None or head.process is not None:
                break
            text += piece
            end = after if after >= 0 else len(self.data)
        return text

    # where and when

    def _number(self, begin: int) -> int:
        """Index of the line at an offset, from 0."""
        if begin >= self.counted_to:
            self.index += self.data.count(b"\n", self.counted_to, begin)
            self.counted_to = begin
            return self.index
        return self.index - self.data.count(b"\n", begin, self.counted_to)

    def _original(self, index: int) -> int:
        if self.numbers is None:
            return index + 1
        return self.numbers[index] if index < len(self.numbers) else index + 1

    def _time(self, begin: int, index: int, head: lines.Head) -> float | None:
        time = self._own_time(index, head)
        return self._time_before(begin) if time is None and self.stamps is None else time

    def _own_time(self, index: int, head: lines.Head) -> float | None:
        """The time that a line or its wrapper states."""
        if self.stamps is not None:
            value = self.stamps[index] if index < len(self.stamps) else math.nan
            return None if math.isnan(value) else value
        return lines.seconds(head.stamp, self.clock) if head.stamp is not None else None

    def _time_before(self, offset: int) -> float | None:
        """The last stamp before an offset."""
        if offset > self.stamp_searched:
            found = stamps_in.last(self.data, self.stamp_searched, offset)
            time = lines.seconds(found, self.clock) if found is not None else None
            self.stamp_time = self.stamp_time if time is None else time
            self.stamp_searched = offset
        return self.stamp_time

    # what it says

    def _sample(self, values: Values, index: int, time: float, process: str | None, text: str) -> None:
        """`_route` for the many lines that give samples and nothing else."""
        stated = values.get("engine")
        engine = _engine_of(process) if stated is None else int(stated)
        if engine is None or engine > MAX_ENGINE:
            engine = 0
        ref = Ref(self.source, self._original(index), text[: lines.MAX_TEXT])
        for name, value in values.items():
            if name != "engine" and not isinstance(value, str) and math.isfinite(value):
                self.part.sample(name, engine, Point(float(value), time, ref))

    def _route(self, values: Values, begin: int, end: int, index: int, time: float | None, process: str | None, text: str) -> None:
        part = self.part
        stated = values.get("engine")
        engine: int | None = int(stated) if isinstance(stated, int | float) else None
        if engine is None:
            engine = _engine_of(process)
        if engine is not None and engine > MAX_ENGINE:
            engine = None
        events: dict[str, Values] = {}
        ref: Ref | None = None
        for name, value in values.items():
            kind = _KINDS.get(name)
            if kind is None:
                if name == "engine":
                    continue
                kind = "fact" if observation(name) is not None else None
            if kind == "event":
                events.setdefault(name, {})
            elif kind == "attribute":
                events.setdefault(name.rpartition(".")[0], {})[name] = value
            elif kind == "fact":
                part.fact(Seen(begin, end, index, name, value, time, engine, process))
            elif kind == "count":
                part.counts[name] = part.counts.get(name, 0) + 1
            elif kind == "sample" and time is not None and isinstance(value, int | float) and math.isfinite(value):
                if ref is None:
                    ref = Ref(self.source, self._original(index), text[: lines.MAX_TEXT])
                part.sample(name, engine or 0, Point(float(value), time, ref))
        for name, attributes in events.items():
            part.event(Seen(begin, end, index, name, attributes, time, engine, process))

    # the end of a part and of the block

    def _close(self, end: int, index: int) -> None:
        part = self.part
        if end <= part.start:
            return
        part.end, part.lines, part.last_time = end, index - part.line, self._time_before(end) if self.stamps is None else None
        self.done.append(part)
        self.seen += 1
        if len(self.done) > 4 * PARTS_KEPT:
            del self.done[PARTS_KEPT:-PARTS_KEPT]

    def _built(self, part: Gathering) -> Part:
        first, last = self._span(part)
        counts = {name: Count(count) for name, count in {**part.counts, **self._access(part)}.items() if count}
        return Part(
            begins=part.begins,
            begins_process=part.process,
            begins_pid=part.pid,
            lines=part.lines,
            first_time=first,
            last_time=last,
            facts=tuple(
                Fact(s.name, s.value, self._ref(s), s.time, s.engine, s.process) for s in part.facts.values() if not isinstance(s.value, dict)
            ),
            events={
                kind: Bounded(
                    tuple(map(self._event, part.first[kind])),
                    tuple(self._event(self._read_mark(kind, s) if isinstance(s, int) else s) for s in part.last.get(kind, ())),
                    count,
                )
                for kind, count in part.count.items()
            },
            series=part.all_series(),
            counts=counts,
        )

    def _span(self, part: Gathering) -> tuple[float | None, float | None]:
        """First and last stamp of a part."""
        if self.stamps is not None:
            known = [t for t in self.stamps[part.line : part.line + part.lines] if not math.isnan(t)]
            return (known[0], known[-1]) if known else (None, None)
        found = stamps_in.first(self.data, part.start, part.end)
        return (None, None) if found is None else (lines.seconds(found, self.clock), part.last_time)

    def _access(self, part: Gathering) -> dict[str, int]:
        """Access lines by class of status, and those of POST requests. Only those that report an error are looked at one by one."""
        data = self.data
        old = self.errors[reading.OLD]
        ok = data.count(b' HTTP/1.1" 2', part.start, part.end) + bisect.bisect_left(old, part.end) - bisect.bisect_left(old, part.start)
        result = {"http.responses.2xx": ok}
        failed_posts = 0
        for name, meaning in (("4xx", reading.REFUSED), ("5xx", reading.FAILED)):
            found = self.errors[meaning]
            found = found[bisect.bisect_left(found, part.start) : bisect.bisect_left(found, part.end)]
            posts = sum(data.startswith(b'"POST ', data.rfind(b'"', max(0, at - MAX_PATH), at)) for at in found)
            result[f"http.responses.{name}"] = len(found)
            result[f"http.inference.{name}"] = posts
            failed_posts += posts
        result["http.inference.2xx"] = max(min(data.count(b' - "POST /', part.start, part.end) - failed_posts, ok), 0)
        return result

    def _event(self, seen: Seen) -> Event:
        assert isinstance(seen.value, dict)
        return Event(seen.name, self._ref(seen), seen.value, seen.time, seen.engine, seen.process)

    def _read_mark(self, kind: str, offset: int) -> Seen:
        """The event whose literal is at this offset, right behind the head of its line."""
        begin = self.data.rfind(b"\n", 0, offset) + 1
        end = self.data.find(b"\n", offset)
        end = end if end >= 0 else len(self.data)
        head = lines.head(lines.text_of(self.data[begin:offset]))
        number = self._number(begin)
        return Seen(begin, end, number, kind, {}, self._own_time(number, head), _engine_of(head.process), head.process)

    def _ref(self, seen: Seen) -> Ref:
        text = lines.text_of(self.data[seen.begin : min(seen.end, seen.begin + 4 * lines.MAX_TEXT)]).rstrip("\r")
        return Ref(self.source, self._original(seen.line), text[: lines.MAX_TEXT], self._before(seen.begin), self._after(seen.end))

    def _context_line(self, begin: int) -> str:
        end = self.data.find(b"\n", begin, begin + 4 * MAX_CONTEXT)
        return lines.text_of(self.data[begin : end if end >= 0 else begin + 4 * MAX_CONTEXT]).rstrip("\r")[:MAX_CONTEXT]

    def _before(self, begin: int) -> tuple[str, ...]:
        texts: list[str] = []
        while begin > 0 and len(texts) < CONTEXT:
            begin = self.data.rfind(b"\n", 0, begin - 1) + 1
            texts.append(self._context_line(begin))
        return tuple(reversed(texts))

    def _after(self, end: int) -> tuple[str, ...]:
        texts: list[str] = []
        begin = end + 1
        while 0 <= begin < len(self.data) and len(texts) < CONTEXT:
            texts.append(self._context_line(begin))
            following = self.data.find(b"\n", begin)
            begin = following + 1 if following >= 0 else len(self.data)
        return tuple(texts)

    def _tally(self) -> StreamTally:
        data = self.data
        self.index += data.count(b"\n", self.counted_to)
        self.counted_to = len(data)
        total = self.index + (not data.endswith(b"\n"))
        self._close(len(data), total)
        kept = self.done if len(self.done) <= 2 * PARTS_KEPT else self.done[:PARTS_KEPT] + self.done[-PARTS_KEPT:]
        parts = tuple(map(self._built, kept))
        known = (t for t in reversed(self.stamps or ()) if not math.isnan(t))
        last = self._time_before(len(data)) if self.stamps is None else next(known, None)
        return StreamTally(
            parts=parts,
            parts_seen=self.seen,
            lines=total,
            issues=self.table.issues(self.given_up),
            head=self._after(-1),
            tail=self._before(len(data) + (not data.endswith(b"\n"))),
            last_time=last,
        )
