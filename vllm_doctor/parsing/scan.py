"""Finds literals in raw bytes."""

from __future__ import annotations

import re
from collections.abc import Callable

Hits = list[tuple[int, int]]
"""(offset, index of the literal), in order of offset."""


def scanner(literals: list[bytes]) -> Callable[[bytes], Hits]:
    """A function that finds every occurrence of every literal, overlapping ones included."""
    try:
        import hyperscan
    except ImportError:
        return _with_re(literals)
    database = hyperscan.Database()
    database.compile(expressions=[_escaped(text) for text in literals], ids=list(range(len(literals))), elements=len(literals), flags=0)
    lengths = [len(text) for text in literals]

    def find(data: bytes) -> Hits:
        hits: Hits = []

        def seen(index: int, start: int, end: int, flags: int, context: object) -> None:
            hits.append((end - lengths[index], index))

        database.scan(data, match_event_handler=seen)
        hits.sort()
        return hits

    return find


def _escaped(text: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in text)


def _with_re(literals: list[bytes]) -> Callable[[bytes], Hits]:
    """The same with the standard library: an alternation finds a line that matters, `in` the literals of that line."""
    pattern = re.compile(b"|".join(re.escape(text) for text in sorted(literals, key=len, reverse=True)))

    def find(data: bytes) -> Hits:
        hits: Hits = []
        position = 0
        while (found := pattern.search(data, position)) is not None:
            begin = data.rfind(b"\n", 0, found.start()) + 1
            end = data.find(b"\n", found.end())
            end = len(data) if end < 0 else end
            line = data[begin:end]
            for index, text in enumerate(literals):
                at = line.find(text)
                while at >= 0:
                    hits.append((begin + at, index))
                    at = line.find(text, at + 1)
            position = end
        hits.sort()
        return hits

    return find
