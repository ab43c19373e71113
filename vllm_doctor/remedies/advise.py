"""Filters a cause's remedies down to what this server can use, fills in values, and predicts the effects.

A remedy is dropped when its option does not exist or does nothing in the version (or, with an unknown version, in any possible one), when
it is set that way already, when it conflicts with what is set, or when its own `when`, `where` and `applies` are not known to hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..diagnosis.judge import applies, holds
from ..model.case import Case, Known, Run, Unknown, Value
from ..model.judgement import Advice, Judgement, Outlook
from ..model.observations import Scalar
from ..ruleset.conditions import comparisons, parse, signals_in
from ..ruleset.schema import Cause, Flag, NotRemedyRule, Remedy, RuleSet
from ..signals.evaluate import Evaluator
from .conditions import CONDITIONS
from .figures import Figures, look
from .moves import Move, Solved
from .options import accepts, clashes, in_force, present, same, switched_on, usable
from .outcome import FAILED_START, outlook
from .simulate import simulate
from .solvers import SOLVERS


def advise(case: Case, finding: Judgement, rules: RuleSet, evaluator: Evaluator) -> list[Advice]:
    """The remedies of a finding that can be used here, in the cause's order. What does not cure a start that failed is left out, but for all of
    it where nothing else is known to help: then it is told as what comes nearest."""
    run = next(r for r in case.runs if r.id == finding.run)
    cause = next(c for c in rules.causes if c.id == finding.cause)
    remedies = {r.id: r for r in rules.remedies}
    flags = {f.name: f for f in rules.flags}
    result = []
    for name in cause.remedies:
        advice = _fit(remedies[name], case, run, finding, flags, evaluator)
        if advice is not None:
            result.append(advice)
    helpful = [a for a in result if a.outlook != "fails"]
    return helpful or result


def not_helpful(case: Case, finding: Judgement, rules: RuleSet, evaluator: Evaluator) -> list[tuple[NotRemedyRule, dict[str, Value]]]:
    """Advice that others give for this cause and that would not help here, with the values of its sentence."""
    run = next(r for r in case.runs if r.id == finding.run)
    cause = next(c for c in rules.causes if c.id == finding.cause)
    result = []
    for item in cause.not_remedies:
        values = _bounded(item, cause, case, run, finding, evaluator, (item.because.en,))
        if values is not None:
            result.append((item, values))
    return result


def _bounded(
    rule: Remedy | NotRemedyRule, cause: Cause | None, case: Case, run: Run, finding: Judgement, evaluator: Evaluator, texts: tuple[str, ...]
) -> dict[str, Value] | None:
    """The values of the rule's sentences, or None where its bounds are not known to hold."""
    if applies(rule.applies, run) is not True:
        return None
    engine = finding.engine if finding.engine is not None else run.engines[0]
    values: dict[str, Value] = {}
    if rule.when is not None:
        condition = parse(rule.when, cause.thresholds if cause else {})
        if holds(condition, run, engine, finding.window, evaluator) is not True:
            return None
        values |= {c.signal: evaluator.value(c.signal, run, engine, finding.window) for c in comparisons(condition)}
    if not all(CONDITIONS[name](case, run, finding, evaluator) is True for name in rule.where):
        return None
    for text in texts:
        values |= {n: evaluator.value(n, run, engine, finding.window) for n in signals_in(text)}
    return values


def _fit(remedy: Remedy, case: Case, run: Run, finding: Judgement, flags: Mapping[str, Flag], evaluator: Evaluator) -> Advice | None:
    sentences = (remedy.title.en, remedy.risk.en, remedy.verify.en)
    change = remedy.change
    flag = flags[str(change.flag or change.env)] if change else None
    if change and flag and change.action == "set" and not usable(flag, run):
        return None
    values = _bounded(remedy, None, case, run, finding, evaluator, sentences)
    if values is None or any(not isinstance(values[n], Known) for text in sentences for n in signals_in(text)):
        return None  # a sentence with a hole in it helps nobody
    if change is None or flag is None:
        return _without_option(remedy, case, run, finding, values, evaluator)
    given = present(flag, run)
    if change.action == "remove":
        if not switched_on(given):
            return None
        moves = [Move(flag.name, from_=given, remove=True)]
        effect = simulate(case, run, finding, moves, evaluator)
        then = _outlook(finding, moves, look(case, run, finding, evaluator))
        return Advice(remedy.id, "remove", flag.name, from_=given, values=values, effect=effect, outlook=then)
    to: Scalar | None = change.to
    if remedy.solve:
        solved = SOLVERS[remedy.solve](case, run, finding, evaluator)
        if solved is None:
            return None
        to = _plain(solved)
    before = in_force(flag, run)
    if (to is not None and before is not None and same(before, to)) or not accepts(flag, to, run) or clashes(flag, to, run, flags):
        return None
    moves = [Move(flag.name, to, before)] if to is not None else []
    effect = simulate(case, run, finding, moves, evaluator) if moves else ()
    then = _outlook(finding, moves, look(case, run, finding, evaluator)) if moves else None
    return Advice(remedy.id, "set", flag.name, from_=before, to=to, values=values, effect=effect, outlook=then)


def _outlook(finding: Judgement, moves: Sequence[Move], f: Figures) -> Outlook | None:
    """Would the server start after the change, where it failed to?"""
    return outlook(f, moves) if finding.cause in FAILED_START else None


def _without_option(remedy: Remedy, case: Case, run: Run, finding: Judgement, values: dict[str, Value], evaluator: Evaluator) -> Advice | None:
    """Advice for people and machines around the server. What it moves may have a value and an effect all the same."""
    if remedy.lever is None or remedy.solve is None:
        return Advice(remedy.id, values=values)
    solved = SOLVERS[remedy.solve](case, run, finding, evaluator)
    if solved is None:
        return None
    to = _plain(solved)
    moves = [Move(remedy.lever, to)] if to is not None else []
    effect = simulate(case, run, finding, moves, evaluator) if moves else ()
    then = _outlook(finding, moves, look(case, run, finding, evaluator)) if moves else None
    return Advice(remedy.id, to=to, values=values, effect=effect, outlook=then)


def _plain(solved: Solved) -> Scalar | None:
    """A solved value as it is typed: 0.9, 64, a text; None where it is not known."""
    if solved is None or isinstance(solved, Unknown):
        return None
    if isinstance(solved, str):
        return solved
    return int(solved.value) if float(solved.value).is_integer() else solved.value
