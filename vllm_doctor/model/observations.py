"""What is read off the inputs: references, facts, samples, events, scrapes, and the bounded tallies they fold into.

Everything here is a frozen value. `merge` is associative: a file scanned in blocks, a live tail and the logs of a cluster
are all the same operation. Memory stays bounded: series live in time buckets, events keep their first and last N.

Times are seconds since 1970-01-01 of the *stream's own clock*: local time read as if it were UTC. `Clock` says what is known
about that clock; `assemble` moves streams onto one axis where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import gt
from typing import TypeVar

from msgspec import Struct, field, structs

Scalar = str | float | int | bool
K = TypeVar("K")

EVENTS_KEPT = 16
"""First and last N events of one kind that are kept whole; the rest are counted. Enough to show a repeated failure from both ends."""
PARTS_KEPT = 32
"""First and last N server lives kept of one stream. A crash loop repeats itself; its first and latest lives tell the story."""
FACTS_KEPT = 1024
"""Distinct facts kept of one part; a server states a few hundred, hostile input any number."""
SUM_UNIT = 2**32
CONTEXT = 2
"""Neighbouring lines that a Ref of an event or a fact carries on each side."""
BUCKETS_KEPT = 4096
"""Most buckets in one series: a day of 10-second stats lines keeps 32-second detail."""


class Ref(Struct, frozen=True, gc=False):
    """Where a claim comes from. `line` counts from 1 in the source as the user has it, 0 is the source as a whole;
    `before`/`after` are up to two neighbours."""

    source: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Fact(Struct, frozen=True):
    """A stated value that holds for a whole run: a version, a flag, a memory figure. `process` is the tag, such as `Worker_TP0`."""

    name: str
    value: Scalar
    ref: Ref
    time: float | None = None
    engine: int | None = None
    process: str | None = None


class Event(Struct, frozen=True):
    """Something happened. `values` holds what its line (or record) says about it, keyed by catalogue name."""

    kind: str
    ref: Ref
    values: dict[str, Scalar] = field(default_factory=dict)
    time: float | None = None
    engine: int | None = None
    process: str | None = None


class Bounded(Struct, frozen=True):
    """The first and last `EVENTS_KEPT` events of a kind, in order, and how many there were."""

    first: tuple[Event, ...] = ()
    last: tuple[Event, ...] = ()  # disjoint from `first`; empty while everything fits there
    count: int = 0

    @staticmethod
    def of(*events: Event) -> Bounded:
        result = Bounded()
        for event in events:
            result = result.merge(Bounded((event,), (), 1))
        return result

    def merge(self, other: Bounded) -> Bounded:
        if not self.count:
            return other
        if not other.count:
            return self
        known = self.first + self.last + other.first + other.last
        head = (self.first + other.first)[:EVENTS_KEPT] if self.count == len(self.first) else self.first
        rest = known[len(head) :]
        return Bounded(head, rest[-EVENTS_KEPT:], self.count + other.count)

    @property
    def events(self) -> tuple[Event, ...]:
        return self.first + self.last


class Point(Struct, frozen=True, gc=False):
    """One sampled value with its time and its line."""

    value: float
    time: float
    ref: Ref


class Bucket(Struct, frozen=True, gc=False):
    """All samples of one series that fall in one slot of absolute time.

    `total` is the sum in units of `2**-32`: sums of integers do not depend on the grouping, sums of floats do. Ties between points
    are broken by time, then line, so that a bucket does not depend on the order in which its parts were joined either."""

    min: Point
    max: Point
    first: Point
    last: Point
    total: int
    count: int

    @staticmethod
    def of(point: Point) -> Bucket:
        return Bucket(point, point, point, point, round(point.value * SUM_UNIT), 1)

    @property
    def sum(self) -> float:
        return self.total / SUM_UNIT

    def merge(self, other: Bucket) -> Bucket:
        low, high, first, last = self.min, self.max, self.first, self.last
        if other.min.value < low.value or (other.min.value == low.value and _earlier(other.min, low)):
            low = other.min
        if other.max.value > high.value or (other.max.value == high.value and _earlier(other.max, high)):
            high = other.max
        if other.first.time < first.time or (other.first.time == first.time and _earlier(other.first, first)):
            first = other.first
        if other.last.time > last.time or (other.last.time == last.time and not _earlier(other.last, last)):
            last = other.last
        return Bucket(low, high, first, last, self.total + other.total, self.count + other.count)


def _earlier(a: Point, b: Point) -> bool:
    return (a.time, a.ref.line) < (b.time, b.ref.line)


class Series(Struct, frozen=True):
    """Samples in absolute-time buckets `2**exponent` seconds wide; the width follows from the span, so any grouping gives the same."""

    buckets: dict[int, Bucket] = field(default_factory=dict)  # slot -> bucket, in order of slot
    exponent: int = 0

    @staticmethod
    def of(points: Iterable[Point]) -> Series:
        buckets: dict[int, Bucket] = {}
        newest, ordered = None, True
        for point in points:
            slot = int(point.time // 1)
            one = Bucket(point, point, point, point, round(point.value * SUM_UNIT), 1)
            if slot in buckets:
                buckets[slot] = buckets[slot].merge(one)
                continue
            buckets[slot] = one
            ordered = ordered and (newest is None or slot > newest)
            newest = slot
        return Series(buckets if ordered else dict(sorted(buckets.items())))._narrowed()

    @staticmethod
    def of_columns(times: Sequence[float], columns: Mapping[K, Sequence[float]], ref: Callable[[int], Ref]) -> dict[K, Series]:
        """The series of several values that were sampled at the same times; `ref(i)` is the line of row `i`.

        The same as `of` for each column, but a Point and its Ref are made only where a bucket keeps them."""
        if any(map(gt, times, times[1:])):
            refs = list(map(ref, range(len(times))))
            return {key: Series.of(map(Point, values, times, refs)) for key, values in columns.items()}
        slots = [int(time // 1) for time in times]
        exponent = _exponent(slots[0], slots[-1])
        slots = [slot >> exponent for slot in slots]
        if len(set(slots)) == len(slots):  # each has a bucket of its own
            refs = list(map(ref, range(len(times))))
            return {key: Series(_single(slots, list(map(Point, values, times, refs))), exponent) for key, values in columns.items()}
        lines: dict[int, Ref] = {}

        def point(row: int, value: float) -> Point:
            line = lines.get(row)
            if line is None:
                line = lines[row] = ref(row)
            return Point(value, times[row], line)

        starts = [row for row, slot in enumerate(slots) if not row or slot != slots[row - 1]]
        ends = [*starts[1:], len(slots)]
        result = {}
        for key, values in columns.items():
            buckets: dict[int, Bucket] = {}
            for start, end in zip(starts, ends, strict=True):
                if end - start == 1:
                    value = values[start]
                    only = point(start, value)
                    buckets[slots[start]] = Bucket(only, only, only, only, round(value * SUM_UNIT), 1)
                    continue
                within = range(start, end)
                low, high = min(within, key=values.__getitem__), max(within, key=values.__getitem__)
                kept = {row: point(row, values[row]) for row in (start, low, high, end - 1)}
                total = sum(round(values[row] * SUM_UNIT) for row in within)
                buckets[slots[start]] = Bucket(kept[low], kept[high], kept[start], kept[end - 1], total, end - start)
            result[key] = Series(buckets, exponent)
        return result

    def merge(self, other: Series) -> Series:
        exponent = max(self.exponent, other.exponent)
        left, right = self._at(exponent).buckets, other._at(exponent).buckets
        buckets = dict(left)
        for slot, bucket in right.items():
            buckets[slot] = buckets[slot].merge(bucket) if slot in buckets else bucket
        ordered = not left or not right or next(iter(right)) >= next(reversed(left))
        return Series(buckets if ordered else dict(sorted(buckets.items())), exponent)._narrowed()

    def _at(self, exponent: int) -> Series:
        if exponent == self.exponent:
            return self
        shift = exponent - self.exponent
        buckets: dict[int, Bucket] = {}
        for slot, bucket in self.buckets.items():
            wide = slot >> shift
            buckets[wide] = buckets[wide].merge(bucket) if wide in buckets else bucket
        return Series(buckets, exponent)

    def _narrowed(self) -> Series:
        if not self.buckets:
            return self
        return self._at(self.exponent + _exponent(next(iter(self.buckets)), next(reversed(self.buckets))))

    def __reduce__(self) -> tuple[Callable[..., Series], tuple[object, ...]]:
        """As columns while each bucket holds one sample: workers hand over many such series, and most of that is the number of objects."""
        points = [bucket.first for bucket in self.buckets.values()]
        if any(bucket.count > 1 for bucket in self.buckets.values()):
            return Series, (self.buckets, self.exponent)
        return _from_columns, (list(self.buckets), [p.value for p in points], [p.time for p in points], [p.ref for p in points], self.exponent)

    @property
    def width(self) -> int:
        """Seconds per bucket."""
        return 1 << self.exponent

    def points(self) -> tuple[Point, ...]:
        """The samples, or where a bucket holds several the ones that shape it (first, extremes, last), in order of time."""
        if all(bucket.count == 1 for bucket in self.buckets.values()):
            return tuple(bucket.first for bucket in self.buckets.values())
        result: list[Point] = []
        for bucket in self.buckets.values():
            if bucket.count == 1:
                result.append(bucket.first)
                continue
            kept = {id(p): p for p in (bucket.first, bucket.min, bucket.max, bucket.last)}
            result.extend(sorted(kept.values(), key=lambda p: p.time))
        return tuple(result)

    @property
    def count(self) -> int:
        return sum(bucket.count for bucket in self.buckets.values())


def _single(slots: Iterable[int], points: Sequence[Point]) -> dict[int, Bucket]:
    """Buckets that hold one point each."""
    totals = (round(point.value * SUM_UNIT) for point in points)
    return dict(zip(slots, map(Bucket, points, points, points, points, totals, repeat(1)), strict=False))


def _from_columns(slots: list[int], values: list[float], times: list[float], refs: list[Ref], exponent: int) -> Series:
    return Series(_single(slots, list(map(Point, values, times, refs))), exponent)


def _exponent(first: int, last: int) -> int:
    """How much wider slots must be for those from `first` to `last` to be few enough."""
    exponent = 0
    while (last >> exponent) - (first >> exponent) >= BUCKETS_KEPT:
        exponent += 1
    return exponent


class Count(Struct, frozen=True):
    """How often a kind of line was seen, with the first and the last such line where they were kept."""

    count: int = 0
    first: Ref | None = None
    last: Ref | None = None

    def merge(self, other: Count) -> Count:
        return Count(self.count + other.count, self.first or other.first, other.last or self.last)


class Issue(Struct, frozen=True):
    """A located problem with an input, or an assumption that was made. `code` is stable; `message` is a catalogue text in English
    with `{names}`, filled from `values` when the report is written."""

    code: str
    message: str
    values: dict[str, Scalar] = field(default_factory=dict)
    ref: Ref | None = None


class Part(Struct, frozen=True):
    """What a stretch of one stream says, from a server's banner (`begins` names it) to the next one.

    `assemble` joins parts into runs: one start of a server prints several banners.
    """

    begins: str | None = None  # "api" (version or args line of the front end), "engine" (engine initialisation), None (no banner seen)
    begins_process: str | None = None
    begins_pid: int | None = None
    lines: int = 0
    first_time: float | None = None
    last_time: float | None = None
    facts: tuple[Fact, ...] = ()
    events: dict[str, Bounded] = field(default_factory=dict)
    series: dict[tuple[str, int], Series] = field(default_factory=dict)  # (sample name, engine index)
    counts: dict[str, Count] = field(default_factory=dict)

    def merge(self, other: Part) -> Part:
        """`other` continues `self`."""
        times = [t for t in (self.first_time, other.first_time) if t is not None]
        ends = [t for t in (self.last_time, other.last_time) if t is not None]
        return Part(
            begins=self.begins,
            begins_process=self.begins_process,
            begins_pid=self.begins_pid,
            lines=self.lines + other.lines,
            first_time=times[0] if times else None,
            last_time=ends[-1] if ends else None,
            facts=_distinct(self.facts + other.facts),
            events=_joined(self.events, other.events),
            series=_joined(self.series, other.series),
            counts=_joined(self.counts, other.counts),
        )


class StreamTally(Struct, frozen=True):
    """The fold of a stream: its parts in order, and what was wrong with it. Line numbers in Refs count on from `first`, the number of the
    block's first line; `merge` moves them where the blocks do not follow on each other.

    `head` and `tail` are the stream's first and last lines and `last_time` the last stamp in it: what the neighbouring block needs
    to complete the context of its outermost Refs and the time of its unstamped lines."""

    parts: tuple[Part, ...] = ()
    parts_seen: int = 0
    lines: int = 0
    first: int = 1
    issues: tuple[Issue, ...] = ()
    head: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    last_time: float | None = None

    def merge(self, other: StreamTally) -> StreamTally:
        if not self.lines:
            return other
        if not other.lines:
            return self
        moved = other._continuing(self.tail, self.last_time).moved(self.first + self.lines - other.first)
        mine = self._followed_by(other.head).parts
        parts, seen = mine + moved.parts, self.parts_seen + moved.parts_seen
        if mine and moved.parts and moved.parts[0].begins is None:
            parts = (*mine[:-1], mine[-1].merge(moved.parts[0]), *moved.parts[1:])
            seen -= 1
        if len(parts) > 2 * PARTS_KEPT:
            parts = parts[:PARTS_KEPT] + parts[-PARTS_KEPT:]
        return StreamTally(
            parts=parts,
            parts_seen=seen,
            lines=self.lines + moved.lines,
            first=self.first,
            issues=(self.issues + moved.issues)[:EVENTS_KEPT],
            head=(self.head + other.head)[:CONTEXT],
            tail=(self.tail + other.tail)[-CONTEXT:],
            last_time=self.last_time if other.last_time is None else other.last_time,
        )

    def _continuing(self, before: tuple[str, ...], time: float | None) -> StreamTally:
        """The same tally after lines that end with `before`, the last stamp among them being `time`."""

        def ref(old: Ref) -> Ref:
            gap = CONTEXT - len(old.before)
            return structs.replace(old, before=before[-gap:] + old.before) if gap > 0 and old.line < self.first + CONTEXT else old

        return structs.replace(self, parts=tuple(_told(p, ref, time) for p in self.parts))

    def _followed_by(self, after: tuple[str, ...]) -> StreamTally:
        """The same tally before lines that start with `after`."""

        def ref(old: Ref) -> Ref:
            gap = CONTEXT - len(old.after)
            return structs.replace(old, after=old.after + after[:gap]) if gap > 0 and old.line >= self.first + self.lines - CONTEXT else old

        return structs.replace(self, parts=self.parts[:-CONTEXT] + tuple(_told(p, ref, None) for p in self.parts[-CONTEXT:]))

    def moved(self, lines: int) -> StreamTally:
        """The same tally where the block starts `lines` lines further down."""
        if not lines:
            return self
        return structs.replace(
            self,
            first=self.first + lines,
            parts=tuple(_moved_part(p, lines) for p in self.parts),
            issues=tuple(_moved_issue(i, lines) for i in self.issues),
        )


class Scrape(Struct, frozen=True):
    """One reading of a Prometheus endpoint, in vLLM's present names. Keys are (name, engine index).

    `buckets` maps upper bound -> cumulative count. Seconds, tokens and ratios as vLLM exports them."""

    source: str
    time: float | None = None
    order: int = 0
    gauges: dict[tuple[str, int], float] = field(default_factory=dict)
    counters: dict[tuple[str, int], float] = field(default_factory=dict)
    histograms: dict[tuple[str, int], Histogram] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)  # labels of vllm:cache_config_info and the like
    refs: dict[str, Ref] = field(default_factory=dict)  # name -> the line it was read from
    families: int = 0


class Histogram(Struct, frozen=True):
    """A cumulative Prometheus histogram: `buckets` are (upper bound, cumulative count), ascending, the last bound infinite."""

    buckets: tuple[tuple[float, float], ...] = ()
    sum: float = 0.0
    count: float = 0.0


class GpuProcess(Struct, frozen=True):
    """A row of nvidia-smi's process box. `bytes` is None where the driver prints N/A."""

    pid: int | None
    name: str
    bytes: int | None
    ref: Ref


class Gpu(Struct, frozen=True):
    """One device as a GPU tool shows it. Ratios are 0-1, memory in bytes."""

    index: int
    name: str | None
    ref: Ref
    total_bytes: int | None = None
    used_bytes: int | None = None
    utilization: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    processes_listed: bool = False
    time: float | None = None


class SocketQueue(Struct, frozen=True):
    """A connection of `ss -tn`. `received` waits for the local process, `sent` for the peer; both in bytes."""

    state: str
    received: int
    sent: int
    local: str
    peer: str
    ref: Ref


class Launch(Struct, frozen=True):
    """A launch command or its equivalent, as flags in vLLM's long spelling (`--max-num-seqs` -> "64"). `text` is the command as it was
    written, in its own lines and quotes, without a prompt before it; empty where it stands in the middle of other text. `variables` is the
    section of a compose or Kubernetes file that sets the container's environment, as it was written."""

    command: str
    flags: dict[str, Scalar]
    environment: dict[str, str]
    model: str | None
    ref: Ref
    text: str = ""
    variables: str = ""


class Clock(Struct, frozen=True):
    """What is known of a stream's clock. `year` completes stamps without one; `first_month` is where a log over New Year starts."""

    year: int
    year_known: bool = False
    first_month: int = 1
    utc_offset: float | None = None  # seconds east of UTC; None = unknown


def _distinct(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """First statement of each (name, value, engine, process): workers repeat themselves."""
    seen: dict[tuple[str, Scalar, int | None, str | None], Fact] = {}
    for fact in facts:
        seen.setdefault((fact.name, fact.value, fact.engine, fact.process), fact)
    return tuple(seen.values())[:FACTS_KEPT]


M = TypeVar("M", Bounded, Series, Count)


def _joined(left: Mapping[K, M], right: Mapping[K, M]) -> dict[K, M]:
    result = dict(left)
    for key, value in right.items():
        result[key] = result[key].merge(value) if key in result else value
    return result


def _moved(ref: Ref, lines: int) -> Ref:
    return structs.replace(ref, line=ref.line + lines)


def _moved_issue(issue: Issue, lines: int) -> Issue:
    return structs.replace(issue, ref=_moved(issue.ref, lines)) if issue.ref else issue


def _told(part: Part, ref: Callable[[Ref], Ref], time: float | None) -> Part:
    """The part with the Refs of its facts and events completed, and `time` where they have none."""

    def fact(old: Fact) -> Fact:
        new, at = ref(old.ref), time if old.time is None else old.time
        return old if new is old.ref and at == old.time else structs.replace(old, ref=new, time=at)

    def event(old: Event) -> Event:
        new, at = ref(old.ref), time if old.time is None else old.time
        return old if new is old.ref and at == old.time else structs.replace(old, ref=new, time=at)

    return structs.replace(
        part,
        facts=tuple(map(fact, part.facts)),
        events={k: Bounded(tuple(map(event, b.first)), tuple(map(event, b.last)), b.count) for k, b in part.events.items()},
    )


def _moved_part(part: Part, lines: int) -> Part:
    memo: dict[int, Ref] = {}

    def ref(old: Ref) -> Ref:
        new = memo.get(id(old))
        if new is None:
            new = memo[id(old)] = Ref(old.source, old.line + lines, old.text, old.before, old.after)
        return new

    def point(old: Point) -> Point:
        return Point(old.value, old.time, ref(old.ref))

    def bucket(old: Bucket) -> Bucket:
        if old.count == 1:
            new = Point(old.min.value, old.min.time, ref(old.min.ref))
            return Bucket(new, new, new, new, old.total, 1)
        return Bucket(point(old.min), point(old.max), point(old.first), point(old.last), old.total, old.count)

    def event(old: Event) -> Event:
        return structs.replace(old, ref=ref(old.ref))

    return structs.replace(
        part,
        facts=tuple(structs.replace(f, ref=ref(f.ref)) for f in part.facts),
        events={k: Bounded(tuple(map(event, b.first)), tuple(map(event, b.last)), b.count) for k, b in part.events.items()},
        series={k: Series({s: bucket(b) for s, b in v.buckets.items()}, v.exponent) for k, v in part.series.items()},
        counts={k: Count(c.count, ref(c.first) if c.first else None, ref(c.last) if c.last else None) for k, c in part.counts.items()},
    )
