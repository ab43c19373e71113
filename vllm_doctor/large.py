"""Sources too large to be held: cut into blocks, folded one after the other, in worker processes where that pays.

Nothing of a block stays but its tallies, so memory does not grow with the source. A plain file is cut without being read: every
process reads its own share of it, and the tallies merge in order.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field, structs

from .model.observations import Clock, Issue, Scalar, StreamTally
from .parsing import blocks, framing, wrappers
from .parsing.clocks import clock
from .parsing.log import fold
from .parsing.streams import streams, wrappers_of
from .ruleset.schema import Format

if TYPE_CHECKING:
    from .sources import Source

SHARE = 64 * 2**20
"""Least bytes that a worker folds before it hands its tallies over."""
SHARES = 2
"""Shares of a worker: the fewer, the less is handed over; with several, no worker is waited for long."""
PARALLEL_FROM = 256 * 2**20
"""Bytes from which on workers repay their start."""
WORKERS = 8
"""More of them would wait for the one process that merges."""
EDGE = 64 * 1024
"""Bytes at both ends of a file whose stamps tell its year."""

Progress = Callable[[str, int, int], None]


class Folded(Struct):
    """What a source, or a share of one, holds. `zones` are seconds east of UTC; both maps are keyed by the origin of a stream."""

    kind: framing.Kind = "empty"
    tallies: dict[str, StreamTally] = field(default_factory=dict)
    zones: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    size: int = 0


class _Way(Struct):
    """How the blocks of a source are read: its first block decides. `clocks` grows where an origin appears later."""

    hint: float | None
    wrappers: tuple[str, ...]
    clocks: dict[str, Clock]


def read(source: Source, hint: float | None, formats: list[Format], issues: list[Issue], progress: Progress | None = None) -> Folded:
    """Folds a source. `hint` is the Unix time near which its last stamp should lie. A source of another kind than a log is not read:
    that is an issue, like anything that keeps the source from being read to its end."""
    result = Folded()
    way: _Way | None = None
    for block in _blocks(source, 0, source.size, issues) if source.plain else blocks.blocks(source.blocks(issues)):
        if way is None:
            result.kind = framing.sniff(block[: framing.SNIFFED])
            if result.kind == "empty" and b"\n" not in block:  # a hole; whether anything follows shows where reading ends
                result.kind = "binary"
                result.size += len(block)
                continue
            if result.kind not in ("server_log", "kernel", "prose"):
                issues.append(Issue("large-input", "{name} is too large to be read as {kind}.", {"name": source.name, "kind": result.kind}))
                result.size = len(block)
                return result
            way = _way(source, block, hint)
            if _in_workers(source, way, formats, result, issues, progress):
                break
        _add(result, source.name, block, way, formats)
        if progress:
            progress(source.name, result.size, max(result.size, source.size))
    return result


def _way(source: Source, block: bytes, hint: float | None) -> _Way:
    wrapping = tuple(w.name for w in wrappers_of(block))
    known = {}
    if not wrapping and source.plain:
        with suppress(OSError):  # the block's own stamps will do
            known[""] = clock(block[:EDGE] + source.part(max(0, source.size - EDGE), source.size), hint)
    return _Way(hint, wrapping, known)


def _add(result: Folded, name: str, block: bytes, way: _Way, formats: list[Format]) -> None:
    """Folds one more block."""
    wrapping = tuple(w for w in wrappers.WRAPPERS if w.name in way.wrappers)
    for stream in streams(framing.Segment("server_log", name, result.lines + 1, block), wrapping):
        if stream.origin not in way.clocks:
            way.clocks[stream.origin] = clock(stream.data, way.hint)
        so_far = result.tallies.get(stream.origin, StreamTally())
        tally = fold(stream.data, name, way.clocks[stream.origin], formats, stream.lines, stream.stamps, so_far.first + so_far.lines)
        result.tallies[stream.origin] = so_far.merge(tally)
        if stream.utc_offset is not None:
            result.zones[stream.origin] = stream.utc_offset
    whole = None if wrapping else result.tallies.get("")
    result.lines = whole.lines if whole is not None else result.lines + block.count(b"\n")
    result.size += len(block)


def _join(result: Folded, share: Folded) -> None:
    """Adds what was folded of the following share, whose lines count from 1."""
    for origin, tally in share.tallies.items():
        so_far = result.tallies.get(origin, StreamTally())
        moved = structs.replace(tally.moved(result.lines), first=so_far.first + so_far.lines)
        result.tallies[origin] = so_far.merge(moved)
    result.zones.update(share.zones)
    result.lines += share.lines
    result.size += share.size


# plain files


def _boundary(source: Source, position: int) -> int:
    """The first record boundary at or after `position`. Raises OSError."""
    start = max(0, position - blocks.WINDOW)
    around = source.part(start, min(source.size, position + blocks.REACH + blocks.WINDOW))
    at = blocks.boundary(around, position - start)
    return start + at if at < len(around) else source.size


def _blocks(source: Source, start: int, end: int, issues: list[Issue]) -> Iterator[bytes]:
    """The stretch between two boundaries in blocks that end at boundaries. A log that grows is read up to where it ended when found."""
    at = start
    while at < end:
        try:
            after = _boundary(source, at + blocks.BLOCK) if at + blocks.BLOCK < end else end
            block = source.part(at, after)
        except OSError as error:
            values: dict[str, Scalar] = {"name": source.name, "bytes": at, "reason": error.strerror or str(error)}
            issues.append(Issue("source.damaged", "{name} cannot be read any further after {bytes} bytes: {reason}", values))
            return
        if not block:
            return
        yield block
        at = after


def _shares(source: Source, workers: int) -> list[tuple[int, int]]:
    """What the workers get: a few stretches each, between boundaries. Raises OSError."""
    share = max(SHARE, math.ceil(source.size / (SHARES * workers)))
    cuts = [0]
    while cuts[-1] < source.size:
        wanted = cuts[-1] + share
        cuts.append(_boundary(source, wanted) if wanted < source.size else source.size)
    return list(pairwise(cuts))


# worker processes

_FORMATS: list[Format] = []
"""The formats of a worker; its process reads by one set of rules."""


def _begin(formats: list[Format]) -> None:
    _FORMATS[:] = formats


def _fold_share(source: Source, way: _Way, start: int, end: int) -> tuple[Folded, list[Issue]]:
    """In a worker: everything between two boundaries of a file, lines counting from 1."""
    result, issues = Folded(), list[Issue]()
    for block in _blocks(source, start, end, issues):
        _add(result, source.name, block, way, _FORMATS)
    return result, issues


def _in_workers(source: Source, way: _Way, formats: list[Format], result: Folded, issues: list[Issue], progress: Progress | None) -> bool:
    """Folds a large file in worker processes; False where it is too small, there is one core, or no process can be started here."""
    count, context = min(WORKERS, _cores()), _context()
    if not source.plain or source.size < PARALLEL_FROM or count < 2 or context is None:
        return False
    import multiprocessing
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

    whole, found = Folded(kind=result.kind), list[Issue]()
    try:
        with ProcessPoolExecutor(count, multiprocessing.get_context(context), _begin, (formats,)) as pool:
            for share, more in pool.map(_fold_share, *zip(*((source, way, a, b) for a, b in _shares(source, count)), strict=True)):
                _join(whole, share)
                found += more
                if progress:
                    progress(source.name, whole.size, max(whole.size, source.size))
    except (OSError, BrokenExecutor):  # no more processes, no shared memory, a worker that was killed
        return False
    result.tallies, result.zones, result.lines, result.size = whole.tallies, whole.zones, whole.lines, whole.size
    issues += found
    return True


def _context() -> str | None:
    """How processes are started: by fork, which is quick, where nothing but this thread runs; else anew, which runs the main module once
    more and so is done for our own command only."""
    if sys.platform == "linux" and threading.active_count() == 1:
        return "fork"
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return "spawn" if Path(main).stem in ("vllm-doctor", "__main__") else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
