"""Framing: what a source holds, cut into segments of one kind each. Nothing is lost: every line is in exactly one segment."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from . import line_kinds as kinds
from . import lines, sockets

Kind = Literal["server_log", "metrics", "gpu", "launch", "kernel", "sockets", "prose", "empty", "binary"]

MIXED_LIMIT = 8 * 2**20
"""Sources up to this size may be pastes of several things; larger ones are of one kind."""
SNIFFED = 256 * 1024
_SNIFFABLE: tuple[Kind, ...] = ("server_log", "metrics", "gpu", "kernel", "launch", "sockets")
_INVISIBLE = tuple(c.encode() for c in "\u00a0\u200b\u200c\u200d\u2060\ufeff")


class Segment(Struct, frozen=True):
    """A stretch of one source. `first_line` counts from 1; `data` is UTF-8, line ends as they were."""

    kind: Kind
    source: str
    first_line: int
    data: bytes


def segments(name: str, data: bytes) -> list[Segment]:
    """The segments of a source, in order. Never raises; an empty source gives one `empty` segment, a binary one `binary`."""
    if not data.strip(b"\0 \t\r\n\f\v"):
        return [Segment("empty", name, 1, data)]
    text = utf8(data)
    if text is None:
        return [Segment("binary", name, 1, data)]
    if not text.strip():
        return [Segment("empty", name, 1, text)]
    if len(text) > MIXED_LIMIT:
        return [Segment(sniff(text[:SNIFFED]), name, 1, text)]
    rows = _rows(text)
    texts = [lines.text_of(r[:2000]).rstrip("\r\n") for r in rows]
    labels = _filled(_labels(texts), texts)
    result: list[Segment] = []
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or labels[at] != labels[start]:
            result.append(Segment(labels[start], name, start + 1, b"".join(rows[start:at])))
            start = at
    return result


def sniff(head: bytes) -> Kind:
    """The kind of a whole source from its first bytes: what most of its lines are, or a server log if in doubt."""
    if not head.strip(b"\0 \t\r\n\f\v"):
        return "empty"
    text = utf8(head)
    if text is None:
        return "binary"
    labels = _labels([lines.text_of(r[:2000]).rstrip("\r\n") for r in _rows(text)[:2000]])
    count: dict[Kind, int] = {kind: labels.count(kind) for kind in _SNIFFABLE}
    best = max(count, key=lambda kind: count[kind])
    return best if count[best] else "server_log"


_UNSEEN = re.compile(r"[\u200b-\u200d\u2060\ufeff\u00ad]")


def utf8(data: bytes) -> bytes | None:
    """Bytes in UTF-8 without byte order mark and invisible characters, no-break spaces as blanks; None if it is no text."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", "replace").encode()
    elif b"\0" in data[:4096]:
        head = data[:4096]
        odd, even = head[1::2].count(0), head[::2].count(0)
        if odd > len(head) // 4 and even < len(head) // 16:
            data = data.decode("utf-16-le", "replace").encode()
        elif even > len(head) // 4 and odd < len(head) // 16:
            data = data.decode("utf-16-be", "replace").encode()
        elif head.count(0) > len(head) // 10:
            return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    sample = data[:4096]
    strange = sum(sample.count(bytes([c])) for c in (*range(1, 7), *range(14, 27), 28, 29, 30, 31, 127))
    if strange > max(len(sample) // 20, 8):
        return None
    if len(data) <= MIXED_LIMIT and any(sign in data for sign in _INVISIBLE):
        data = _UNSEEN.sub("", data.decode("utf-8", "replace").replace("\u00a0", " ")).encode()
    return data


def _rows(text: bytes) -> list[bytes]:
    rows = [row + b"\n" for row in text.split(b"\n")]
    last = rows.pop()[:-1]
    return [*rows, last] if last else rows


def _labels(texts: list[str]) -> list[Kind | None]:
    """The kind of each line as far as the line itself (or the block it stands in) tells; None for blanks and for plain text."""
    result: list[Kind | None] = [None] * len(texts)
    inside: Kind | None = None
    for at, text in enumerate(texts):
        if not text.strip():
            inside = None if inside == "launch" else inside
            continue
        kind = _label(texts, at, inside)
        result[at] = kind
        inside = kind if kind is not None else (inside if inside == "gpu" and text.startswith(("|", "+", " ")) else None)
    return result


def _label(texts: list[str], at: int, inside: Kind | None) -> Kind | None:
    text = texts[at]
    if inside == "launch" and (texts[at - 1].rstrip().endswith(("\\", "`", "^")) or kinds.LAUNCH_MORE.match(text)):
        return "launch"
    if inside not in ("launch", "sockets") and (text.startswith("INFO:     ") or lines.USUAL.match(text)):
        return "gpu" if kinds.GPU.search(text) else "server_log"
    if kinds.METRICS.match(text):
        return "metrics"
    if sockets.HEADER.match(text) or (inside == "sockets" and sockets.row(text)):
        return "sockets"
    if kinds.LAUNCH.match(text) or kinds.LAUNCH_FILE.match(text):
        return "launch"
    if kinds.GPU.search(text) or (kinds.GPU_TABLE.match(text) and (inside == "gpu" or _near_gpu(texts, at))):
        return "gpu"
    head = lines.head(text)
    if head.level is None and inside == "gpu" and kinds.GPU_ROW.match(text):
        return "gpu"
    if kinds.DATE.match(text) and _near_gpu(texts, at):
        return "gpu"
    if head.level is None and kinds.KERNEL.search(text[:300]):
        return "kernel"
    if head.level is not None or head.process is not None or head.rank or head.stamp is not None:
        return "server_log"
    return "server_log" if kinds.LOG.search(text) or kinds.WRAPPED.match(text) else None


def _near_gpu(texts: list[str], at: int) -> bool:
    return any(kinds.GPU.search(text) for text in texts[at : at + 4])


NEAR = 5
"""Lines of unknown kind between two of the same kind that are taken for a part of it."""


def _filled(labels: list[Kind | None], texts: list[str]) -> list[Kind]:
    """Every line gets a kind. Blank lines go with what precedes them. Plain text after a log line belongs to the log, and so does
    plain text before it where the source is mostly log; between two lines of another kind it belongs to that kind; else it is prose."""
    known = {kind for kind in labels if kind is not None}
    if not known:
        return ["prose"] * len(labels)
    mostly_log = known == {"server_log"} or labels.count("server_log") * 2 >= len(labels)
    result: list[Kind] = []
    last: Kind = "server_log" if mostly_log else "prose"
    for at, (kind, text) in enumerate(zip(labels, texts, strict=True)):
        if kind is not None:
            last = kind
        elif text.strip() and last not in ("server_log", "prose"):
            following = next((k for k in labels[at + 1 : at + 1 + NEAR] if k is not None), None)
            last = last if following == last else "prose"
        result.append(last)
    return result
