"""Functions that compute a remedy's value from the case: `(case, run, finding, evaluator) -> Known | Unknown | str | None`.

`Unknown` shows the lever without a number; `None` means that the lever has no room here and is not shown at all; a text is a value that
is no number. Values are rounded to the safe side, to figures that a person would type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec import structs

from ..capacity.defaults import limits_of
from ..capacity.observed import model_name, option, whole
from ..capacity.setup import Part
from ..capacity.weights import quant_of, quantisation
from ..model.case import Case, Known, Run, Unknown
from ..model.figures import figure
from ..model.judgement import Judgement
from ..signals.evaluate import Evaluator
from .conditions import weights_exceed_free
from .figures import GIB, Figures, look
from .moves import Solved
from .options import switched_on
from .resize import fit, usual
from .servers import first_that_starts, sized
from .solve_gpus import all_gpus, context_parallel, one_more_replica, ranks_that_are_there, replicas_on_gpus, stages
from .solve_oom import (
    MARGIN,
    UTILIZATION_STEP,
    capture_limit,
    fewer_graphs,
    fewer_media,
    fewer_profile_tokens,
    fewer_rows,
    less_utilization,
    no_media,
    room_for_graphs,
)

Solver = Callable[[Case, Run, Judgement, Evaluator], Solved]

UTILIZATION_USUAL, UTILIZATION_MOST = 0.9, 0.95
"""What lies outside the budget (context, NCCL, graphs before 0.20) needs room: 0.95 of 24 GiB leaves 1.2 GiB."""
OUTSIDE = 1.0 * GIB
"""CUDA context, NCCL and libraries that come on top of the budget (heuristic: 0.5 to 1 GiB in logs of one GPU)."""
LENGTH_STEP = 256
"""Lengths are rounded down to a multiple: blocks have 16 tokens or more, and nobody wants 36,871."""
SMALLEST_BUDGET = 512
"""Below this a step does too little work for what it costs to launch it (vLLM's own smallest default, V0 with chunked prefill)."""
SHORTEST_PROFILE = 2048
"""V0 profiles at least so many tokens (memory model, vllm/config.py 0.2.7 to 0.10.2)."""
LARGEST_CARD = 288 * GIB
"""No single GPU has more (rules/knowledge/gpus.yaml): what even this one's share does not give, no utilization gives."""
QUIET_STEP = 0.25
"""A reader of a stream notices a gap of a quarter of a second (threshold `visible` of prefill-spike)."""
PRINTED_GIB = 0.005 * GIB
"""vLLM prints sizes to 0.01 GiB."""


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
        lacking = _shortfall(run, f)
        if not f.activation or lacking is None or not f.max_len:
            return _modelled(f, "--max-model-len", _lengths(f))
        shorter = _rounded(f.max_len * (1 - lacking / f.activation)) if lacking < f.activation else 0
        return Known(float(shorter)) if shorter >= SHORTEST_PROFILE else None
    if f.kv_tokens and f.max_len and f.kv_tokens < f.max_len:
        return Known(float(_rounded(f.kv_tokens)))
    return _modelled(f, "--max-model-len", _lengths(f))


def _lengths(f: Figures) -> list[int]:
    """Lengths to try where only the model can tell: from seven eighths down to an eighth of what was asked for."""
    asked = f.max_len or max((limits_of(s.setup).max_model_len for s in f.servers), default=0)
    return [_rounded(asked * k / 8) for k in range(7, 0, -1)]


def _modelled(f: Figures, lever: str, candidates: Iterable[float]) -> Solved:
    """The first value with which the memory model says that the server starts, where the log has no figures to solve for one."""
    found = first_that_starts(f.servers, lever, candidates)
    return Unknown("startup-log") if found is None else Known(float(found))


def _rounded(tokens: float) -> int:
    return int(tokens // LENGTH_STEP * LENGTH_STEP) if tokens >= 2 * LENGTH_STEP else max(1, int(tokens))


def _power_of_two(value: float) -> int:
    return 2 ** math.floor(math.log2(value)) if value >= 1 else 0


def _shortfall(run: Run, f: Figures) -> float | None:
    """Bytes that the start lacked for one request of max-model-len (or for any block at all, where its need is not known)."""
    each = f.bytes_per_token
    for event in run.events_of("startup.kv_below_max_len"):
        need, have, length, capacity = (figure(event.values.get(f"startup.kv_below_max_len.{n}")) for n in NEED_AND_HAVE)
        if need is not None and have is not None:
            return need - have + 2 * PRINTED_GIB
        if length is not None and capacity is not None and each:
            return (length - capacity) * each
    stated = next((x for x in run.facts if x.name == "memory.kv_cache" and isinstance(x.value, int | float) and x.value <= 0), None)
    if stated is not None:
        return max(MARGIN, (f.max_len or 0.0) * (each or 0.0)) - float(stated.value)
    return (f.max_len - f.kv_tokens) * each if f.max_len and f.kv_tokens and each and f.kv_tokens < f.max_len else None


NEED_AND_HAVE = ("needed", "available", "max_model_len", "capacity")
"""What the refusal states: bytes since V1, tokens in V0."""


def more_utilization(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """What the start lacked on top; in service as much as leaves context, libraries and uncounted graphs their room. Never above 0.95, nor
    above what was free at start."""
    f = look(case, run, finding, evaluator)
    if f.utilization is None:
        return Unknown("launch-command")
    if f.utilization >= UTILIZATION_MOST:
        return None
    lacking = _shortfall(run, f)
    refused = finding.cause == "startup-kv-too-small"
    if f.total is None and lacking is not None:
        return Unknown("startup-log") if lacking <= (UTILIZATION_MOST - f.utilization) * LARGEST_CARD else None
    if refused and lacking is None:  # a step may not be enough, and the log does not say how much is
        return _modelled(f, "--gpu-memory-utilization", [k / 100 for k in range(round(100 * f.utilization) + 1, round(100 * UTILIZATION_MOST) + 1)])
    if f.total is None:
        return Known(round(min(UTILIZATION_MOST, f.utilization + UTILIZATION_STEP), 2))
    outside = OUTSIDE + (0.0 if f.graphs_counted else f.graphs or 0.0)
    most = min(UTILIZATION_MOST, max(UTILIZATION_USUAL, 1 - outside / f.total))  # what vLLM itself takes by default is no risk of ours
    free = next((float(x.value) for x in run.facts if x.name == "memory.free_at_start" and isinstance(x.value, int | float)), None)
    if free is not None:
        most = min(most, free / f.total)
    wanted = most if lacking is None else f.utilization + lacking / f.total
    to = math.ceil(wanted * 100 - 1e-6) / 100 if lacking is not None else math.floor(most * 100 + 1e-6) / 100
    return Known(round(to, 2)) if f.utilization < to <= most + 1e-9 else None


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


def kv_bytes_that_fit(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Bytes for the pool: what it has and what nothing claims, as vLLM reckons in its line `to fully utilize gpu memory`, but for a margin. Only
    where the log has all of it: free memory at the start, every part, the graphs as captured."""
    f = look(case, run, finding, evaluator)
    if f.kv_bytes is None or f.headroom is None or f.graphs is None or run.fact("memory.free_at_start") is None:
        return None
    to = (f.kv_bytes + f.headroom - MARGIN) // KV_STEP * KV_STEP
    return Known(to) if to >= f.kv_bytes + MARGIN else None


KV_STEP = GIB / 8


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
    lacking = _shortfall(run, f) if finding.cause == "startup-kv-too-small" else None
    to = most if lacking is None else math.ceil((now + lacking) / KV_STEP) * KV_STEP
    return Known(to) if now + MARGIN <= to <= most or (lacking is not None and now < to <= most) else None


def _upper(f: Figures, part: Part, measured: float | None) -> float | None:
    """A part as measured, else the upper end of the model's estimate."""
    return measured if measured is not None else max((sized(s).parts[part][2] for s in f.servers), default=None)


def half_the_adapters(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Half of the adapter slots."""
    now = whole(option(run, "max-loras"))
    return Known(float(now // 2)) if now and now > 1 else None


def twice_the_adapters(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Twice as many adapter slots, one where none were asked for; no more than requests run at once. Only where the requests do not fill the
    slots of their own: then a queue may stand for an adapter."""
    f = look(case, run, finding, evaluator)
    if f.slots is not None and f.running is not None and f.running >= f.slots:
        return None
    return Known(2.0 * (whole(option(run, "max-loras")) or 1))


def half_the_rank(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Half of the rank; vLLM takes powers of two from 8 on."""
    now = whole(option(run, "max-lora-rank"))
    return Known(float(2 ** math.floor(math.log2(now / 2)))) if now and now > 8 else None


def twice_the_queue(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Twice as many waiting requests as are allowed."""
    now = whole(option(run, "max-num-queued-reqs"))
    return Known(2.0 * now) if now and now > 0 else Unknown("launch-command")


def seqs_for_the_queue(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Enough slots for everybody that ran and waited at once, as far as the KV pool holds them at their present use. More than there are: no
    number where the limit is not known, and nothing at all where it was left to a version none of which has so few."""
    f = look(case, run, finding, evaluator)
    if f.waiting is None or f.running is None or f.usage is None:
        return Unknown("stats-lines")
    if f.slots is None:
        untouched = run.has_banner or run.launch is not None
        return None if untouched and f.running < FEWEST_SLOTS else Unknown("launch-command")
    usage = evaluator.value("kv_cache.usage.max_while_waiting", run, finding.engine or run.engines[0], finding.window)
    wanted = f.present or f.running + f.waiting
    if isinstance(usage, Known) and usage.value > 0:
        wanted = min(wanted, f.running * 0.9 / usage.value)  # keep a tenth of the pool free: requests grow while they run
    longest = fit(_unlimited(f), f.lengths.get("p95"))
    if longest is not None:
        wanted = min(wanted, max(longest, f.slots))
    value: float = _power_of_two(wanted)
    if value <= f.slots:
        value = int(f.slots * 1.5) if wanted >= f.slots * 1.5 else 0
    return Known(float(value)) if value > f.slots else None


FEWEST_SLOTS = 128
"""The smallest max-num-seqs that a version fills in by itself: V1 on CPUs (rules/knowledge/flags.yaml)."""


def _unlimited(f: Figures) -> Figures:
    return structs.replace(f, slots=None)


def seqs_that_fit(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """As many as the pool holds at the length that only 5 % exceed, but no fewer than it was seen to carry while others waited. Fewer than ran:
    a cap that nobody ever reached changes nothing."""
    f = look(case, run, finding, evaluator)
    held = fit(_unlimited(f), f.lengths.get("p95"))
    if held is None and f.least_running is None:
        return Unknown("stats-lines")
    most = evaluator.value("requests.running.max", run, finding.engine if finding.engine is not None else run.engines[0], finding.window)
    to = cap_below([held, f.least_running], [f.slots, most.value if isinstance(most, Known) else None, f.running])
    return None if to is None else Known(float(to))


def cap_below(candidates: Iterable[float | None], ran: Iterable[float | None]) -> int | None:
    """The largest of the candidates, at least 1, that is below all that was in force and that ran; None where there is none."""
    below = min((x for x in ran if x is not None), default=math.inf)
    return max((to for x in candidates if x is not None and (to := max(1, int(x))) < below), default=None)


def token_budget_for_step(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The budget at which the longest step takes a quarter of a second, in proportion; a quarter of it where no step's length is known. Where
    memory ran out half of it, or the share of the failed allocation that was free if that is less. A power of two, not below 512 nor below
    max-num-seqs (the engine refuses that)."""
    f = look(case, run, finding, evaluator)
    if f.budget is None:
        return Unknown("launch-command")
    share = 1 / 2 if finding.variant == "oom" or f.oom_requested is not None else 1 / 4
    if share == 1 / 4 and f.step:
        share = min(1 / 2, QUIET_STEP / f.step)
    if f.oom_requested and f.oom_free is not None:
        share = min(share, f.oom_free / f.oom_requested)
    to = max(_power_of_two(f.budget * max(share, 1 / f.budget)), SMALLEST_BUDGET, _power_of_two(2 * (f.slots or 1) - 1))
    return Known(float(to)) if to < f.budget else None


def prefill_chunk(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """What one long prompt may take of a step: a quarter of the budget, 256 to 1,024 tokens, and less than the longest prompt."""
    f = look(case, run, finding, evaluator)
    if f.budget is None:
        return Unknown("launch-command")
    to = max(256, min(1024, _power_of_two(f.budget / 4)))
    return Known(float(to)) if to < f.budget and to < (f.longest_prompt or math.inf) else None


def profile_budget(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The largest token budget whose activation peak leaves what the start lacked; 2,048 where the peak is not printed. Never more than now."""
    f = look(case, run, finding, evaluator)
    if f.budget is None:
        return Unknown("launch-command")
    lacking = _shortfall(run, f)
    least = max(SMALLEST_BUDGET, _power_of_two(2 * (f.slots or 1) - 1))
    if f.activation and lacking is not None:
        to = _power_of_two(f.budget * (1 - lacking / f.activation)) if lacking < f.activation else 0
        return Known(float(to)) if least <= to < f.budget else None
    to = max(2048, least)
    return Known(float(to)) if to < f.budget else None


def output_cap(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The max_tokens at which all requests that were present fit at once, prompts at their 95th percentile. A multiple of 16."""
    f = look(case, run, finding, evaluator)
    if not f.kv_tokens or not f.present or f.prompt_p95 is None or not f.longest_output:
        return Unknown("metrics-scrapes")
    together = min(f.present, f.slots) if f.slots else f.present
    room = f.kv_tokens / together - f.prompt_p95
    to = int(room // 16 * 16)
    return Known(float(to)) if 16 <= to < f.longest_output else Unknown("metrics-scrapes")


def queue_limit(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """As many as run at once: whoever is behind them waits longer than one batch takes. Only for a queue of twice that."""
    f = look(case, run, finding, evaluator)
    if not f.running:
        return Unknown("stats-lines")
    return Known(f.running) if f.waiting and f.waiting >= 2 * f.running else None


def allocator_setting(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """expandable_segments beside what is set already."""
    given = run.launch.environment.get("PYTORCH_CUDA_ALLOC_CONF", "") if run.launch else ""
    kept = [p for p in given.split(",") if p.strip() and not p.strip().lower().startswith("expandable_segments")]
    return ",".join([*kept, "expandable_segments:True"])


def offload_shortfall(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """GiB of weights to keep in host memory: what the start lacked, in whole GiB. More than half of the weights helps nobody."""
    f = look(case, run, finding, evaluator)
    lacking = _shortfall(run, f)
    if lacking is None:
        return _modelled(f, "--cpu-offload-gb", range(1, 1 + int((f.weights or 16 * GIB) / 2 / GIB)))
    already = run.flags().get("cpu-offload-gb")
    base = float(already) if isinstance(already, int | float) and switched_on(already) else 0.0
    to = base + math.ceil(lacking / GIB)
    return Known(float(to)) if f.weights is None or to * GIB <= f.weights / 2 else None


def four_bits(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """A checkpoint of 4 bits, where the model's weights are of 16: by the set-up, the option or the name."""
    f = look(case, run, finding, evaluator)
    stated = option(run, "quantization")
    if any(quantisation(s.setup)[0] for s in f.servers) or quant_of(str(stated) if stated else model_name(run)):
        return None
    return "awq"


SOLVERS: dict[str, Solver] = {
    "max_model_len_that_fits": max_model_len_that_fits,
    "more_utilization": more_utilization,
    "less_utilization": less_utilization,
    "room_for_graphs": room_for_graphs,
    "utilization_that_is_free": utilization_that_is_free,
    "cpu_space": cpu_space,
    "cpu_space_that_is_free": cpu_space_that_is_free,
    "kv_bytes_that_fit": kv_bytes_that_fit,
    "more_kv_bytes": more_kv_bytes,
    "seqs_for_the_queue": seqs_for_the_queue,
    "seqs_that_fit": seqs_that_fit,
    "token_budget_for_step": token_budget_for_step,
    "prefill_chunk": prefill_chunk,
    "profile_budget": profile_budget,
    "fewer_profile_tokens": fewer_profile_tokens,
    "fewer_rows": fewer_rows,
    "output_cap": output_cap,
    "all_gpus": all_gpus,
    "stages": stages,
    "context_parallel": context_parallel,
    "ranks_that_are_there": ranks_that_are_there,
    "replicas_on_gpus": replicas_on_gpus,
    "one_more_replica": one_more_replica,
    "queue_limit": queue_limit,
    "twice_the_queue": twice_the_queue,
    "capture_limit": capture_limit,
    "fewer_graphs": fewer_graphs,
    "twice_the_adapters": twice_the_adapters,
    "allocator_setting": allocator_setting,
    "offload_shortfall": offload_shortfall,
    "half_the_adapters": half_the_adapters,
    "half_the_rank": half_the_rank,
    "fewer_media": fewer_media,
    "no_media": no_media,
    "four_bits": four_bits,
}
"""The names that `solve` in a remedy may use."""
