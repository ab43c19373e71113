"""What-if: the effect of a change on what the server can hold and how it feels, as ranges.

`simulate` takes the measured figures of a case, moves the levers in them (a pessimistic and an optimistic copy), and compares the same
quantities before and after. A what-if with no change is the identity. Nothing is guessed: what the case does not say stays unknown.

Sources of the arithmetic: the sizing of the KV pool by budget (vllm/v1/worker/gpu_worker.py, 0.32.0), admission (vllm/v1/core/sched/scheduler.py,
0.32.0); step lengths from fixtures/prefill-spike-big-0.32 and fixtures/prefill-spike-small-0.32 (8,192 to 512 tokens: gaps of 5-8 s to 0.5-1 s,
up to twice the proportion).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import structs

from ..model.case import Case, Run
from ..model.judgement import Judgement
from ..model.quantities import QUANTITIES
from ..model.report import Basis, Effect, Range
from ..signals.evaluate import Evaluator
from .concern import by_concern
from .figures import GIB, Figures, look
from .levers import HOST, LEVERS, ROUGH
from .moves import Move, number
from .resize import fit, resized, through_model, usual


def simulate(case: Case, run: Run, finding: Judgement, changes: Sequence[Move], evaluator: Evaluator) -> tuple[Effect, ...]:
    """The effect of all changes together, what the finding is about first. Without a change: every quantity that the case states, the same before
    and after."""
    before = look(case, run, finding, evaluator)
    return by_concern(finding, effects(before, changes))


def effects(before: Figures, changes: Sequence[Move]) -> tuple[Effect, ...]:
    """As `simulate`, from figures. With changes only what they move is told."""
    for move in changes:
        if move.lever in HOST and (now_set := number(move.from_)) is not None:
            before = structs.replace(before, host=now_set * GIB * before.ranks)
    low = high = before
    modelled = resized(before, changes)
    if modelled is None and before.servers and before.kv_tokens is None:
        modelled = through_model(before, ())
    if modelled is not None:
        low, high = modelled.low, modelled.high
    rough = modelled is not None and modelled.rough
    for move in changes:
        lever = LEVERS.get(move.lever)
        if lever is not None and (move.to is not None or move.remove):
            low, high = lever(low, move)[0], lever(high, move)[1]
            rough = rough or (modelled is None and move.lever in ROUGH)
    now, worse, better = expected(before), quantities(low), quantities(high)
    if before.never_pool and changes:
        now = {name: value for name, value in now.items() if name not in OF_THE_POOL}
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
    """Are both ends figures that the log itself states? Without an override the pool is what vLLM says the override replaced; the longest
    length that vLLM says would fit, and that of the model, are its own."""
    if len(changes) != 1:
        return False
    move = changes[0]
    if name == "kv_cache.tokens":
        return before.pool_by_budget is not None and move.remove and move.lever == "--num-gpu-blocks-override"
    if name != "request.max_length":
        return False
    return move.remove or (before.longest_stated is not None and move.number == before.longest_stated)


MEMORY = {
    "kv_cache.tokens", "requests.fit.p50", "requests.fit.p95", "requests.fit.max_model_len", "kv_cache.demand", "memory.headroom",
}  # fmt: skip
"""Quantities that follow from how memory is laid out: as sure as that is."""
OF_THE_POOL = {"kv_cache.tokens", "requests.fit.p50", "requests.fit.p95", "requests.fit.max_model_len", "kv_cache.demand"}
"""Quantities that a start which failed before a pool was sized never had."""
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
