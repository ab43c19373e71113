"""Filters a cause's remedies down to what this server can use, and fills in values.

Version bounds come from `knowledge/flags.yaml` alone. A remedy is dropped when its option does not exist in the version (or, with an
unknown version, not in every possible one), when it is set that way already, when it conflicts with what is set, or when its own
`when` is not known to hold.
"""

from __future__ import annotations

from ..diagnosis.judge import applies, holds
from ..model.case import Case, Known, Run, Value
from ..model.judgement import Advice, Judgement
from ..model.observations import Scalar
from ..ruleset.conditions import comparisons, parse, signals_in
from ..ruleset.schema import Cause, Flag, Remedy, RuleSet
from ..signals.evaluate import Evaluator
from ..versions import generation, has_flag
from .solvers import SOLVERS

TRUE_WORDS = {"true", "1", "yes", "on"}


def advise(case: Case, finding: Judgement, rules: RuleSet, evaluator: Evaluator) -> list[Advice]:
    """The remedies of a finding that can be used here, in the cause's order."""
    run = next(r for r in case.runs if r.id == finding.run)
    cause = next(c for c in rules.causes if c.id == finding.cause)
    remedies = {r.id: r for r in rules.remedies}
    flags = {f.name: f for f in rules.flags}
    result = []
    for name in cause.remedies:
        advice = _fit(remedies[name], cause, case, run, finding, flags, evaluator)
        if advice is not None:
            result.append(advice)
    return result


def _fit(remedy: Remedy, cause: Cause, case: Case, run: Run, finding: Judgement, flags: dict[str, Flag], evaluator: Evaluator) -> Advice | None:
    if applies(remedy.applies, run) is not True:
        return None
    engine = finding.engine if finding.engine is not None else run.engines[0]
    values: dict[str, Value] = {}
    if remedy.when is not None:
        condition = parse(remedy.when, {})
        if holds(condition, run, engine, finding.window, evaluator) is not True:
            return None
        values |= {c.signal: evaluator.value(c.signal, run, engine, finding.window) for c in comparisons(condition)}
    for text in (remedy.title.en, remedy.risk.en, remedy.verify.en):
        values |= {n: evaluator.value(n, run, engine, finding.window) for n in signals_in(text)}
    if any(not isinstance(v, Known) for v in values.values()):
        return None  # a sentence with a hole in it helps nobody
    change = remedy.change
    if change is None:
        return Advice(remedy.id, values=values)
    option = str(change.flag or change.env)
    flag = flags[option]
    if change.action == "set" and not usable(flag, run):
        return None
    current = present(flag, run)
    if change.action == "remove":
        return Advice(remedy.id, "remove", option, from_=current, values=values) if current is not None else None
    if any(present(flags[c], run) is not None for c in flag.conflicts if c in flags):
        return None
    to = change.to
    if remedy.solve:
        solved = SOLVERS[remedy.solve](case, run, finding, evaluator)
        if solved is None:
            return None
        to = solved.value if isinstance(solved, Known) else None
        to = int(to) if isinstance(to, float) and to.is_integer() else to
    before: Scalar | None = current if current is not None else _default(flag, evaluator, run, engine, finding)
    if to is not None and before is not None and _same(before, to):
        return None
    return Advice(remedy.id, "set", option, from_=before, to=to, values=values)


def usable(flag: Flag, run: Run) -> bool:
    """Does every version that this run can be have the option?"""
    answer = has_flag(run.version, flag.first_version, flag.last_version)
    if answer is None and run.version is None:
        # V0 ended with 0.10.2 and V1 began with 0.6.4: the generation alone narrows the possible versions to a span
        low, high = {"V0": ("0.2.7", "0.10.2"), "V1": ("0.6.4", "0.33.0")}.get(generation(run) or "", ("0.2.7", "0.33.0"))
        return has_flag(low, flag.first_version, flag.last_version) is True and has_flag(high, flag.first_version, flag.last_version) is True
    return answer is True


def present(flag: Flag, run: Run) -> Scalar | None:
    """The value that the user gave for an option, under any of its names; None where it was not given."""
    given = run.flags()
    for name in (flag.name, *flag.aliases):
        key = name.lstrip("-")
        if key in given:
            return given[key]
    if run.launch and flag.env and flag.name in run.launch.environment:
        return run.launch.environment[flag.name]
    return None


def _default(flag: Flag, evaluator: Evaluator, run: Run, engine: int, finding: Judgement) -> Scalar | None:
    value = evaluator.setting(flag.name.lstrip("-"), run, engine, finding.window)
    if not isinstance(value, Known):
        return None
    return int(value.value) if float(value.value).is_integer() else value.value


def _same(a: Scalar, b: Scalar) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return (str(a).lower() in TRUE_WORDS and str(b).lower() in TRUE_WORDS) or str(a).lower() == str(b).lower()
    try:
        return abs(float(a) - float(b)) < 1e-9
    except ValueError:
        return str(a).strip().lower() == str(b).strip().lower()
