"""Would a server whose start failed come up after a change? Its KV cache must hold one request of max-model-len.

Asked twice: at the cautious end, where every range is at its worse end, every printed figure may be rounded up and a card has the least that
is known of its kind, and as expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from ..model.judgement import Outlook
from .figures import PRINTED_GIB, Figures
from .levers import LEVERS
from .moves import Move
from .resize import held, moved_ends, sizes_memory

FAILED_START = {"startup-kv-too-small", "profile-oom", "startup-weights-too-large"}
"""Causes that are cured by a server that starts, and by nothing less."""


def outlook(f: Figures, moves: Sequence[Move]) -> Outlook | None:
    """`starts` where it does at the cautious end, too; `may-start` where it does as expected only; `has-room` where the pool is no longer empty
    and nothing says how much of it one request takes; `fails`. None where the figures do not say, or where it would start as it is: then they do
    not show what failed."""
    found = shares(f, moves)
    if found is None:
        return "has-room" if _has_room(f, moves) else None
    if f.servers and not (f.kv_tokens or f.kv_rest is not None or f.no_pool) and all((_held(end, ()) or 0.0) >= 1 for end in moved_ends(f, ())[::3]):
        return None
    cautious, expected = found
    return "starts" if cautious >= 1 else "may-start" if expected >= 1 else "fails"


def _has_room(f: Figures, moves: Sequence[Move]) -> bool:
    """Does a larger share of the card make up for what the log says was lacking?"""
    to = next((m.number for m in moves if m.lever == "--gpu-memory-utilization"), None)
    total = f.total_least or f.total
    if to is None or f.utilization is None or total is None or f.kv_rest is None or f.kv_rest > 0 or f.bytes_per_token:
        return False
    return f.kv_rest - PRINTED_GIB + (to - f.utilization) * total > 0


def shares(f: Figures, moves: Sequence[Move]) -> tuple[float, float] | None:
    """How many requests of the longest allowed length fit after the changes, below one the share of one: at the cautious end, and as expected."""
    if not f.max_len and not f.servers:
        return None
    if f.servers and sizes_memory(moves):
        cautious = [_held(end, moves) for end in moved_ends(_cautious(f), moves)]
        expected = [_held(end, moves) for end in moved_ends(f, moves)[1::3]]
    else:
        worse = better = f
        worse = _cautious(worse)
        known = False
        for move in moves:
            lever = LEVERS.get(move.lever)
            if lever is not None and (move.to is not None or move.remove):
                worse, better, known = lever(worse, move)[0], lever(better, move)[1], True
        if not known:
            return None
        cautious, expected = [_held(worse, moves)], [_held(better, moves)]
    told = [x for x in (*cautious, *expected) if x is not None]
    if len(told) < len(cautious) + len(expected):
        return None
    return min(x for x in cautious if x is not None), min(x for x in expected if x is not None)


def _held(f: Figures, moves: Sequence[Move]) -> float | None:
    """Requests of the longest length in the pool of these figures; slots have no part in it."""
    length = next((m.number for m in moves if m.lever == "--max-model-len" and m.number), f.max_len)
    if length is None or f.kv_tokens is None:
        return None
    return 0.0 if f.kv_tokens <= 0 else held(f, length)


def _cautious(f: Figures) -> Figures:
    """The figures as bad as they can be behind what is printed: less of the card, less left for the pool. A pool that is printed in tokens is
    exact."""
    least = f.total_least
    servers = f.servers
    if least is not None and f.total is not None and least < f.total:
        servers = tuple(structs.replace(s, setup=structs.replace(s.setup, total_bytes=min(s.setup.total_bytes, int(least)))) for s in servers)
    rest = f.kv_rest
    if f.kv_tokens:
        rest = None if servers else rest
    elif rest is not None:
        rest -= PRINTED_GIB
    tokens = f.kv_tokens if f.kv_tokens_least is None else f.kv_tokens_least
    if f.kv_tokens_least is not None and rest is not None:
        rest -= PRINTED_GIB
    return structs.replace(f, servers=servers, kv_rest=rest, kv_tokens=tokens, total=f.total if least is None else min(least, f.total or least))


def first_that_starts(f: Figures, lever: str, candidates: Iterable[float]) -> float | None:
    """The first value with which the server starts at the cautious end; where there is none, the first with which it does as expected."""
    perhaps = None
    for to in candidates:
        found = outlook(f, (Move(lever, to),))
        if found == "starts":
            return to
        if found == "may-start" and perhaps is None:
            perhaps = to
    return perhaps
