"""What-if: the effect of a change on what the server can hold and how it feels, as ranges.

`simulate` takes the measured figures of a case, moves the levers in them (a pessimistic and an optimistic copy), and compares the same
quantities before and after. A what-if with no change is the identity. Nothing is guessed: what the case does not say stays unknown.

Sources of the arithmetic: the sizing of the KV pool by budget (vllm/v1/worker/gpu_worker.py, 0.32.0), admission (vllm/v1/core/sched/scheduler.py,
0.32.0); step lengths from fixtures/prefill-spike-big-0.32 and fixtures/prefill-spike-small-0.32 (8,192 to 512 tokens: gaps of 5-8 s to 0.5-1 s,
up to twice the proportion).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import structs

from ..capacity.size import whole_requests
from ..model.case import Case, Run
from ..model.judgement import Judgement
from ..model.quantities import QUANTITIES
from ..model.report import Basis, Effect, Range
from ..signals.evaluate import Evaluator
from .figures import GIB, Figures, look
from .moves import Move, number
from .resize import grouped_fit, resized, through_model

Pair = tuple[Figures, Figures]
"""(pessimistic, optimistic)."""
GRAPHS_LEAST, GRAPHS_MOST = 0.3 * GIB, 3.0 * GIB
"""CUDA graphs on one GPU, as logs of many servers have them (docs/memory-model.md)."""
BUS_LEAST, BUS_MOST = 12e9, 25e9
"""Bytes per second from host memory over PCIe: 4.0 with 8 and 16 lanes, less what protocols take (heuristic)."""


def simulate(case: Case, run: Run, finding: Judgement, changes: Sequence[Move], evaluator: Evaluator) -> tuple[Effect, ...]:
    """The effect of all changes together. Without a change: every quantity that the case states, the same before and after."""
    before = look(case, run, finding, evaluator)
    return effects(before, changes)


def effects(before: Figures, changes: Sequence[Move]) -> tuple[Effect, ...]:
    """As `simulate`, from figures. With changes only what they move is told."""
    for move in changes:
        if move.lever in HOST and (now_set := number(move.from_)) is not None:
            before = structs.replace(before, host=now_set * GIB * before.ranks)
    low = high = before
    modelled = resized(before, changes)
    if modelled is not None:
        low, high = modelled.low, modelled.high
    rough = modelled is not None and modelled.rough
    for move in changes:
        lever = LEVERS.get(move.lever)
        if lever is not None and (move.to is not None or move.remove):
            low, high = lever(low, move)[0], lever(high, move)[1]
            rough = rough or (modelled is None and move.lever in ROUGH)
    now, worse, better = expected(before), quantities(low), quantities(high)
    result = []
    for name, quantity in QUANTITIES.items():
        a, ends = now.get(name), [q[name] for q in (worse, better) if name in q]
        if a is None and not ends:
            continue
        after = _range(ends) if len(ends) == 2 else None
        if changes and (after == a or (after is None and name in FOLLOWING)):
            continue
        basis: Basis = "measured" if _stated(name, before, changes) else _basis(name, rough)
        if name == "kv_cache.tokens" and after != a and basis != "measured":
            after = _rounded(after)
            if changes and after == _rounded(a):
                continue  # no figure that is known moves
            a = _rounded(a) if isinstance(a, list) else a
        result.append(Effect(name, quantity.unit, a, after, basis))
    told = {e.quantity for e in result}
    if changes and (low.slots == before.slots or any(name.startswith("requests.fit.") for name in told)):
        result = [e for e in result if e.quantity != "requests.limit"]  # it says no more than the change and the others do
    return tuple(result)


def expected(f: Figures) -> dict[str, Range]:
    """The quantities now: as measured, and as a range where only the memory model knows the pool."""
    own: dict[str, Range] = {name: _whole(value) for name, value in quantities(f).items()}
    if not f.servers or f.kv_tokens is not None:
        return own
    ends = through_model(f, ())
    worse, better = quantities(ends.low), quantities(ends.high)
    return own | {name: _range([worse[name], better[name]]) for name in worse if name in better and name not in own}


def _rounded(value: Range | None) -> Range | None:
    """Three figures: no prediction of a pool is better than that."""
    if value is None:
        return None
    ends = [_whole(float(f"{v:.3g}")) for v in (value if isinstance(value, list) else [value])]
    return ends[0] if ends[0] == ends[-1] else ends


def _range(ends: Sequence[float]) -> Range:
    low, high = _whole(min(ends)), _whole(max(ends))
    return low if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12) else [low, high]


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _basis(name: str, rough: bool) -> Basis:
    return "rule-of-thumb" if name in EXPERIENCE or (rough and name in MEMORY) else "model"


def _stated(name: str, before: Figures, changes: Sequence[Move]) -> bool:
    """Are both ends figures that the log states or that the change itself sets? Without an override the pool is what vLLM says the override
    replaced."""
    if name == "kv_cache.tokens":
        return before.pool_by_budget is not None and [(m.lever, m.remove) for m in changes] == [("--num-gpu-blocks-override", True)]
    return name in STATED


STATED = {"memory.host", "request.max_length", "request.max_tokens", "requests.limit", "step.tokens", "kv_cache.reserve"}
"""Quantities that an option sets and nothing estimates."""
MEMORY = {
    "kv_cache.tokens", "requests.fit.p50", "requests.fit.p95", "requests.fit.max_model_len", "kv_cache.demand", "memory.headroom",
}  # fmt: skip
"""Quantities that follow from how memory is laid out: as sure as that is."""
FOLLOWING = {"requests.fit.p50", "requests.fit.p95", "requests.fit.max_model_len", "kv_cache.demand", "kv_cache.reserve"}
"""Quantities that follow from the pool's tokens: where those become unknown, saying so once is enough."""
EXPERIENCE = {"step.duration", "latency.itl.p99", "memory.oom_shortfall", "memory.reserved_unused", "requests.cut"}
"""Quantities whose change is read off other servers, not computed."""


def quantities(f: Figures) -> dict[str, float]:
    """Everything that can be said of these figures. Counts and tokens are whole numbers."""
    result: dict[str, float] = {}

    def put(name: str, value: float | None) -> None:
        if value is not None:
            result[name] = value

    put("kv_cache.tokens", None if f.kv_tokens is None else float(max(0, math.floor(f.kv_tokens))))
    for word, tokens in (*f.lengths.items(), ("max_model_len", f.max_len)):
        put(f"requests.fit.{word}", fit(f, tokens))
    each = usual(f)
    if f.kv_tokens and f.present is not None and each is not None:
        admitted = min(f.present, f.slots) if f.slots else f.present
        put("kv_cache.demand", round(admitted * each / f.kv_tokens, 3))
    if f.reserve is not None and (f.kv_tokens or not f.reserve):
        put("kv_cache.reserve", float(math.floor(f.reserve * (f.kv_tokens or 0.0))))
    put("requests.limit", f.slots)
    put("request.max_length", f.max_len)
    put("request.max_tokens", f.longest_output)
    put("memory.headroom", None if f.headroom is None else float(round(max(0.0, f.headroom))))
    if f.total is not None and f.utilization is not None and f.device != "cpu":
        put("memory.outside_budget", float(round(max(0.0, f.total * (1 - f.utilization)))))
    if f.oom_requested is not None and f.oom_free is not None:
        put("memory.oom_shortfall", float(round(max(0.0, f.oom_requested - f.oom_free))))
    put("memory.reserved_unused", f.reserved)
    put("memory.host", f.host)
    put("step.tokens", f.budget)
    put("step.duration", f.step)
    put("latency.itl.p99", f.itl_p99)
    chunk = min(x for x in (f.chunk, f.budget) if x) if f.chunk or f.budget else None
    if chunk and f.longest_prompt:
        put("prefill.steps", float(math.ceil(f.longest_prompt / chunk)))
    put("requests.waiting", f.waiting)
    put("requests.cut", f.cut_streams)
    put("stream.chunks", float(math.ceil(f.chunks)))
    return result


def usual(f: Figures) -> float | None:
    """Tokens that a request needs: the median of finished ones, or what running ones held on average if that is more. In an incident the
    short requests are those that finish."""
    return max((x for x in (f.held, f.lengths.get("p50")) if x), default=None)


def fit(f: Figures, tokens: float | None) -> float | None:
    """Requests of a length that run at once: whole blocks of the pool, and no more than there are slots. Below one, the share that fits."""
    if not f.kv_tokens or not tokens or f.kv_tokens <= 0:
        return None
    held = grouped_fit(f, tokens)
    if held is None:
        held = whole_requests(f.kv_tokens, tokens, f.block_size)
    if f.slots:
        held = min(held, f.slots)
    return float(math.floor(held)) if held >= 1 else round(held, 2)


# -- levers: what each change does to the figures


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
    if f.kv_bytes is None or f.bytes_per_token is None:
        return structs.replace(f, kv_tokens=None, kv_bytes=None)
    size = max(0.0, f.kv_bytes + more)
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
        low = structs.replace(low, oom_requested=f.oom_requested * (1 + ratio) / 2)
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
    to, now = m.number, number(m.from_)
    if to is None:
        return f
    held = f.fixed_pool or f.servers
    tokens = f.kv_tokens if held else f.kv_tokens * to / now if now and f.kv_tokens else None
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
