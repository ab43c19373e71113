"""Streams: the clean log lines of one origin, with their original line numbers and the times that wrappers knew."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from .framing import Segment
from .lazy import lazy
from .lines import plain
from .wrappers import WRAPPERS, Row, Wrapper, from_record

DEPTH = 6
SAMPLE = 400
"""Lines on which the vote is taken, half from the start and half from the middle."""
EDGE = 1024
FEW = 3
MANY_ORIGINS = 16
CONSTANT_FROM = 5
_BARE = lazy(rb"INFO: {5}|(?:\([A-Za-z]\w* pid=\d+\) )?(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[")
"""Lines as vLLM and uvicorn print them: no wrapper takes anything off these."""


class Stream(Struct, frozen=True):
    """Log lines of one origin without their wrappers. `lines` are the original line numbers (None: they count from the segment's first
    line), `stamps` the wrapper's times on the wrapper's clock (NaN before the first one; None: it has none)."""

    data: bytes
    origin: str = ""
    lines: array[int] | None = None
    stamps: array[float] | None = None
    utc_offset: float | None = None
    wrappers: tuple[str, ...] = ()


def streams(segment: Segment, wrapping: tuple[Wrapper, ...] | None = None) -> list[Stream]:
    """The streams of a segment, one per origin, in order of first appearance.

    Wrappers are found by vote, or given by `wrapping` where an earlier block of the same source has decided. Unwrapped input is
    passed on as it is."""
    found = wrappers_of(segment.data) if wrapping is None else wrapping
    records = _records(segment.data) if not found and segment.data[:EDGE].lstrip()[:1] in (b"[", b"{") else None
    if records is None and not found:
        return [Stream(segment.data)]
    rows = _rows(segment) if records is None else _record_rows(records, segment.first_line)
    for wrapper in found:
        for row in rows:
            wrapper.read(row.text, row)
    return _divided(rows, tuple(w.name for w in found) or ("json-document",))


def _rows(segment: Segment) -> list[Row]:
    texts = segment.data.split(b"\n")
    if texts and not texts[-1]:
        texts.pop()
    return [Row(_bare(text), segment.first_line + at) for at, text in enumerate(texts)]


def _bare(text: bytes) -> bytes:
    text = text.rstrip(b"\r")
    if b"\x1b" in text or b"m" in text[:12]:
        return plain(text.decode("utf-8", "replace")).encode()
    return text


def wrappers_of(data: bytes) -> tuple[Wrapper, ...]:
    """The wrappers around most lines, outermost first."""
    sample = _sample(data)
    if not sample:
        return ()
    rows = [Row(text, at) for at, text in enumerate(sample)]
    found: list[Wrapper] = []
    for _ in range(DEPTH):
        bare = sum(_BARE.match(row.text) is not None for row in rows) / len(rows)
        wrapper = next((w for w in WRAPPERS if w not in found and w.share <= 1 - bare and _accepted(w, rows)), None)
        if wrapper is None:
            break
        found.append(wrapper)
        for row in rows:
            wrapper.read(row.text, row)
    return tuple(found)


def _sample(data: bytes) -> list[bytes]:
    pieces = [data[: 256 * 1024]]
    if len(data) > 512 * 1024:
        middle = data.find(b"\n", len(data) // 2) + 1
        pieces.append(data[middle : middle + 256 * 1024])
    result: list[bytes] = []
    for piece in pieces:
        result += [_bare(t) for t in piece.split(b"\n") if t.strip()][: SAMPLE // len(pieces)]
    return result


def _accepted(wrapper: Wrapper, rows: list[Row]) -> bool:
    origins: Counter[str] = Counter()
    columns: Counter[int] = Counter()
    matched = 0
    for row in rows:
        trial = Row(row.text, row.number)
        if wrapper.read(row.text, trial):
            matched += 1
            origins[trial.origin] += 1
            columns[len(row.text) - len(trial.text)] += 1
    if not matched or matched < wrapper.share * len(rows) or (len(rows) < FEW and matched < len(rows)):
        return False
    if wrapper.constant and (matched < CONSTANT_FROM or len(origins) > MANY_ORIGINS or min(origins.values()) < 2):
        return False
    return not (wrapper.column and (len(columns) > 2 or len(origins) > MANY_ORIGINS))


def _divided(rows: list[Row], names: tuple[str, ...]) -> list[Stream]:
    """Rows by origin. A line without its wrapper goes where the line before it went, at the time of that line."""
    groups: dict[str, list[Row]] = {}
    origin = ""
    for row in rows:
        if row.origin:
            origin = row.origin
        groups.setdefault(origin, []).append(row)
    if len(groups) > 1 and "" in groups:  # what precedes the first tagged line
        first = next(name for name in groups if name)
        groups[first] = sorted([*groups.pop(""), *groups[first]], key=lambda r: r.number)
    return [_stream(name, group, names) for name, group in groups.items()]


def _stream(origin: str, rows: list[Row], names: tuple[str, ...]) -> Stream:
    texts: list[bytes] = []
    numbers, stamps = array("q"), array("d")
    offset = next((row.offset for row in rows if row.offset is not None), None)
    last, continues = math.nan, False
    for row in rows:
        if not math.isnan(row.stamp):
            last = row.stamp if row.offset is None or offset is None else row.stamp + offset - row.offset
        for at, text in enumerate(row.text.split(b"\n")):
            if continues and not at:
                texts[-1] += text
            else:
                texts.append(text)
                numbers.append(row.number)
                stamps.append(last)
        continues = row.open
    stamped = any(not math.isnan(s) for s in stamps)
    data = b"\n".join(texts) + (b"\n" if texts else b"")
    return Stream(data, origin, numbers, stamps if stamped else None, offset, names)


def _records(data: bytes) -> list[dict[str, Any]] | None:
    """The records of one JSON document from a log store, in order of time; None if it is something else."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    found: list[dict[str, Any]] = []
    _collect(document, found, 0)
    return found or None


def _collect(value: Any, found: list[dict[str, Any]], depth: int) -> None:
    if depth > DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            _collect(item, found, depth + 1)
    elif isinstance(value, dict):
        streams_values = value.get("values")
        if isinstance(streams_values, list) and isinstance(value.get("stream"), dict):  # Loki
            found += [{"time": v[0], "message": v[1]} for v in streams_values if isinstance(v, list) and len(v) >= 2 and isinstance(v[1], str)]
        elif from_record(value, Row(b"", 0)):
            found.append(value)
        elif isinstance(value.get("text"), list):  # a notebook's output
            found += [{"message": str(t)} for t in value["text"]]
        else:
            for item in value.values():
                _collect(item, found, depth + 1)


def _record_rows(records: Iterable[dict[str, Any]], line: int) -> list[Row]:
    rows = []
    for record in records:
        row = Row(b"", line)
        from_record(record, row)
        rows.append(row)
    stamps = [row.stamp for row in rows]
    if len(rows) > 1 and not any(map(math.isnan, stamps)) and stamps[0] > stamps[-1]:
        rows.reverse()  # stores export the newest line first
    return rows
