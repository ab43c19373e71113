"""Where a log may be cut: at the start of a record, never inside a traceback. Blocks cut there fold and merge like the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from . import lines, tracebacks

BLOCK = 16 * 2**20
"""Bytes folded at once: large enough that merging costs little, small enough for 200 MB in all."""
WINDOW = tracebacks.MAX_BYTES
"""Bytes before a cut in which a traceback that is still open is looked for."""
REACH = 256 * 1024
"""Bytes after the wanted place in which a record boundary is looked for; beyond, any line start serves."""


def boundary(data: bytes, position: int) -> int:
    """The first record boundary at or after `position`; `len(data)` if there is none.

    A boundary is the start of a line with a level, whose message is not indented, after a line that is not indented either, and
    not between the first and the last line of a traceback.
    """
    size = len(data)
    if position <= 0:
        return 0
    at = data.find(b"\n", position - 1) + 1
    limit = min(size, position + REACH)
    while 0 < at < limit:
        if _starts_record(data, at):
            end = _open_traceback(data, at)
            if end is None:
                return at
            at = end
        at = data.find(b"\n", at) + 1
    if 0 < at < size:
        return at
    return size


def _starts_record(data: bytes, at: int) -> bool:
    end = data.find(b"\n", at, at + 400)
    text = lines.text_of(data[at : end if end >= 0 else at + 400])
    head = lines.head(text)
    if head.level is None or text[head.start : head.start + 1] in (" ", "\t", "") or text.startswith("Traceback (most", head.start):
        return False
    before = data.rfind(b"\n", 0, at - 1) + 1
    text = lines.text_of(data[before : min(at - 1, before + 400)])
    return text[lines.head(text).start :][:1] not in (" ", "\t")


def _open_traceback(data: bytes, at: int) -> int | None:
    """The offset of the exception line of a traceback that starts before `at` and ends at or behind it."""
    header = data.rfind(tracebacks.HEADER, max(0, at - WINDOW), at)
    last: int | None = None
    while header >= 0:
        found = tracebacks.follow(data, header)
        if found is not None and found.raised_at >= at:
            last = max(last or 0, found.raised_at)
        header = data.rfind(tracebacks.HEADER, max(0, at - WINDOW), header)
    return last


def cuts(data: bytes, size: int = BLOCK) -> list[int]:
    """Offsets that divide `data` into blocks of about `size` bytes: 0 first, the length last."""
    result = [0]
    while result[-1] < len(data):
        result.append(boundary(data, result[-1] + size))
    return result


def blocks(chunks: Iterable[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """Chunks of a stream, of any length, as blocks cut at record boundaries."""
    held: list[bytes] = []
    length, wanted = 0, size + REACH + WINDOW
    for chunk in chunks:
        held.append(chunk)
        length += len(chunk)
        while length >= wanted:
            tail: list[bytes] = []
            behind = 0
            while behind < length - size + WINDOW and held:  # only the neighbourhood of the cut is looked at
                tail.append(held.pop())
                behind += len(tail[-1])
            data = b"".join(reversed(tail))
            at = boundary(data, max(size - (length - behind), 1))
            yield b"".join([*held, data[:at]])
            held, length = [data[at:]], behind - at
    data = b"".join(held)
    yield from (data[start:end] for start, end in pairwise(cuts(data, size)))
