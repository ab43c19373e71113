"""Runs the tests that causes carry: what the engine must answer on a fixture, or on lines given in the rule."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

from msgspec import Struct

from .assemble import within
from .diagnosis.judge import judge
from .model.case import Case
from .model.judgement import Judgement, Outcome
from .model.timebound import TimeBound
from .pipeline import read_case
from .ruleset.conditions import parse_quantity
from .ruleset.schema import Cause, CauseTest, RuleSet
from .signals.evaluate import Evaluator
from .sources import Source, read

STRONGEST: tuple[Outcome, ...] = ("confirmed", "likely", "possible", "ruled_out", "not_checked", "not_indicated")
"""Where a case has several runs, the answer about a cause is the strongest of them."""


class Failure(Struct, frozen=True):
    """A rule test that did not answer as it says."""

    rule: str
    test: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.test}: expected {self.expected}, got {self.got}"


def check_causes(rules: RuleSet, root: Path, only: Container[str] | None = None) -> list[Failure]:
    """The tests of all causes (or of those in `only`) that can run; `root` is the folder that `case: fixtures/...` counts from.

    Empty where everything holds."""
    return [failure for cause, test in _tests(rules, only) if runs_here(test, root) for failure in _check(cause, test, rules, root)]


def count_tests(rules: RuleSet, root: Path, only: Container[str] | None = None) -> tuple[int, int]:
    """(tests that run, tests that do not because this installation has no fixtures)."""
    here = [runs_here(test, root) for _, test in _tests(rules, only)]
    return here.count(True), here.count(False)


def runs_here(test: CauseTest, root: Path) -> bool:
    """Whether a test's input can be there: a wheel carries the rules without the folder of fixtures. One missing fixture is a failure."""
    return test.log is not None or (root / Path(str(test.case)).parts[0]).is_dir()


def _tests(rules: RuleSet, only: Container[str] | None) -> list[tuple[Cause, CauseTest]]:
    return [(cause, test) for cause in rules.causes if only is None or cause.id in only for test in cause.tests]


def outcome(cause: str, case: Case, rules: RuleSet) -> Judgement | None:
    """What the engine concludes about one cause, the strongest over runs, engines and variants."""
    judgements = [j for j in judge(case, rules, Evaluator(case, rules.flags)) if j.cause == cause]
    return min(judgements, key=lambda j: STRONGEST.index(j.outcome), default=None)


def load_case(test: CauseTest, rules: RuleSet, root: Path) -> Case:
    """The case that a test describes. Raises FileNotFoundError where its fixture is missing."""
    if test.log is not None:
        data = test.log.encode()
        case = read_case([Source(name="test.log", path=None, data=data, size=len(data), mtime=None)], rules)
    else:
        folder = root / str(test.case)
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        sources, _ = read([str(p) for p in sorted(folder.iterdir()) if p.name not in ("case.yaml", "README.md")], None)
        case = read_case(sources, rules)
    return _clipped(case, test)


def _clipped(case: Case, test: CauseTest) -> Case:
    starts = [r.started for r in case.runs if r.started is not None]
    ends = [r.ended for r in case.runs if r.ended is not None]
    if not starts or (test.since is None and test.until is None):
        return case

    def bound(offset: str | None) -> TimeBound | None:
        return None if offset is None else TimeBound(before_last=max(ends) - (min(starts) + parse_quantity(offset, "s", "offset")))

    return within(case, bound(test.since), bound(test.until))


def _check(cause: Cause, test: CauseTest, rules: RuleSet, root: Path) -> Iterator[Failure]:
    try:
        found = outcome(cause.id, load_case(test, rules, root), rules)
    except FileNotFoundError as error:
        yield Failure(cause.id, test.name, test.expect, f"no folder {error}")
        return
    got = found.outcome if found else "no answer"
    if got != test.expect:
        held = "; ".join(f"{h.rule} {h.weight}" for h in found.evidence) if found else ""
        yield Failure(cause.id, test.name, test.expect, f"{got} ({held})" if held else got)
    missing = {signal for signal, _ in found.missing} if found else set()
    lacking = set(test.missing or ()) - missing
    if lacking:
        yield Failure(cause.id, test.name, f"missing {', '.join(sorted(lacking))}", f"missing {', '.join(sorted(missing)) or 'nothing'}")
