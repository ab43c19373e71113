"""Values with which a server whose start failed comes up, as far as our own arithmetic says: at the cautious end first, as expected where there
is none. What is printed is rounded, what a table says of a card is the least of its kind."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..capacity.defaults import limits_of
from ..capacity.observed import model_name, option, whole
from ..capacity.setup import Part
from ..capacity.weights import quant_of, quantisation
from ..model.case import Case, Known, Run, Unknown
from ..model.figures import figure
from ..model.judgement import Judgement
from ..signals.evaluate import Evaluator
from .conditions import weights_exceed_free
from .figures import GIB, PRINTED_GIB, Figures, look
from .moves import Solved
from .options import switched_on
from .outcome import FAILED_START, first_that_starts
from .resize import usual
from .servers import sized, starts
from .solve_oom import MARGIN, SMALLEST_BUDGET, UTILIZATION_STEP, power_of_two

UTILIZATION_USUAL, UTILIZATION_MOST = 0.9, 0.95
"""What lies outside the budget (context, NCCL, graphs before 0.20) needs room: 0.95 of 24 GiB leaves 1.2 GiB."""
OUTSIDE = 1.0 * GIB
"""CUDA context, NCCL and libraries that come on top of the budget (heuristic: 0.5 to 1 GiB in logs of one GPU)."""
LENGTH_STEP = 256
"""Lengths are rounded down to a multiple: blocks have 16 tokens or more, and nobody wants 36,871."""
SHORTEST_PROFILE = 2048
"""V0 profiles at least so many tokens (memory model, vllm/config.py 0.2.7 to 0.10.2)."""
LARGEST_CARD = 288 * GIB
"""No single GPU has more (rules/knowledge/gpus.yaml): what even this one's share does not give, no utilization gives."""
LARGEST_PEAK = 18 * GIB
"""Activations and what lies outside PyTorch, of steps as large as people set them (heuristic: by the memory model 131,072 tokens of a 7B or 8B
model take 15 to 17.5 GiB)."""
USUAL_BUDGET = 2048
"""The smallest default of servers that chunk (rules/knowledge/flags.yaml): who has no more gains little."""
KV_STEP = GIB / 8
FOUR_BITS_SAVE = 0.6
"""Of 16-bit weights, at least: embeddings and norms stay as they are (by the memory model 0.63 to 0.72 for 7B to 72B)."""
NEED_AND_HAVE = ("needed", "available", "max_model_len", "capacity")
"""What the refusal states: bytes since V1, tokens in V0."""


def max_model_len_that_fits(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The longest length that the KV pool holds: vLLM's own estimate, its token count, by needed and available memory, or the pool's size."""
    for event in run.events_of("startup.kv_below_max_len"):
        figures = {k.rpartition(".")[2]: float(v) for k, v in event.values.items() if isinstance(v, int | float)}
        for name in ("estimated_length", "capacity"):
            if figures.get(name, 0) > 0:
                return Known(float(_rounded(figures[name])), (event.ref,))
        need, have, length = (figures.get(n, 0.0) for n in ("needed", "available", "max_model_len"))
        if have > PRINTED_GIB and need > 0 and length > 0:
            return Known(float(_rounded(length * (have - PRINTED_GIB) / (need + PRINTED_GIB))), (event.ref,))
    f = look(case, run, finding, evaluator)
    if run.events_of("startup.no_kv_memory"):
        # V0 without chunks profiles a prompt of max-model-len: a shorter one frees its share of the activation peak
        left = _left(run)
        if not f.activation or left is None or not f.max_len:
            return modelled(f, "--max-model-len", _lengths(f))
        room = f.activation + left - (0.0 if f.bytes_per_token else MARGIN)
        shorter = _rounded(room / (f.activation / f.max_len + (f.bytes_per_token or 0.0))) if room > 0 else 0
        return Known(float(shorter)) if SHORTEST_PROFILE <= shorter < f.max_len else None
    if f.kv_tokens and f.max_len and f.kv_tokens < f.max_len:
        return Known(float(_rounded(f.kv_tokens)))
    return modelled(f, "--max-model-len", _lengths(f))


def _lengths(f: Figures) -> list[int]:
    """Lengths to try where only the model can tell: from seven eighths down to an eighth of what was asked for."""
    asked = f.max_len or max((limits_of(s.setup).max_model_len for s in f.servers), default=0)
    return [_rounded(asked * k / 8) for k in range(7, 0, -1)]


def modelled(f: Figures, lever: str, candidates: Iterable[float]) -> Solved:
    """The first value with which the server starts by the memory model, where the log has no figures to solve for one. Not known where it starts
    as it is: then the model does not see what failed. None where it starts with no value."""
    if not f.servers or any(starts(s) for s in f.servers):
        return Unknown("startup-log")
    found = first_that_starts(f, lever, candidates)
    return None if found is None else Known(float(found))


def _rounded(tokens: float) -> int:
    return int(tokens // LENGTH_STEP * LENGTH_STEP) if tokens >= 2 * LENGTH_STEP else max(1, int(tokens))


def _left(run: Run) -> float | None:
    """What the log says was left for the pool, at least: it prints hundredths of a GiB. Zero and below."""
    stated = (x.value for x in run.facts if x.name == "memory.kv_cache" and isinstance(x.value, int | float) and x.value <= 0)
    found = next(stated, None)
    return None if found is None else float(found) - PRINTED_GIB


def shortfall(run: Run, f: Figures) -> float | None:
    """Bytes that the start lacked for one request of max-model-len, at most. None where one of the two is not known."""
    each = f.bytes_per_token
    for event in run.events_of("startup.kv_below_max_len"):
        need, have, length, capacity = (figure(event.values.get(f"startup.kv_below_max_len.{n}")) for n in NEED_AND_HAVE)
        if need is not None and have is not None:
            return need - have + 2 * PRINTED_GIB
        if length is not None and capacity is not None and each:
            return (length - capacity) * each
    left = _left(run)
    if left is not None:
        return f.max_len * each - left if f.max_len and each else None
    return (f.max_len - f.kv_tokens) * each if f.max_len and f.kv_tokens and each and f.kv_tokens < f.max_len else None


def more_utilization(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """What the start lacked on top; in service as much as leaves context, libraries and uncounted graphs their room. Never above 0.95, nor
    above what was free at start."""
    f = look(case, run, finding, evaluator)
    if f.utilization is None:
        return Unknown("launch-command")
    if f.utilization >= UTILIZATION_MOST:
        return None
    lacking, left = shortfall(run, f), _left(run)
    most = _most_utilization(run, f)
    if left is not None and -left - 2 * PRINTED_GIB > (most - f.utilization) * (f.total or LARGEST_CARD):
        return None  # not even the first block
    if f.total is None and lacking is not None:
        return Unknown("startup-log") if lacking <= (UTILIZATION_MOST - f.utilization) * _largest_card(f) else None
    refused = finding.cause in FAILED_START
    tried = [k / 100 for k in range(math.floor(100 * f.utilization + 1e-6) + 1, math.floor(100 * most + 1e-6) + 1)]
    if refused and lacking is None:  # a step may not be enough, and the log does not say how much is
        found_by_model = modelled(f, "--gpu-memory-utilization", tried)
        return _utilization_with_room(f, left, most) if isinstance(found_by_model, Unknown) else found_by_model
    if refused and f.servers:
        found = first_that_starts(f, "--gpu-memory-utilization", tried)
        return None if found is None else Known(found)
    if f.total is None:
        return Known(round(min(UTILIZATION_MOST, f.utilization + UTILIZATION_STEP), 2))
    wanted = most if lacking is None else f.utilization + lacking / (f.total_least or f.total)
    to = math.ceil(wanted * 100 - 1e-6) / 100 if lacking is not None else math.floor(most * 100 + 1e-6) / 100
    return Known(round(to, 2)) if f.utilization < to <= most + 1e-9 else None


def _utilization_with_room(f: Figures, left: float | None, most: float) -> Solved:
    """Where nobody knows what a token takes: the usual share if that makes up for what the profile lacked and leaves a margin for the pool, else
    the most that is safe. Not known where the log does not say how much was lacking, or neither share leaves so much."""
    total = f.total_least or f.total
    if left is None or total is None or f.utilization is None:
        return Unknown("startup-log")
    floor = f.utilization + (MARGIN - left) / total
    for to in (min(UTILIZATION_USUAL, most), most):
        share = math.floor(100 * to + 1e-6) / 100
        if floor <= share:
            return Known(share)
    return Unknown("startup-log")


def _largest_card(f: Figures) -> float:
    """The most that a card can have whose share held these weights, this pool and the largest activation peak."""
    if f.weights is None or f.kv_rest is None or not f.utilization:
        return LARGEST_CARD
    return min(LARGEST_CARD, (f.weights + f.kv_rest + LARGEST_PEAK) / f.utilization)


def _most_utilization(run: Run, f: Figures) -> float:
    if f.total is None:
        return UTILIZATION_MOST
    outside = OUTSIDE + (0.0 if f.graphs_counted else f.graphs or 0.0)
    most = min(UTILIZATION_MOST, max(UTILIZATION_USUAL, 1 - outside / f.total))  # what vLLM itself takes by default is no risk of ours
    free = next((float(x.value) for x in run.facts if x.name == "memory.free_at_start" and isinstance(x.value, int | float)), None)
    return most if free is None else min(most, free / f.total)


def utilization_that_is_free(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The share of the card that was free at the start, rounded down to a hundredth; none where that is less than a tenth (no model fits), or
    where the weights alone do not fit."""
    if weights_exceed_free(case, run, finding, evaluator):
        return None
    for event in run.events_of("startup.free_below_budget"):
        free, total = (event.values.get(f"startup.free_below_budget.{n}") for n in ("free", "total"))
        if isinstance(free, int | float) and isinstance(total, int | float) and total > 0:
            share = math.floor(100 * (free - PRINTED_GIB) / total) / 100
            return Known(share, (event.ref,)) if share >= 0.1 else None
    return Unknown("startup-log")


def cpu_space(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """GiB for the CPU backend's pool: what one full-length request needs, or what all that were present need."""
    f = look(case, run, finding, evaluator)
    now = f.cpu_space
    for event in run.events_of("startup.kv_below_max_len"):
        needed, _, length, capacity = (figure(event.values.get(f"startup.kv_below_max_len.{n}")) for n in NEED_AND_HAVE)
        if needed is not None and needed > PRINTED_GIB:
            return Known(float(math.ceil(needed / GIB)))
        if length and capacity and now:
            return Known(float(math.ceil(now * length / capacity)))
    if now and f.present and f.kv_tokens and (each := usual(f)):
        factor = f.present * each / f.kv_tokens
        return Known(float(math.ceil(now * factor))) if factor > 1 else None
    return Unknown("launch-command")


def cpu_space_that_is_free(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """GiB for the CPU backend's pool out of what the refusal says was free; a tenth of it stays with the host."""
    for event in run.events_of("startup.free_below_budget"):
        free = figure(event.values.get("startup.free_below_budget.free"))
        if free is not None:
            to = math.floor(0.9 * free / GIB)
            return Known(float(to), (event.ref,)) if to >= 1 else None
    return Unknown("startup-log")


def profile_budget(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The largest token budget with which the server starts, a power of two below the present one. By the model where it knows the server, else
    by the printed activation peak, which falls in proportion at best. None where the log says how much is lacking and nothing how much that
    frees."""
    f = look(case, run, finding, evaluator)
    if f.budget is None:
        return Unknown("launch-command")
    lacking = shortfall(run, f)
    least = max(SMALLEST_BUDGET, power_of_two(2 * (f.slots or 1) - 1))
    lower = [2**k for k in range(30, 0, -1) if least <= 2**k < f.budget]
    if f.servers:
        found = first_that_starts(f, "--max-num-batched-tokens", lower) if lacking is not None else None
        return modelled(f, "--max-num-batched-tokens", lower) if lacking is None and lower else None if found is None else Known(float(found))
    if lacking is None:
        return Unknown("startup-log") if f.budget > USUAL_BUDGET else None
    if not f.activation or lacking >= f.activation:
        return None
    to = power_of_two(f.budget * (1 - lacking / f.activation))
    return Known(float(to)) if least <= to < f.budget else None


def offload_shortfall(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """GiB of weights to keep in host memory, in whole GiB: the fewest with which the server starts. More than half of the weights helps nobody."""
    f = look(case, run, finding, evaluator)
    weights = f.weights or min((sized(s).parts["weights"][1] for s in f.servers), default=None)
    already = run.flags().get("cpu-offload-gb")
    base = int(already) if isinstance(already, int | float) and switched_on(already) else 0
    most = int((weights or 16 * GIB) / 2 / GIB)
    lacking = shortfall(run, f)
    if lacking is None:
        return modelled(f, "--cpu-offload-gb", range(base + 1, 1 + most))
    if f.servers:
        found = first_that_starts(f, "--cpu-offload-gb", range(base + 1, 1 + most))
        return None if found is None else Known(float(found))
    to = base + math.ceil(lacking / GIB)
    return Known(float(to)) if weights is None or to <= most else None


def four_bits(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """A checkpoint of 4 bits, where the model's weights are of 16: by the set-up, the option or the name. None where it frees less than a start
    lacked."""
    f = look(case, run, finding, evaluator)
    stated = option(run, "quantization")
    if any(quantisation(s.setup)[0] for s in f.servers) or quant_of(str(stated) if stated else model_name(run)):
        return None
    lacking = shortfall(run, f) if finding.cause in FAILED_START else None
    return None if not f.servers and lacking and f.weights and FOUR_BITS_SAVE * f.weights < lacking else "awq"


def more_kv_bytes(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Bytes for a pool whose size is given by hand: what one request of the full length needs where the start failed for it, else all that was
    free at the start but for every other part at its upper end, and a margin. Not known where one of those is not."""
    f = look(case, run, finding, evaluator)
    free = run.fact("memory.free_at_start")
    now = float(whole(option(run, "kv-cache-memory-bytes")) or 0)
    taken = [f.weights, _upper(f, "activation", f.activation), _upper(f, "non_torch", f.non_torch), _upper(f, "graphs", f.graphs)]
    if free is None or not isinstance(free.value, int | float) or any(t is None for t in taken):
        return Unknown("startup-log")
    most = (float(free.value) - sum(t for t in taken if t is not None) - MARGIN) // KV_STEP * KV_STEP
    lacking = shortfall(run, f) if finding.cause in FAILED_START else None
    to = most if lacking is None else math.ceil((now + lacking) / KV_STEP) * KV_STEP
    return Known(to) if now + MARGIN <= to <= most or (lacking is not None and now < to <= most) else None


def _upper(f: Figures, part: Part, measured: float | None) -> float | None:
    """A part as measured, else the upper end of the model's estimate."""
    return measured if measured is not None else max((sized(s).parts[part][2] for s in f.servers), default=None)
