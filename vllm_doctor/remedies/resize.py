"""A change that the memory model has a word for: the server is sized before and after it, and what the log measured moves by the difference.

A measured part is scaled by what the model predicts for it (weights over two GPUs are half of the measured ones), an unmeasured one moves by
the predicted difference. The low, the expected and the high end of the model are taken through both sizings, so that an error that both
share drops out; so are both ends of the versions that a run of unknown version can have. Without a change nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct, structs

from ..capacity.defaults import limits_of
from ..capacity.kv import pool_of, printed
from ..capacity.setup import PARTS, Part, Setup
from ..capacity.size import requests_that_fit, size, whole_requests
from .figures import Figures
from .moves import Move
from .servers import OPTIONS, Server, Sized, after, sized

ROUGH: frozenset[Part] = frozenset({"non_torch", "graphs"})
"""Parts of which the model has a rule of thumb only."""
ROUGH_SHARE = 0.2
"""A pool that owes more of its change to those is told as a rule of thumb (heuristic)."""


class Resized(Struct, frozen=True):
    """The pessimistic and the optimistic figures after the changes. `rough`: the change rests on rules of thumb."""

    low: Figures
    high: Figures
    rough: bool


def sizes_memory(moves: Sequence[Move]) -> bool:
    """Does one of the changes bear on how memory is laid out?"""
    return any(m.lever in OPTIONS for m in moves)


def resized(f: Figures, moves: Sequence[Move]) -> Resized | None:
    """The figures after the changes, or None where the model does not know the server, or has no word for any of the changes."""
    return through_model(f, moves) if f.servers and sizes_memory(moves) else None


def through_model(f: Figures, moves: Sequence[Move]) -> Resized:
    """As `resized`, of a server that the model knows. Without changes: what the model expects of what was not measured."""
    found = _ends(f, moves)
    ordered = sorted(found, key=lambda r: (r[0].kv_tokens if r[0].kv_tokens is not None else -math.inf, r[0].headroom or 0.0))
    rough = any(bad > ROUGH_SHARE * all_ for _, bad, all_ in found if all_)
    return Resized(ordered[0][0], ordered[-1][0], rough)


def moved_ends(f: Figures, moves: Sequence[Move]) -> list[Figures]:
    """The figures after the changes at the low, the expected and the high end of the model, for each of the servers."""
    return [figures for figures, _, _ in _ends(f, moves)]


def _ends(f: Figures, moves: Sequence[Move]) -> list[tuple[Figures, float, float]]:
    found: list[tuple[Figures, float, float]] = []
    for server in f.servers:
        changed = after(server, tuple(moves))
        before_, after_ = sized(server), sized(changed)
        found += [_moved(f, server, changed, before_, after_, end) for end in (0, 1, 2)]
    return found


def _moved(f: Figures, server: Server, changed: Server, b: Sized, a: Sized, end: int) -> tuple[Figures, float, float]:
    """The figures at one end of the model, and how many bytes of the change are of rough parts, and of all."""
    measured: dict[Part, float | None] = {"weights": f.weights, "activation": f.activation, "non_torch": f.non_torch, "graphs": f.graphs}
    offloaded = float(changed.setup.cpu_offload_bytes - server.setup.cpu_offload_bytes)
    shift: dict[Part, float] = {}
    for part in PARTS:
        was, is_ = b.parts[part][end], a.parts[part][end]
        own = measured[part]
        if part == "weights":  # what goes to the host is taken off, not scaled
            was, is_ = was + server.setup.cpu_offload_bytes, is_ + changed.setup.cpu_offload_bytes
            shift[part] = (is_ - was if own is None or not was else own * (is_ / was - 1)) - offloaded
        else:
            shift[part] = is_ - was if own is None or not was else own * (is_ / was - 1)
    charge = sum(shift[p] for p in PARTS if p != "graphs") + _graphs_charged(f, a, end, shift) - _graphs_charged(f, b, end, None)
    pool = _pool(f, server, b, end)
    beyond = 0.0  # what a part that was not measured cannot free, however much the model expects of it
    if changed.setup.kv_cache_memory_bytes is not None:
        new: float | None = float(changed.setup.kv_cache_memory_bytes)
    elif server.setup.kv_cache_memory_bytes is not None:
        new = _by_budget(f, a, end)  # the budget decides again
    elif f.kv_rest is None and not f.kv_tokens and not f.no_pool and not server.setup.kv_cache_memory_bytes:
        new = _by_budget(f, a, end, shift)  # nothing is known of the pool but what the model expects
    else:
        more = a.budget.budget - b.budget.budget - charge - (changed.frontend_bytes - server.frontend_bytes)
        new = None if pool is None else pool + more
        if new is not None and pool is not None and new > pool:
            most = max(pool, _most(f, b, a, pool, shift))
            beyond = max(0.0, new - most)
            new = min(new, most)
    tokens = _tokens(f, server, changed, pool, new)
    gone = sum(shift.values()) + (0.0 if new is None or pool is None else new - pool) + beyond
    if f.never_pool:
        gone = shift["weights"] + shift["non_torch"]  # no pool had been made that could take what comes free
    was, is_ = b.budget.kv_bytes_per_token, a.budget.kv_bytes_per_token
    each = None if f.bytes_per_token is None or not was else f.bytes_per_token * (is_ / was)
    moved = structs.replace(
        f,
        servers=(changed,),
        weights=None if f.weights is None else max(0.0, f.weights + shift["weights"]),
        activation=None if f.activation is None else max(0.0, f.activation + shift["activation"]),
        graphs=None if f.graphs is None else max(0.0, f.graphs + shift["graphs"]),
        kv_bytes=new if new is None or new > 0 else None,
        kv_tokens=tokens,
        bytes_per_token=each,
        block_size=_block(f, server.setup, changed.setup),
        fixed_pool=bool(changed.setup.num_gpu_blocks_override),
        headroom=None if f.headroom is None or new is None else f.headroom - gone,
        oom_free=None if f.oom_free is None or new is None else f.oom_free - gone,
    )
    known = {p for p in ROUGH if not a.parts[p][end] and (measured[p] is not None or (p == "graphs" and f.graphs_charged is not None))}
    return (
        moved,
        sum(abs(v) for p, v in shift.items() if p in ROUGH - known),
        sum(abs(v) for v in shift.values()) + abs(a.budget.budget - b.budget.budget),
    )


def _most(f: Figures, b: Sized, a: Sized, pool: float, shift: dict[Part, float]) -> float:
    """What the budget can leave at most after the change: all but the parts that were measured, as they then are, and the least that the model
    gives to the others. Where the budget before had no room for those least sizes, they are as much smaller."""
    measured: dict[Part, float | None] = {"weights": f.weights, "activation": f.activation, "non_torch": f.non_torch, "graphs": f.graphs_charged}
    own = [p for p in PARTS if p in b.charged and measured[p] is not None]
    spent = sum(measured[p] or 0.0 for p in own)
    least = sum(b.parts[p][0] for p in PARTS if p in b.charged and p not in own)
    scale = min(1.0, max(0.0, b.budget.budget - spent - pool) / least) if least else 1.0
    taken = sum(max(0.0, (measured[p] or 0.0) + (shift[p] if p != "graphs" else 0.0)) for p in own if p in a.charged)
    return a.budget.budget - taken - scale * sum(a.parts[p][0] for p in PARTS if p in a.charged and p not in own)


def _graphs_charged(f: Figures, s: Sized, end: int, shift: dict[Part, float] | None) -> float:
    """What the graphs take of the budget: the estimate that the log prints, scaled where it changes."""
    if "graphs" not in s.charged:
        return 0.0
    stated = f.graphs_charged
    if stated is None:
        return s.parts["graphs"][end]
    if shift is None or not f.graphs:
        return stated
    return max(0.0, stated * (1 + shift["graphs"] / f.graphs))


def _pool(f: Figures, server: Server, b: Sized, end: int) -> float | None:
    """Bytes of the pool before: measured, by its tokens, or as the model expects them. Zero and below: the start failed."""
    if f.kv_rest is not None and (not f.kv_tokens or tokens_of(f.kv_rest, b.setup) > 0):
        return f.kv_rest  # one that holds no block, under tokens that were printed, is a rounded or a misread figure
    if f.kv_tokens and not f.fixed_pool:
        own = tokens_of(float(2**40), b.setup)
        return f.kv_tokens * 2**40 / own if own else None
    if server.setup.kv_cache_memory_bytes:
        return float(server.setup.kv_cache_memory_bytes)
    rest = _by_budget(f, b, end)
    return min(rest, 0.0) if f.no_pool else rest


def _by_budget(f: Figures, s: Sized, end: int, shift: dict[Part, float] | None = None) -> float:
    """What the budget leaves by the model, with the measured parts as they are, or as they are after the change."""
    measured: dict[Part, float | None] = {"weights": f.weights, "activation": f.activation, "non_torch": f.non_torch, "graphs": f.graphs_charged}
    taken = 0.0
    for part in PARTS:
        if part in s.charged:
            own = measured[part]
            moved = 0.0 if shift is None or part == "graphs" else shift[part]
            taken += s.parts[part][2 - end] if own is None else max(0.0, own + moved)
    return s.budget.budget - taken


def tokens_of(kv: float, setup: Setup) -> float:
    """Tokens in a pool of so many bytes: by whole blocks, as this version counts them where layers come in groups."""
    limits = limits_of(setup)
    pool = pool_of(setup, limits)
    blocks = math.floor(kv / pool.block_bytes) if kv > 0 and pool.block_bytes > 0 else 0
    if pool.grouped:
        return float(printed(blocks, setup, limits, pool)[0])
    return float(blocks * pool.block_size * setup.decode_context_parallel_size)


def _tokens(f: Figures, server: Server, changed: Server, pool: float | None, new: float | None) -> float | None:
    forced, still = server.setup.num_gpu_blocks_override, changed.setup.num_gpu_blocks_override
    if still:
        if still == forced or not f.kv_tokens or not forced:
            return f.kv_tokens if still == forced else None
        return f.kv_tokens * still / forced
    if forced and f.pool_by_budget is not None:
        return f.pool_by_budget
    if new is None or (f.kv_tokens is not None and new == pool and changed.setup == server.setup):
        return None if new is None else f.kv_tokens
    tokens = tokens_of(new, changed.setup)
    if forced or f.kv_tokens is None or pool is None or pool <= 0:
        return tokens
    own = tokens_of(pool, server.setup)
    return f.kv_tokens * (tokens / own) if own else tokens


def _block(f: Figures, before: Setup, now: Setup) -> float | None:
    """Tokens that are handed out at once: a block on each GPU that shares the context."""
    if f.block_size is None or (before.block_size, before.decode_context_parallel_size) == (now.block_size, now.decode_context_parallel_size):
        return f.block_size
    own, other = limits_of(before).block_size * before.decode_context_parallel_size, limits_of(now).block_size * now.decode_context_parallel_size
    return f.block_size * other / own


def grouped_fit(f: Figures, tokens: float) -> float | None:
    """Requests of a length in a pool whose layers come in groups (sliding windows, states), where the model knows the server: by blocks of
    every group, in proportion to the tokens that there are. None for a uniform pool."""
    if not f.servers or not f.kv_tokens:
        return None
    setup = f.servers[0].setup
    if not pool_of(setup, limits_of(setup)).grouped:
        return None
    budget = size(setup)
    return requests_that_fit(budget, setup, tokens) * f.kv_tokens / budget.kv_tokens if budget.kv_tokens > 0 else None


def usual(f: Figures) -> float | None:
    """Tokens that a request needs: the median of finished ones, or what running ones held on average if that is more. In an incident the
    short requests are those that finish."""
    return max((x for x in (f.held, f.lengths.get("p50")) if x), default=None)


def held(f: Figures, tokens: float | None) -> float | None:
    """Requests of a length that the pool has blocks for, with its fraction."""
    if not f.kv_tokens or not tokens or f.kv_tokens <= 0 or tokens <= 0:
        return None
    found = grouped_fit(f, tokens)
    return whole_requests(f.kv_tokens, tokens, f.block_size) if found is None else found


def fit(f: Figures, tokens: float | None) -> float | None:
    """Requests of a length that run at once: whole blocks of the pool, and no more than there are slots. Below one, the share that fits: never
    one where it is a little less."""
    found = held(f, tokens)
    if found is None:
        return None
    if f.slots:
        found = min(found, f.slots)
    return float(math.floor(found)) if found >= 1 else min(0.99, round(found, 2))
