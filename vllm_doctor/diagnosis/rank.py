"""From judgements to an answer: what explains what, what comes first, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ..model.case import Case, Known, Run, Window
from ..model.judgement import Judgement
from ..model.report import Verdict
from ..ruleset.schema import RuleSet
from ..signals.evaluate import Evaluator
from ..signals.windows import windows

SEVERITIES = ("critical", "high", "medium", "low", "info")
STATUSES = ("confirmed", "likely", "possible")
MIN_LOAD_SAMPLES = 3.0
MIN_LOAD_SPAN = 60.0
MIN_FINISHED = 20.0
"""A healthy verdict needs to have seen work: three samples of it on a server that was watched for a minute (DESIGN section 5), or, where
it was watched more closely for less, twenty finished requests (heuristic: one slow or failed request in ten would have shown)."""

MOST_WAITING, MOST_ERRORS = 0.1, 0.1
"""A queue in more than a tenth of the samples, or more than a tenth of all responses refused: no cause may explain it, yet it is not
health (heuristic)."""


def firm(judgement: Judgement) -> bool:
    """Confirmed or likely, of medium severity or above: what makes a verdict `problem`."""
    return judgement.outcome in ("confirmed", "likely") and SEVERITIES.index(judgement.severity) <= SEVERITIES.index("medium")


def ranked(judgements: Sequence[Judgement], rules: RuleSet) -> list[Judgement]:
    """Findings in the order of the report; the first is the answer."""
    explains = {c.id: set(c.explains) for c in rules.causes}
    findings = [j for j in judgements if j.status]
    explained = []
    for finding in findings:
        by = [
            j.cause
            for j in findings
            if j is not finding and j.run == finding.run and j.outcome in ("confirmed", "likely") and finding.cause in explains.get(j.cause, ())
        ]
        explained.append(structs.replace(finding, explained_by=tuple(dict.fromkeys(by))))

    def place(j: Judgement) -> tuple[bool, bool, int, int, float, str]:
        return (not firm(j), bool(j.explained_by), SEVERITIES.index(j.severity), STATUSES.index(str(j.status)), j.window.start, j.cause)

    ordered = sorted(explained, key=place)
    return [structs.replace(j, role="symptom" if j.explained_by else "root-cause" if i == 0 else "contributing") for i, j in enumerate(ordered)]


def verdict(case: Case, findings: Sequence[Judgement], evaluator: Evaluator) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and for `inconclusive` the keys of what is missing."""
    if any(firm(j) for j in findings):
        return "problem", ()
    missing: dict[str, None] = {}
    for run in case.runs:
        for reason in unhealthy_reasons(run, evaluator):
            missing[reason] = None
    if not case.runs:
        missing["server-log"] = None
    return ("inconclusive", tuple(missing)) if missing else ("healthy", ())


def unhealthy_reasons(run: Run, evaluator: Evaluator) -> list[str]:
    """Why a run cannot be called healthy: nothing was asked of it, trouble would not have shown, or it failed for a reason without a rule."""
    if run.end == "crashed" or any(k in run.events for k in ("oom", "engine.fatal_error", "engine.died", "worker.died")):
        return ["whole-log"]
    reasons: list[str] = []
    for engine in run.engines:
        wholes = [w for w in windows(run, engine) if w.whole]

        def best(name: str, engine: int = engine, wholes: list[Window] = wholes) -> float | None:
            values = [v.value for w in wholes if isinstance(v := evaluator.value(name, run, engine, w), Known)]
            return max(values, default=None)

        watched = (best("load.span") or 0.0) >= MIN_LOAD_SPAN or (best("requests.finished.delta") or 0.0) >= MIN_FINISHED
        if (best("load.samples") or 0.0) < MIN_LOAD_SAMPLES or not watched:
            reasons.append("load-samples")
        if (best("requests.waiting.share_above_zero") or 0.0) > MOST_WAITING:
            reasons.append("queue-unexplained")
        if (best("errors.share") or 0.0) > MOST_ERRORS:
            reasons.append("errors-unexplained")
        if (best("requests.running.last") or 0.0) > 0 and best("throughput.generation.last") == 0 and run.end == "running":
            reasons.append("more-samples")  # it ends in a standstill: one giant step, or a hang
        if not best("errors.visible"):
            reasons.append("server-log")
        if best("requests.waiting.max") is None or best("kv_cache.usage.max") is None:
            reasons.append("stats-lines")
    return list(dict.fromkeys(reasons))
