"""The shipped rules, as a set: their own tests, silence on healthy servers, thresholds that do not sit on an edge, earned clearances."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from vllm_doctor.diagnosis.judge import judge
from vllm_doctor.diagnosis.rank import firm, ranked, verdict
from vllm_doctor.model.case import Case
from vllm_doctor.model.judgement import Judgement
from vllm_doctor.parsing import formats
from vllm_doctor.pipeline import read_case
from vllm_doctor.ruleset.load import load
from vllm_doctor.ruleset.schema import Cause, CauseTest
from vllm_doctor.selftest import check_causes, load_case
from vllm_doctor.signals.evaluate import Evaluator
from vllm_doctor.sources import Source, read

ROOT = Path(__file__).resolve().parent.parent
RULES = load()
FIXTURES = sorted(p.parent.name for p in ROOT.glob("fixtures/*/case.yaml"))
LABELS = {name: yaml.safe_load((ROOT / "fixtures" / name / "case.yaml").read_text(encoding="utf-8")) for name in FIXTURES}
HEALTHY = [name for name in FIXTURES if LABELS[name]["expect"] == "healthy"]


def sources_of(name: str) -> list[Source]:
    folder = ROOT / "fixtures" / name
    return read([str(p) for p in sorted(folder.iterdir()) if p.name not in ("case.yaml", "README.md")], None)[0]


@cache
def case_of(name: str) -> Case:
    return read_case(sources_of(name), RULES)


@cache
def evaluator_of(name: str) -> Evaluator:
    return Evaluator(case_of(name), RULES.flags)


@cache
def judgements_of(name: str) -> tuple[Judgement, ...]:
    return tuple(judge(case_of(name), RULES, evaluator_of(name)))


def test_samples_of_formats_are_read_in_full_and_by_one_format() -> None:
    assert formats.check(RULES.formats) == []


@pytest.mark.parametrize("cause", RULES.causes, ids=lambda c: c.id)
def test_causes_answer_their_own_tests(cause: Cause) -> None:
    assert check_causes(structs.replace(RULES, causes=[cause]), ROOT) == []


@pytest.mark.parametrize("cause", RULES.causes, ids=lambda c: c.id)
def test_a_cause_has_a_positive_test_and_a_near_miss(cause: Cause) -> None:
    expected = {t.expect for t in cause.tests}
    assert expected & {"confirmed", "likely"}
    assert expected & {"ruled_out", "not_indicated", "possible", "not_checked"}
    assert any(t.log for t in cause.tests), "at least one test from input text"


@pytest.mark.parametrize("name", HEALTHY)
def test_all_rules_are_silent_on_healthy_servers(name: str) -> None:
    findings = ranked(judgements_of(name), RULES)
    assert [j.cause for j in findings if firm(j)] == []
    assert verdict(case_of(name), findings, evaluator_of(name)) == ("healthy", ())


@pytest.mark.parametrize("name", [n for n in FIXTURES if n not in HEALTHY])
def test_a_firm_answer_on_a_fixture_is_right(name: str) -> None:
    label = LABELS[name]
    right = {label["expect"], *(label.get("also") or []), *(label.get("accept") or [])}
    loud = [j.cause for j in ranked(judgements_of(name), RULES) if firm(j)]
    assert not loud or loud[0] in right


OWN = {c.id for c in RULES.causes}


SURE = 0.7
"""Labels below this are a matter of opinion: a burst that fills all slots for a moment is overload to one, a limit to another."""


@pytest.mark.parametrize("name", [n for n in FIXTURES if LABELS[n]["expect"] in OWN and LABELS[n].get("confidence", 1) >= SURE])
def test_fixtures_of_our_causes_are_answered_firmly(name: str) -> None:
    findings = ranked(judgements_of(name), RULES)
    assert findings, "no finding at all"
    assert (findings[0].cause, findings[0].outcome in ("confirmed", "likely")) == (LABELS[name]["expect"], True)


EXACT = {
    ("allocator-fragmentation", "whole"): "the definition: reserved memory that covers the request. The near-miss fixtures lie just below on purpose",
    ("startup-kv-too-small", "fits"): "the definition: vLLM itself compares needed and available",
    ("startup-kv-too-small", "nothing"): "zero stays zero",
}
"""Thresholds that are no judgement of ours: moving them would be another claim."""

SWEEP = [(c, name, factor) for c in RULES.causes for name in c.thresholds for factor in (0.8, 1.2) if (c.id, name) not in EXACT]


def moved(value: str, factor: float) -> str:
    """A threshold a fifth higher or lower. A share stays below 95 %: `>= 102 %` would ask for what cannot be."""
    number, unit = re.fullmatch(r"(-?[\d.]+)\s*(.+)", value).groups()  # type: ignore[union-attr]
    changed = float(number) * factor
    return f"{min(changed, 95.0) if unit == '%' and float(number) < 95 else changed:.6f} {unit}"


def answer(fixture: str, judgements: list[Judgement]) -> tuple[str, str | None]:
    """The verdict and the firm finding that leads it."""
    findings = ranked(judgements, RULES)
    return verdict(case_of(fixture), findings, evaluator_of(fixture))[0], next((j.cause for j in findings if firm(j)), None)


@pytest.mark.parametrize(("cause", "name", "factor"), SWEEP, ids=lambda v: getattr(v, "id", str(v)))
def test_no_answer_hangs_on_a_fifth_of_a_threshold(cause: Cause, name: str, factor: float) -> None:
    threshold = cause.thresholds[name]
    other = structs.replace(cause, thresholds={**cause.thresholds, name: structs.replace(threshold, value=moved(threshold.value, factor))})
    alone = structs.replace(RULES, causes=[other])
    changed = []
    for fixture in FIXTURES:
        rest = [j for j in judgements_of(fixture) if j.cause != cause.id]
        again = judge(case_of(fixture), alone, evaluator_of(fixture))
        if answer(fixture, [*rest, *again]) != answer(fixture, list(judgements_of(fixture))):
            changed.append(fixture)
    assert changed == []


@pytest.mark.parametrize("name", FIXTURES)
def test_what_is_ruled_out_becomes_unchecked_without_the_input_that_showed_it(name: str) -> None:
    for judgement in judgements_of(name):
        if judgement.outcome != "ruled_out":
            continue
        remaining = sources_of(name)
        now: Judgement | None = judgement
        while now is not None and now.outcome == "ruled_out":
            shown = {r.source for h in now.evidence if h.direction == "against" and h.weight == "decisive" for r in h.refs}
            assert shown, f"{judgement.cause} is ruled out by nothing that can be shown"
            kept = [s for s in remaining if s.name not in shown]
            assert len(kept) < len(remaining), f"{shown} is no input of this case"
            remaining = kept
            case = read_case(remaining, RULES)
            again = [j for j in judge(case, RULES, Evaluator(case, RULES.flags)) if j.cause == judgement.cause]
            now = next((j for j in again if j.outcome == "ruled_out"), again[0] if again else None)
        # Without the clearing input the cause is open again: unchecked, or whatever the rest still says for it.
        assert now is None or now.outcome != "ruled_out"
        if now is not None and not any(h.direction == "for" for h in now.evidence):
            assert now.outcome in ("not_checked", "not_indicated"), judgement.cause


def test_a_rule_test_that_fails_says_what_it_got() -> None:
    cause = next(c for c in RULES.causes if c.id == "orderly-shutdown")
    wrong = structs.replace(cause, tests=[CauseTest(name="wrong", expect="likely", log=cause.tests[-1].log)])
    (failure,) = check_causes(structs.replace(RULES, causes=[wrong]), ROOT)
    assert (failure.rule, failure.expected) == ("orderly-shutdown", "likely")
    assert failure.got.startswith("confirmed")


def test_since_and_until_cut_the_input() -> None:
    whole = load_case(CauseTest(name="x", expect="confirmed", case="fixtures/kv-exhaustion-0.32"), RULES, ROOT)
    cut = load_case(CauseTest(name="x", expect="confirmed", case="fixtures/kv-exhaustion-0.32", until="90 s"), RULES, ROOT)
    (full,), (short,) = whole.runs, cut.runs
    assert full.started is not None
    assert full.ended is not None
    assert short.ended == pytest.approx(full.started + 90, abs=1)
    assert full.ended - full.started > 150


def test_a_figure_of_the_time_of_waiting_is_told_as_one() -> None:
    """`scheduler.slots.used_ratio` is the most that ran while others waited; at other times all slots may have been in use."""
    texts = re.findall(
        r"^ *(en|zh): (.*\{scheduler\.slots\.used_ratio\}.*)$", "\n".join(p.read_text("utf-8") for p in ROOT.glob("rules/causes/*.yaml")), re.M
    )
    assert len(texts) >= 6
    assert [text for language, text in texts if {"en": "waited", "zh": "排队"}[language] not in text] == []
