"""Functions that compute a remedy's value from the case: `(case, run, finding, evaluator) -> Known | Unknown | None`.

`Unknown` shows the lever without a number; `None` means that the lever has no room here and is not shown at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..model.case import Case, Known, Run, Unknown, Value
from ..model.judgement import Judgement
from ..signals.evaluate import Evaluator

Solver = Callable[[Case, Run, Judgement, Evaluator], Value | None]

UTILIZATION_STEP, UTILIZATION_MOST = 0.03, 0.95
"""A step that leaves what lies outside the budget (context, NCCL, graphs before 0.20) its room: 0.95 of 24 GiB leaves 1.2 GiB."""
LENGTH_STEP = 256
"""Lengths are rounded down to a multiple: blocks have 16 tokens or more, and nobody wants 36,871."""


def _value(name: str, run: Run, finding: Judgement, evaluator: Evaluator) -> float | None:
    engine = finding.engine if finding.engine is not None else run.engines[0]
    value = evaluator.value(name, run, engine, finding.window)
    return value.value if isinstance(value, Known) else None


def max_model_len_that_fits(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Value | None:
    """The longest length that the KV pool holds: vLLM's own estimate, its token count, or by proportion of needed and available memory."""
    events = run.events_of("startup.kv_below_max_len")
    for event in events:
        for name in ("estimated_length", "capacity"):
            found = event.values.get(f"startup.kv_below_max_len.{name}")
            if isinstance(found, int | float) and found > 0:
                return Known(float(_rounded(found)), (event.ref,))
        need, have = (event.values.get(f"startup.kv_below_max_len.{n}") for n in ("needed", "available"))
        length = event.values.get("startup.kv_below_max_len.max_model_len")
        if all(isinstance(v, int | float) and v > 0 for v in (need, have, length)):
            return Known(float(_rounded(float(length) * float(have) / float(need))), (event.ref,))  # type: ignore[arg-type]
    return Unknown("startup-log")


def _rounded(tokens: float) -> int:
    return int(tokens // LENGTH_STEP * LENGTH_STEP) if tokens >= 2 * LENGTH_STEP else max(1, int(tokens))


def more_utilization(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Value | None:
    """One step up, where there is room below the most that we dare advise."""
    now = _value("memory.utilization_in_force", run, finding, evaluator)
    if now is None:
        return Unknown("launch-command")
    return Known(round(min(UTILIZATION_MOST, now + UTILIZATION_STEP), 2)) if now < UTILIZATION_MOST else None


def less_utilization(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Value | None:
    """One step down: room for what is allocated outside the budget."""
    now = _value("memory.utilization_in_force", run, finding, evaluator)
    return Unknown("launch-command") if now is None else Known(round(now - UTILIZATION_STEP, 2))


def seqs_for_the_queue(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Value | None:
    """Enough slots for everybody that ran and waited at once, as far as the KV pool holds them at their present use."""
    limit = _value("scheduler.max_num_seqs", run, finding, evaluator)
    waiting = _value("requests.waiting.max", run, finding, evaluator)
    running = _value("requests.running.max_while_waiting", run, finding, evaluator)
    usage = _value("kv_cache.usage.max_while_waiting", run, finding, evaluator)
    if waiting is None or running is None or usage is None:
        return Unknown("stats-lines")
    wanted = running + waiting
    if usage > 0:
        wanted = min(wanted, running * 0.9 / usage)  # keep a tenth of the pool free: requests grow while they run
    value = 2 ** math.floor(math.log2(wanted)) if wanted >= 1 else 0
    base = limit if limit is not None else running
    if value <= base:
        value = int(base * 1.5) if wanted >= base * 1.5 else 0
    return Known(float(value)) if value > base else None


def seqs_that_fit(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Value | None:
    """The most requests that ran together without being put back: the smallest batch while others waited is what the pool carried."""
    lowest = _value("requests.running.min_while_waiting", run, finding, evaluator)
    return Unknown("stats-lines") if lowest is None else Known(float(max(1, int(lowest))))


def quarter_token_budget(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Value | None:
    """A quarter of the token budget, not below 512: steps get shorter in proportion."""
    budget = _value("scheduler.token_budget", run, finding, evaluator)
    if budget is None:
        return Unknown("launch-command")
    return Known(max(512.0, budget // 4)) if budget > 1024 else None


SOLVERS: dict[str, Solver] = {
    "max_model_len_that_fits": max_model_len_that_fits,
    "more_utilization": more_utilization,
    "less_utilization": less_utilization,
    "seqs_for_the_queue": seqs_for_the_queue,
    "seqs_that_fit": seqs_that_fit,
    "quarter_token_budget": quarter_token_budget,
}
"""The names that `solve` in a remedy may use."""
