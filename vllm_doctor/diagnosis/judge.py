"""One cause, one run, one engine: which evidence holds, and what status follows (DESIGN section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.case import Case, Known, Run, Unknown, Value, Window
from ..model.catalogue import SIGNALS
from ..model.judgement import Held, Judgement, Outcome
from ..model.report import Direction, Severity
from ..ruleset.conditions import OPERATORS, All, Any_, Comparison, Condition, comparisons, parse, signals_in
from ..ruleset.schema import Applies, Cause, EvidenceRule, RuleSet
from ..signals.evaluate import Evaluator
from ..signals.windows import windows
from ..versions import generation, satisfies

Places = dict[int, tuple[Window, ...]]
"""The windows of a run, by engine."""
HEAVY = ("decisive", "strong", "moderate")
NO_INPUT = frozenset({"nobody-waited", "no-such-line"})
"""Reasons of `Unknown` that no further input would lift: the server did nothing of the kind."""


def judge(case: Case, rules: RuleSet, evaluator: Evaluator) -> list[Judgement]:
    """Every cause over every run and engine."""
    result = []
    for run in case.runs:
        places = {engine: windows(run, engine) for engine in run.engines}
        for cause in rules.causes:
            for engine in _engines(cause, run):
                result += _judge_cause(cause, run, engine, places, evaluator)
    return result


def applies(bounds: Applies | None, run: Run) -> bool | None:
    """Does a rule's scope cover this run? None where the run does not say."""
    if bounds is None:
        return True
    answers: list[bool | None] = []
    if bounds.version:
        answers.append(satisfies(run.version, bounds.version))
    if bounds.engine_generation:
        own = generation(run)
        answers.append(None if own is None else own == bounds.engine_generation)
    if bounds.device:
        device = run.text("device.type")
        wanted, negated = bounds.device.lstrip("!"), bounds.device.startswith("!")
        # A CPU or XPU backend names itself; a log that names no device is an ordinary GPU server's.
        answers.append((device or "cuda") != wanted if negated else device == wanted)
    return False if False in answers else None if None in answers else True


def never_served(run: Run) -> bool:
    """Did this run fail before it could take a request? Only a log that shows its beginning can tell."""
    return run.end == "crashed" and run.has_banner and "startup.complete" not in run.events and not run.tracks


def holds(condition: Condition, run: Run, engine: int, window: Window, evaluator: Evaluator) -> bool | None:
    """Kleene: false decides an `all`, true decides an `any`, unknown never counts."""
    if isinstance(condition, Comparison):
        value = evaluator.value(condition.signal, run, engine, window)
        return None if isinstance(value, Unknown) else OPERATORS[condition.op](value.value, condition.value)
    answers = [holds(item, run, engine, window, evaluator) for item in condition.items]
    if isinstance(condition, Any_):
        return True if True in answers else None if None in answers else False
    assert isinstance(condition, All)
    return False if False in answers else None if None in answers else True


def _engines(cause: Cause, run: Run) -> tuple[int | None, ...]:
    """A cause that only asks for run-wide signals is judged once; others per data-parallel engine, numbered where there are several."""
    conditions = [parse(item.when, cause.thresholds) for item in (*cause.for_, *cause.against)]
    windowed = any(SIGNALS[c.signal].windowed for condition in conditions for c in comparisons(condition))
    return run.engines if windowed and len(run.engines) > 1 else (None,)


def _judge_cause(cause: Cause, run: Run, engine: int | None, places: Places, evaluator: Evaluator) -> list[Judgement]:
    variants: tuple[str | None, ...] = tuple(dict.fromkeys(item.variant for item in cause.for_ if item.variant))
    found = [_judge(cause, v, run, engine, places, evaluator) for v in variants or (None,)]
    positive = [j for j in found if j.status]
    if positive or len(found) == 1:
        return positive or found
    # Without a finding the faces of a cause are one answer: ruled out only if each is.
    order: tuple[Outcome, ...] = ("not_checked", "not_indicated", "ruled_out")
    weakest = min(found, key=lambda j: order.index(j.outcome))
    return [Judgement(cause.id, None, run.id, engine, weakest.outcome, cause.severity, weakest.window, weakest.evidence, weakest.missing)]


def _judge(cause: Cause, variant: str | None, run: Run, engine: int | None, windows_of: Places, evaluator: Evaluator) -> Judgement:
    index = engine if engine is not None else run.engines[0]
    every = windows_of[index]
    wholes = [w for w in every if w.whole]
    scope = applies(cause.applies, run)
    if scope is False or (cause.phase == "serving" and never_served(run)):
        return Judgement(cause.id, variant, run.id, engine, "not_indicated", cause.severity, wholes[0])

    def weigh(
        items: Sequence[EvidenceRule], direction: Direction, places: Sequence[Window]
    ) -> list[tuple[EvidenceRule, bool | None, Held | None, list[tuple[str, str]]]]:
        result = []
        for i, item in enumerate(items):
            if item.variant in (None, variant):
                spots = wholes if direction == "against" and item.weight == "decisive" else places
                answer, held, missing = _weigh(item, cause, run, index, spots, scope, evaluator, f"{direction}[{i}]", direction)
                result.append((item, answer, held, missing))
        return result

    for_ = weigh(cause.for_, "for", every)
    main = _main_window([h for _, _, h, _ in for_ if h], wholes[0])
    against = weigh(cause.against, "against", [main])
    outcome, contradicted = _outcome(for_, against)
    evidence = tuple(h for _, _, h, _ in [*for_, *against] if h)
    if outcome == "ruled_out" and not any(h.refs for h in evidence if h.direction == "against" and h.weight == "decisive"):
        outcome = "not_indicated"  # nothing was seen that could have shown the cause
    missing = dict(m for _, answer, _, ms in for_ if answer is None for m in ms)
    severity: Severity = next((i.severity for i, answer, _, _ in for_ if answer and i.severity), cause.severity)
    return Judgement(cause.id, variant, run.id, engine, outcome, severity, main, evidence, tuple(missing.items()), contradicted)


def _weigh(
    item: EvidenceRule,
    cause: Cause,
    run: Run,
    engine: int,
    places: Sequence[Window],
    scope: bool | None,
    evaluator: Evaluator,
    rule: str,
    direction: Direction,
) -> tuple[bool | None, Held | None, list[tuple[str, str]]]:
    """(true, false or unknown; the evidence if true; unknown signals if unknown)."""
    condition = parse(item.when, cause.thresholds)
    bounds = applies(item.applies, run)
    if bounds is False:
        return False, None, []
    answers = [(holds(condition, run, engine, w, evaluator), w) for w in places]
    if scope is None or bounds is None:
        undecided = any(a is not False for a, _ in answers)
        return (None, None, [("vllm.version", "startup-log")]) if undecided else (False, None, [])
    true = [w for a, w in answers if a is True]
    # A decisive "against" must hold on every track that can tell; otherwise any window will do, the longest episode first.
    if true and not (direction == "against" and item.weight == "decisive" and any(a is False for a, _ in answers)):
        window = max(true, key=lambda w: (not w.whole, w.end - w.start))
        return True, _held(item, condition, run, engine, window, evaluator, rule, direction), []
    if any(a is None for a, _ in answers):
        window = next(w for a, w in answers if a is None)
        return None, None, _unknown(condition, run, engine, window, evaluator)
    return False, None, []


def _held(
    item: EvidenceRule, condition: Condition, run: Run, engine: int, window: Window, evaluator: Evaluator, rule: str, direction: Direction
) -> Held:
    asked = [c.signal for c in comparisons(condition)]
    names = list(dict.fromkeys([*asked, *signals_in(item.why.en)]))
    values: dict[str, Value] = {n: evaluator.value(n, run, engine, window) for n in names}
    return Held(rule, direction, item.weight, tuple(dict.fromkeys(asked)), values, window)


def _unknown(condition: Condition, run: Run, engine: int, window: Window, evaluator: Evaluator) -> list[tuple[str, str]]:
    result = []
    for comparison in comparisons(condition):
        value = evaluator.value(comparison.signal, run, engine, window)
        if isinstance(value, Unknown) and value.missing not in NO_INPUT:
            result.append((comparison.signal, value.missing))
    return result


def _main_window(held: Iterable[Held], whole: Window) -> Window:
    """The window of the heaviest evidence is the finding's."""
    order = {"decisive": 0, "strong": 1, "moderate": 2, "weak": 3}
    ranked = sorted(held, key=lambda h: (order[h.weight], h.window.whole))
    return ranked[0].window if ranked else whole


def _outcome(
    for_: Sequence[tuple[EvidenceRule, bool | None, Held | None, object]], against: Sequence[tuple[EvidenceRule, bool | None, Held | None, object]]
) -> tuple[Outcome, bool]:
    pro = [i.weight for i, answer, _, _ in for_ if answer]
    con = [i.weight for i, answer, _, _ in against if answer]
    if "decisive" in con:
        return ("possible", True) if "decisive" in pro else ("ruled_out", False)
    opposed = "strong" in con
    if "decisive" in pro and not opposed:
        return "confirmed", False
    if ("strong" in pro or pro.count("moderate") >= 2) and not opposed:
        return "likely", False
    if pro:
        return "possible", False
    heavy = [answer for i, answer, _, _ in for_ if i.weight in HEAVY]
    return ("not_checked", False) if None in heavy else ("not_indicated", False)


def known(value: Value) -> float | None:
    """The number, or None."""
    return value.value if isinstance(value, Known) else None
