"""Functions that compute a remedy's value from the case: `(case, run, finding, evaluator) -> Known | Unknown | str | None`.

`Unknown` shows the lever without a number; `None` means that the lever has no room here and is not shown at all; a text is a value that
is no number. Values are rounded to the safe side, to figures that a person would type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec import structs

from ..capacity.observed import option, whole
from ..model.case import Case, Known, Run, Unknown
from ..model.judgement import Judgement
from ..signals.evaluate import Evaluator
from .conditions import mostly_deferred
from .figures import Figures, look
from .moves import Solved
from .resize import fit
from .solve_gpus import all_gpus, context_parallel, one_more_replica, ranks_that_are_there, replicas_on_gpus, stages
from .solve_oom import (
    MARGIN,
    SMALLEST_BUDGET,
    capture_limit,
    fewer_graphs,
    fewer_media,
    fewer_profile_tokens,
    fewer_rows,
    less_utilization,
    no_media,
    power_of_two,
    room_for_graphs,
)
from .solve_start import (
    KV_STEP,
    cpu_space,
    cpu_space_that_is_free,
    four_bits,
    max_model_len_that_fits,
    more_kv_bytes,
    more_utilization,
    offload_shortfall,
    profile_budget,
    utilization_that_is_free,
)

Solver = Callable[[Case, Run, Judgement, Evaluator], Solved]

QUIET_STEP = 0.25
"""A reader of a stream notices a gap of a quarter of a second (threshold `visible` of prefill-spike)."""


def kv_bytes_that_fit(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Bytes for the pool: what it has and what nothing claims, as vLLM reckons in its line `to fully utilize gpu memory`, but for a margin. Only
    where the log has all of it: free memory at the start, every part, the graphs as captured."""
    f = look(case, run, finding, evaluator)
    if f.kv_bytes is None or f.headroom is None or f.graphs is None or run.fact("memory.free_at_start") is None:
        return None
    to = (f.kv_bytes + f.headroom - MARGIN) // KV_STEP * KV_STEP
    return Known(to) if to >= f.kv_bytes + MARGIN else None


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
    number where the limit is not known, and nothing at all where it was left to a version none of which has so few, or where most of the queue
    waits for something else."""
    f = look(case, run, finding, evaluator)
    if f.waiting is None or f.running is None or f.usage is None:
        return Unknown("stats-lines")
    if mostly_deferred(run, finding, evaluator):
        return None
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
    value: float = power_of_two(wanted)
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
    by_length = cap_below([held], [f.slots, f.most_running])
    by_load = cap_below([f.least_running], [f.slots, f.most_running, f.running])  # as many all along: that many were too many
    to = max((x for x in (by_length, by_load) if x is not None), default=None)
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
    to = max(power_of_two(f.budget * max(share, 1 / f.budget)), SMALLEST_BUDGET, power_of_two(2 * (f.slots or 1) - 1))
    return Known(float(to)) if to < f.budget else None


def prefill_chunk(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """What one long prompt may take of a step: a quarter of the budget, 256 to 1,024 tokens, and less than the longest prompt."""
    f = look(case, run, finding, evaluator)
    if f.budget is None:
        return Unknown("launch-command")
    to = max(256, min(1024, power_of_two(f.budget / 4)))
    return Known(float(to)) if to < f.budget and to < (f.longest_prompt or math.inf) else None


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
