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
from . import lines, stamps_in, tracebacks
from .blocks import blocks, boundary, cuts
from .gathering import Gathering, Row, Seen
from .line_parsers import RAW_STATS, Line, Values
from .wrappers import YEARLESS

__all__ = ["blocks", "boundary", "clock_of", "cuts", "fold"]

MAX_LINE = 2**20
"""Bytes of one line that are decoded."""
MAX_PATH = 4096
"""Bytes of a request's path in an access line."""
MANY = EVENTS_KEPT
"""Exceptions after which further ones are only counted until they turn out to be among the last."""
MAX_ENGINE = 4095
MAX_CONTEXT = 400
"""Characters kept of a neighbouring line."""

_HEAD = re.compile(lines.RAW_HEAD)
_STATS = re.compile(lines.RAW_HEAD + RAW_STATS)
_RAISED = re.compile(rb"([A-Za-z_][A-Za-z0-9_.]{0,120}): ")
"""How the line that ends a traceback usually begins."""
MAX_HEAD = 300
"""Bytes before a literal in which the head of its line is looked for."""
ACCESS_OK = b' HTTP/1.1" 2', b' HTTP/1.1\x1b[0m" \x1b[32m2'
ACCESS_POST = b' - "POST /', b' - "\x1b[1mPOST /'
"""Access lines, plain and in the colours that uvicorn gives them on a terminal."""

_KINDS = {name: d.kind for name, d in OBSERVATIONS.items()}
_DP = re.compile(r"_DP(\d{1,4})")
_ONLY_ERROR = {reading.ERROR}
_POST = b'"POST ', b'"\x1b[1mPOST '
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
    data: bytes,
    source: str,
    clock: Clock,
    formats: list[Format],
    lines: array[int] | None = None,
    stamps: array[float] | None = None,
    first_line: int = 1,
) -> StreamTally:
    """Everything that the formats find in a stream of log lines.

    `lines` are the original line numbers where they do not count on from `first_line`; `stamps` are the wrapper's times per line (NaN where it has
    none), which then replace the lines' own. Times in the result are on the stream's clock. Never raises on any bytes.
    """
    return _Fold(data, source, clock, reading.table(formats), lines, _dated(stamps, clock), first_line).run()


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


def _offset(seen: tuple[int, object]) -> int:
    return seen[0]


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
        first_line: int,
    ) -> None:
        self.data, self.source, self.clock, self.table = data, source, clock, table
        self.numbers, self.stamps, self.first_line = numbers, stamps, first_line
        self.coloured = b"\x1b" in data
        self.given_up = table.disabled()
        self.places, self.indices = [0], [0]  # offsets where lines begin, ascending, and how many lines are before each
        self.minutes: dict[bytes, float | None] = {}
        self.first_stamp = stamps_in.first(data, 0, len(data))
        self.stamp_searched = 0  # offset up to which the last stamp is known
        self.stamp_time: float | None = None
        self.owned: dict[int, tracebacks.Traceback] = {}
        self.part = Gathering(0, 0)
        self.done: list[Gathering] = []
        self.errors: dict[int, list[int]] = {reading.REFUSED: [], reading.FAILED: [], reading.OLD: []}
        self.marked: dict[str, list[int]] = {}  # kind -> offsets of literals that say no more than that it happened
        self.seen = 0

    def run(self) -> StreamTally:
        data = self.data
        if not data:
            return StreamTally(first=self.first_line)
        hits = self._hits()
        i = 0
        while i < len(hits):
            offset, index = hits[i]
            i += 1
            begin = data.rfind(b"\n", 0, offset) + 1
            if index == self.table.stats and (i == len(hits) or hits[i][0] > offset) and self._row(begin):
                continue
            end = data.find(b"\n", offset)
            if end < 0:
                end = len(data)
            ids: set[int] = set()
            i -= 1
            while i < len(hits) and hits[i][0] < end:
                offset, index = hits[i]
                i += 1
                owners = self.table.owners[index]
                ids.update(owners)
                if owners[0] == reading.TRACEBACK:
                    found = tracebacks.follow(data, offset)
                    if found is not None and found.raised_at not in self.owned:
                        self.owned[found.raised_at] = found
                        self._expect(found.raised_at, hits, i)
            ids.discard(reading.TRACEBACK)
            if ids and not (ids == _ONLY_ERROR and self._one_more_exception(begin, end)):
                self._line(begin, end, ids)
        return self._tally()

    def _hits(self) -> list[tuple[int, int]]:
        """(offset, index) of the literals whose lines are read one by one, in order. Access lines that report an error are put aside, and
        so are the lines of which there may be many and that only say that something happened."""
        hits: list[tuple[int, int]] = []
        for index, offsets in enumerate(self.table.find(self.data)):
            if not offsets:
                continue
            meaning = self.table.owners[index][0]
            if meaning in self.errors:
                self.errors[meaning] = sorted(self.errors[meaning] + offsets)
                continue
            kind = self.table.mark(index)
            if kind is not None:
                marked, offsets = self._behind_heads(offsets)
                self.marked[kind] = sorted(self.marked.get(kind, []) + marked)
            hits += [(offset, index) for offset in offsets]
        hits.sort()
        return hits

    def _behind_heads(self, offsets: list[int]) -> tuple[list[int], list[int]]:
        """Offsets where a line's message begins, right behind a head of the usual form, and the others. Heads of one process differ in
        their stamps only, so that most need no more than two comparisons."""
        data = self.data
        behind: list[int] = []
        others: list[int] = []
        before, size, place = b"\0", 0, b""
        for offset in offsets:
            if data.startswith(place, offset - len(place)) and data.startswith(before, offset - size):
                behind.append(offset)
                continue
            begin = data.rfind(b"\n", max(0, offset - MAX_HEAD), offset) + 1
            head = _HEAD.match(data, begin)
            if head is None or head.end() != offset:
                others.append(offset)
                continue
            behind.append(offset)
            before, size, place = data[begin - 1 : head.start(4)], offset - begin + 1, data[head.end(4) : offset]
        return behind, others

    def _expect(self, raised_at: int, hits: list[tuple[int, int]], i: int) -> None:
        """Sees to it that the line that ends a traceback is read: most hold a literal that says so."""
        end = self.data.find(b"\n", raised_at)
        end = end if end >= 0 else len(self.data)
        if self.data.find(b"Error: ", raised_at, end) < 0 and self.data.find(b"Exception: ", raised_at, end) < 0:
            bisect.insort(hits, (raised_at, self.table.error), i)

    # lines that there are many of

    def _row(self, begin: int) -> bool:
        """Takes a stats line of the usual form; says whether it is one."""
        found = _STATS.match(self.data, begin)
        if found is None:
            return False
        process, _, _, stamp, engine, *values = found.groups()
        line = self._number(begin)
        if self.stamps is not None:
            time = self._own_time(line, None)
        else:
            minute = stamp[:11]
            time = self.minutes[minute] if minute in self.minutes else self._minute(minute)
            time = time + int(stamp[12:]) if time is not None else None
        if time is None:
            return False
        number = int(engine) if engine is not None else _engine_of(process.decode()) if process is not None else None
        self.part.row(number if number is not None and number <= MAX_ENGINE else 0, Row(time, begin, found.end(), line, tuple(values)), self._row_ref)
        return True

    def _minute(self, minute: bytes) -> float | None:
        time = self.minutes[minute] = lines.seconds((minute[:5].decode(), minute[6:].decode() + ":00", 0.0), self.clock)
        return time

    def _row_ref(self, row: Row) -> Ref:
        text = self.data[row.begin : row.end].decode()  # what the form allows is ASCII, and short
        return Ref(self.source, self._original(row.line), lines.plain(text) if self.coloured else text)

    def _one_more_exception(self, begin: int, end: int) -> bool:
        """Counts the end of a traceback whose like have been seen often; what it says is read when it turns out to be one of the last."""
        if self.part.count.get("exception", 0) < MANY or begin not in self.owned:
            return False
        head = _HEAD.match(self.data, begin)
        raised = _RAISED.match(self.data, head.end()) if head is not None else None
        if raised is None or raised[1].endswith(b"DeadError") or self.data.find(b"\r", begin, end) >= 0:
            return False
        self.part.mark("exception", begin)
        return True

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
        place, index = self.places[-1], self.indices[-1]
        if begin < place:
            known = bisect.bisect_right(self.places, begin) - 1
            return self.indices[known] + self.data.count(b"\n", self.places[known], begin)
        index += self.data.count(b"\n", place, begin)
        self.places.append(begin)
        self.indices.append(index)
        return index

    def _original(self, index: int) -> int:
        if self.numbers is None:
            return self.first_line + index
        return self.numbers[index] if index < len(self.numbers) else self.first_line + index

    def _time(self, begin: int, index: int, head: lines.Head) -> float | None:
        time = self._own_time(index, head)
        return self._time_before(begin) if time is None and self.stamps is None else time

    def _own_time(self, index: int, head: lines.Head | None) -> float | None:
        """The time that a line or its wrapper states."""
        if self.stamps is not None:
            value = self.stamps[index] if index < len(self.stamps) else math.nan
            return None if math.isnan(value) else value
        return lines.seconds(head.stamp, self.clock) if head is not None and head.stamp is not None else None

    def _time_before(self, offset: int) -> float | None:
        """The last stamp before an offset."""
        if offset > self.stamp_searched and self.first_stamp is not None:
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
            events={kind: self._bounded(part, kind) for kind in {**part.count, **self.marked} if self._count(part, kind)},
            series=part.all_series(self._row_ref),
            counts=counts,
        )

    def _span(self, part: Gathering) -> tuple[float | None, float | None]:
        """First and last stamp of a part."""
        if self.stamps is not None:
            known = [t for t in self.stamps[part.line : part.line + part.lines] if not math.isnan(t)]
            return (known[0], known[-1]) if known else (None, None)
        found = None if self.first_stamp is None else stamps_in.first(self.data, part.start, part.end)
        return (None, None) if found is None else (lines.seconds(found, self.clock), part.last_time)

    def _access(self, part: Gathering) -> dict[str, int]:
        """Access lines by class of status, and those of POST requests. Only those that report an error are looked at one by one."""
        data = self.data
        old = self.errors[reading.OLD]
        forms = 2 if self.coloured else 1
        ok = sum(data.count(form, part.start, part.end) for form in ACCESS_OK[:forms])
        ok += bisect.bisect_left(old, part.end) - bisect.bisect_left(old, part.start)
        result = {"http.responses.2xx": ok}
        failed_posts = 0
        for name, meaning in (("4xx", reading.REFUSED), ("5xx", reading.FAILED)):
            found = self.errors[meaning]
            found = found[bisect.bisect_left(found, part.start) : bisect.bisect_left(found, part.end)]
            posts = sum(data.startswith(_POST, data.rfind(b'"', max(0, at - MAX_PATH), at)) for at in found)
            result[f"http.responses.{name}"] = len(found)
            result[f"http.inference.{name}"] = posts
            failed_posts += posts
        posts = sum(data.count(form, part.start, part.end) for form in ACCESS_POST[:forms])
        result["http.inference.2xx"] = max(min(posts - failed_posts, ok), 0)
        return result

    def _event(self, seen: Seen) -> Event:
        assert isinstance(seen.value, dict)
        return Event(seen.name, self._ref(seen), seen.value, seen.time, seen.engine, seen.process)

    def _marked_in(self, part: Gathering, kind: str) -> tuple[list[int], int, int]:
        """The offsets of marks of a kind, and which of them are within the part."""
        offsets = self.marked.get(kind, [])
        return offsets, bisect.bisect_left(offsets, part.start), bisect.bisect_left(offsets, part.end)

    def _count(self, part: Gathering, kind: str) -> int:
        _, low, high = self._marked_in(part, kind)
        return part.count.get(kind, 0) + high - low

    def _bounded(self, part: Gathering, kind: str) -> Bounded:
        """The first and last events of a kind, those that were only marked being read now."""
        offsets, low, high = self._marked_in(part, kind)
        offsets = offsets[low : min(high, low + EVENTS_KEPT)] + offsets[max(low + EVENTS_KEPT, high - EVENTS_KEPT) : high]
        seen: list[tuple[int, int | Seen]] = [(offset, offset) for offset in offsets]
        seen += [(s if isinstance(s, int) else s.begin, s) for s in (*part.first.get(kind, ()), *part.last.get(kind, ()))]
        seen.sort(key=_offset)
        kept = [*seen[:EVENTS_KEPT], *seen[EVENTS_KEPT:][-EVENTS_KEPT:]]
        events = [self._event(self._read_mark(kind, s) if isinstance(s, int) else s) for _, s in kept]
        return Bounded(tuple(events[:EVENTS_KEPT]), tuple(events[EVENTS_KEPT:]), self._count(part, kind))

    def _read_mark(self, kind: str, offset: int) -> Seen:
        """The event of the line that holds an offset, which has a head of the usual form."""
        begin = self.data.rfind(b"\n", 0, offset) + 1
        end = self.data.find(b"\n", offset)
        end = end if end >= 0 else len(self.data)
        text = lines.text_of(self.data[begin : min(end, begin + MAX_LINE)])
        head = lines.head(text)
        number = self._number(begin)
        values: Values | None = {}
        if kind == "exception":
            line = Line(text[head.start :], head.process, head.level, lambda: self._frames(begin))
            values = self._error(begin, line, head)
        time = self._own_time(number, head)
        if time is None and self.stamps is None:
            before = stamps_in.last(self.data, 0, begin)
            time = lines.seconds(before, self.clock) if before is not None else None
        return Seen(begin, end, number, kind, values or {}, time, _engine_of(head.process), head.process)

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
        total = self._number(len(data)) + (not data.endswith(b"\n"))
        self._close(len(data), total)
        kept = self.done if len(self.done) <= 2 * PARTS_KEPT else self.done[:PARTS_KEPT] + self.done[-PARTS_KEPT:]
        parts = tuple(map(self._built, kept))
        known = (t for t in reversed(self.stamps or ()) if not math.isnan(t))
        last = self._time_before(len(data)) if self.stamps is None else next(known, None)
        return StreamTally(
            parts=parts,
            parts_seen=self.seen,
            lines=total,
            first=self.first_line,
            issues=self.table.issues(self.given_up),
            head=self._after(-1),
            tail=self._before(len(data) + (not data.endswith(b"\n"))),
            last_time=last,
        )
