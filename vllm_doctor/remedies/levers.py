"""What each change does to the figures of a case, beside what the memory model answers: an option's own limit, steps, queues, clients, and the
pool of a server whose shape or card nobody knows, from the log's own bytes per token.

Step lengths from fixtures/prefill-spike-big-0.32 and fixtures/prefill-spike-small-0.32 (8,192 to 512 tokens: gaps of 5-8 s to 0.5-1 s, up to
twice the proportion).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import structs

from .figures import GIB, Figures
from .moves import Move, number
from .resize import fit, usual

Pair = tuple[Figures, Figures]
"""(pessimistic, optimistic)."""
GRAPHS_LEAST, GRAPHS_MOST = 0.3 * GIB, 3.0 * GIB
"""CUDA graphs on one GPU, as logs of many servers have them (docs/memory-model.md)."""
BUS_LEAST, BUS_MOST = 12e9, 25e9
"""Bytes per second from host memory over PCIe: 4.0 with 8 and 16 lanes, less what protocols take (heuristic)."""


def _alike(change: Callable[[Figures, Move], Figures]) -> Callable[[Figures, Move], Pair]:
    def both(f: Figures, m: Move) -> Pair:
        after = change(f, m)
        return after, after

    return both


def with_pool(f: Figures, more: float) -> Figures:
    """The figures with so many more bytes of KV pool on each GPU; unknown tokens where the log does not give bytes per token. Where the memory
    model knows the server it has moved the pool already."""
    if f.fixed_pool or f.servers:
        return f
    own = f.kv_bytes if f.kv_bytes is not None else f.kv_rest  # what a failed start lacked is made up for first
    if own is None or f.bytes_per_token is None:
        return structs.replace(f, kv_tokens=None, kv_bytes=None)
    size = max(0.0, own + more)
    return structs.replace(f, kv_bytes=size, kv_tokens=size / f.bytes_per_token)


def _utilization(f: Figures, m: Move) -> Figures:
    to = m.number
    if f.servers:
        return structs.replace(f, utilization=to)
    if to is None or f.utilization is None:
        return structs.replace(f, kv_tokens=None if not f.fixed_pool else f.kv_tokens, utilization=to)
    if f.total is None:
        return structs.replace(with_pool(structs.replace(f, kv_bytes=None), 0.0), utilization=to)
    more = (to - f.utilization) * f.total
    free = None if f.oom_free is None else f.oom_free - more
    room = None if f.headroom is None else f.headroom - more
    return structs.replace(with_pool(f, more), utilization=to, oom_free=free, headroom=room)


def _blocks_override(f: Figures, m: Move) -> Figures:
    return structs.replace(f, kv_tokens=f.pool_by_budget, fixed_pool=False) if m.remove and not f.servers else f


def _kv_dtype(f: Figures, m: Move) -> Pair:
    if "8" not in str(m.to) or f.fixed_pool or f.kv_tokens is None or f.servers:
        return f, f
    smaller = None if f.bytes_per_token is None else f.bytes_per_token / 2
    best = structs.replace(f, kv_tokens=f.kv_tokens * 2, bytes_per_token=smaller)
    return structs.replace(best, kv_tokens=f.kv_tokens * 1.95), best


def _slots(f: Figures, m: Move) -> Figures:
    return structs.replace(f, slots=m.number)


def _max_len(f: Figures, m: Move) -> Figures:
    if m.remove:
        return structs.replace(f, max_len=f.model_len)
    return f if m.number is None else structs.replace(f, max_len=m.number)  # `auto` is whatever vLLM finds


def _token_budget(f: Figures, m: Move) -> Pair:
    """A step of half the tokens takes half the time, at worst as much as all of it costs twice over; the activation peak shrinks with it."""
    to = m.number
    if to is None:
        return f, f
    if not f.budget:
        plain = structs.replace(f, budget=to)
        return plain, plain
    ratio = to / f.budget
    low, high = _shorter_steps(f, to)
    freed = (f.activation or 0.0) * (1 - ratio)
    if f.activation is not None:
        low, high = with_pool(low, freed / 2 if freed > 0 else freed), with_pool(high, freed if freed > 0 else freed / 2)
    if f.oom_requested is not None:
        half = ratio if f.never_pool else (1 + ratio) / 2  # a profile run computes exactly so many tokens; of a load some steps stay as they are
        low = structs.replace(low, oom_requested=f.oom_requested * half)
        high = structs.replace(high, oom_requested=f.oom_requested * ratio)
    return structs.replace(low, budget=to), structs.replace(high, budget=to)


def _shorter_steps(f: Figures, chunk: float) -> Pair:
    largest = min(x for x in (f.budget, f.longest_prompt) if x) if f.budget or f.longest_prompt else None
    if not largest or chunk >= largest:
        return f, f
    ratio = chunk / largest

    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else min(value, value * factor)

    touched = f.step is not None  # gaps that have another reason do not follow the budget
    ends = [structs.replace(f, step=scaled(f.step, k), itl_p99=scaled(f.itl_p99, k) if touched else f.itl_p99) for k in (min(1.0, 2 * ratio), ratio)]
    return ends[0], ends[1]


def _long_prefill(f: Figures, m: Move) -> Pair:
    to = m.number
    if not to:
        return f, f
    low, high = _shorter_steps(f, to)
    return structs.replace(low, chunk=to), structs.replace(high, chunk=to)


def _chunked(f: Figures, m: Move) -> Pair:
    """V0 with chunks: steps of 2,048 tokens (512 to 0.6.4) where they held a whole prompt before."""
    return _token_budget(f, Move("", 2048)) if f.budget and f.budget > 2048 else (f, f)


def _tensor_parallel(f: Figures, m: Move) -> Pair:
    """Weights and KV heads are divided; the activation peak is not. Fewer KV heads than ranks are copied: the pessimistic end."""
    to = m.number
    if to is None or to <= f.ranks or f.fixed_pool:
        return f, f
    if f.servers:
        more = structs.replace(f, ranks=to)
        return more, more
    split = f.ranks / to
    if f.kv_bytes is None or f.bytes_per_token is None or f.weights is None:
        gone = structs.replace(f, kv_tokens=None, ranks=to)
        return gone, gone
    size = f.kv_bytes + f.weights * (1 - split)
    best = structs.replace(f, kv_bytes=size, kv_tokens=size / (f.bytes_per_token * split), ranks=to, bytes_per_token=f.bytes_per_token * split)
    return structs.replace(best, kv_tokens=size / f.bytes_per_token, bytes_per_token=f.bytes_per_token), best


def _replicas(f: Figures, m: Move) -> Figures:
    """Each replica gets its share of the requests. `from_` is their number now, one where nothing else is said."""
    to, now = m.number, number(m.from_) or 1.0
    if not to or f.present is None:
        return f
    share = math.ceil(f.present * now / to)
    room = [x for x in (f.slots, fit(f, usual(f))) if x]
    waiting = max(0.0, share - min(room)) if room and f.waiting is not None else f.waiting
    return structs.replace(f, present=float(share), waiting=None if waiting is None or f.waiting is None else min(waiting, f.waiting))


def _cpu_space(f: Figures, m: Move) -> Figures:
    to, now = m.number, number(m.from_) or f.cpu_space
    if to is None:
        return f
    if f.fixed_pool or f.servers:
        tokens = f.kv_tokens
    elif f.bytes_per_token:
        tokens = to * GIB / f.bytes_per_token
    else:
        tokens = f.kv_tokens * to / now if now and f.kv_tokens else None
    return structs.replace(_host_gib(f, m), kv_tokens=tokens)


def _graphs(least: float, most: float) -> Callable[[Figures, Move], Pair]:
    """Frees a share of the graphs' memory: for the KV pool where they are in the budget, else for what lies outside it."""

    def lever(f: Figures, m: Move) -> Pair:
        if f.servers:
            return f, f
        if f.graphs_counted:
            return (f, f) if f.graphs is None else (with_pool(f, f.graphs * least), with_pool(f, f.graphs * most))
        if f.oom_free is None:
            return f, f
        low, high = (f.graphs * least, f.graphs * most) if f.graphs is not None else (GRAPHS_LEAST * least, GRAPHS_MOST * most)
        return structs.replace(f, oom_free=f.oom_free + low), structs.replace(f, oom_free=f.oom_free + high)

    return lever


def _offload(f: Figures, m: Move) -> Pair:
    """What lies in host memory crosses the bus in every step."""
    extra = ((m.number or 0.0) - (number(m.from_) or 0.0)) * GIB
    moved = _host_gib(with_pool(f, extra), m)

    def slower(rate: float) -> Figures:
        later = {k: None if (v := getattr(moved, k)) is None else max(0.0, v + extra / rate) for k in ("step", "itl_p99")}
        return structs.replace(moved, **later)

    return slower(BUS_LEAST), slower(BUS_MOST)


def _kv_memory(f: Figures, m: Move) -> Figures:
    to = m.number
    return f if to is None or f.kv_bytes is None else with_pool(f, to - f.kv_bytes)


def _pool_unknown(f: Figures, m: Move) -> Figures:
    """It frees memory, but the log does not say how much."""
    return structs.replace(f, kv_tokens=None) if m.remove and not f.fixed_pool and not f.servers else f


def _watermark(f: Figures, m: Move) -> Figures:
    return structs.replace(f, reserve=m.number)


def _queue_limit(f: Figures, m: Move) -> Figures:
    return f if f.waiting is None or m.number is None else structs.replace(f, waiting=min(f.waiting, m.number))


def _host_gib(f: Figures, m: Move) -> Figures:
    """Host memory that the option asks for, over all GPUs."""
    return structs.replace(f, host=(m.number or 0.0) * GIB * f.ranks)


def _stream_interval(f: Figures, m: Move) -> Figures:
    return structs.replace(f, chunks=f.chunks / m.number) if m.number else f


def _drain(f: Figures, m: Move) -> Pair:
    return f, f if f.cut_streams is None else structs.replace(f, cut_streams=0.0)


def _segments(f: Figures, m: Move) -> Pair:
    if f.reserved is None or "expandable_segments:true" not in str(m.to).lower():
        return f, f
    return structs.replace(f, reserved=float(round(f.reserved * 0.1))), structs.replace(f, reserved=0.0)


def _max_tokens(f: Figures, m: Move) -> Figures:
    """Requests end sooner: what they generated beyond the cap is no longer held."""
    to = m.number
    if to is None:
        return f
    shorter = {k: v - max(0.0, f.outputs.get(k, 0.0) - to) for k, v in f.lengths.items()}
    outputs = {k: min(v, to) for k, v in f.outputs.items()}
    longest = to if f.longest_output is None else min(f.longest_output, to)
    held = f.held * min(1.0, to / f.longest_output) if f.held and f.longest_output else f.held  # roughly: outputs are most of what grows
    return structs.replace(f, lengths=shorter, outputs=outputs, longest_output=longest, held=held)


LEVERS: dict[str, Callable[[Figures, Move], Pair]] = {
    "--gpu-memory-utilization": _alike(_utilization),
    "--num-gpu-blocks-override": _alike(_blocks_override),
    "--kv-cache-memory-bytes": _alike(_kv_memory),
    "--kv-cache-dtype": _kv_dtype,
    "--max-num-seqs": _alike(_slots),
    "--max-num-active-seqs": _alike(_slots),
    "--max-model-len": _alike(_max_len),
    "--max-num-batched-tokens": _token_budget,
    "--long-prefill-token-threshold": _long_prefill,
    "--enable-chunked-prefill": _chunked,
    "--tensor-parallel-size": _tensor_parallel,
    "--data-parallel-size": _alike(_replicas),
    "--enforce-eager": _graphs(0.9, 1.0),
    "--max-cudagraph-capture-size": _graphs(0.2, 0.8),
    "--cpu-offload-gb": _offload,
    "--speculative-config": _alike(_pool_unknown),
    "--disable-hybrid-kv-cache-manager": _alike(_pool_unknown),
    "--watermark": _alike(_watermark),
    "--max-num-queued-reqs": _alike(_queue_limit),
    "--swap-space": _alike(_host_gib),
    "--mm-processor-cache-gb": _alike(_host_gib),
    "--stream-interval": _alike(_stream_interval),
    "--shutdown-timeout": _drain,
    "VLLM_CPU_KVCACHE_SPACE": _alike(_cpu_space),
    "PYTORCH_CUDA_ALLOC_CONF": _segments,
    "max_tokens": _alike(_max_tokens),
    "replicas": _alike(_replicas),
}
"""What each change does. `max_tokens` (of clients) and `replicas` are no options; a remedy names them as its `lever`."""
HOST = {"--swap-space", "--mm-processor-cache-gb", "--cpu-offload-gb", "VLLM_CPU_KVCACHE_SPACE"}
"""Options that are host memory in GiB per GPU."""
ROUGH = {"--max-cudagraph-capture-size", "--tensor-parallel-size", "--max-num-batched-tokens", "--enable-chunked-prefill"}
"""Levers whose share is known from other servers only."""
