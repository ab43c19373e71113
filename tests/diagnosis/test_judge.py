"""How evidence becomes a status (DESIGN section 7), on small causes of our own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.make import case, event, run
from vllm_doctor.diagnosis.judge import holds, judge
from vllm_doctor.diagnosis.rank import ranked
from vllm_doctor.model.case import Run
from vllm_doctor.model.judgement import Judgement
from vllm_doctor.ruleset.conditions import parse
from vllm_doctor.ruleset.load import load
from vllm_doctor.ruleset.schema import Cause, RuleSet
from vllm_doctor.signals.evaluate import Evaluator
from vllm_doctor.signals.windows import windows

TRUE = "requests.waiting.max > 0 count"
FALSE = "requests.waiting.max > 99 count"
UNKNOWN = "scheduler.preemptions.delta > 0 count"
ONE = run(samples={"requests.running": [1, 2, 3], "requests.waiting": [1, 2, 3], "kv_cache.usage": [0.5, 0.6, 0.7]})


def item(when: Any, weight: str, **more: Any) -> dict[str, Any]:
    return {"when": when, "weight": weight, "why": {"en": "x", "zh": "x"}, **more}


def cause(for_: list[dict[str, Any]], against: list[dict[str, Any]] | None = None, id: str = "queue-overload", **more: Any) -> Cause:
    text = {"en": "x", "zh": "x"}
    return msgspec.convert(
        {
            "id": id,
            "maturity": "testing",
            "severity": "high",
            "title": text,
            "summary": text,
            "sources": [],
            "for": for_,
            "against": against or [],
            "tests": [],
            **more,
        },
        Cause,
    )


def rules(*causes: Cause) -> RuleSet:
    return RuleSet("test", [], list(causes), [], load().flags, [], load().inputs)


def judged(one: Run, *causes: Cause) -> list[Judgement]:
    everything = case(one)
    return judge(everything, rules(*causes), Evaluator(everything, load().flags))


@pytest.mark.parametrize(
    ("for_", "against", "outcome"),
    [
        ([(TRUE, "decisive")], [], "confirmed"),
        ([(TRUE, "decisive")], [(TRUE, "strong")], "possible"),
        ([(TRUE, "decisive")], [(TRUE, "moderate")], "confirmed"),
        ([(TRUE, "decisive")], [(TRUE, "decisive")], "possible"),
        ([(TRUE, "strong")], [], "likely"),
        ([(TRUE, "strong")], [(TRUE, "strong")], "possible"),
        ([(TRUE, "strong")], [(TRUE, "decisive")], "ruled_out"),
        ([(TRUE, "moderate"), (TRUE, "moderate")], [], "likely"),
        ([(TRUE, "moderate")], [], "possible"),
        ([(TRUE, "weak")], [], "possible"),
        ([(FALSE, "strong"), (UNKNOWN, "weak")], [], "not_indicated"),
        ([(FALSE, "strong"), (UNKNOWN, "moderate")], [], "not_checked"),
        ([(UNKNOWN, "strong")], [(TRUE, "decisive")], "ruled_out"),
        ([(UNKNOWN, "strong")], [(UNKNOWN, "decisive")], "not_checked"),
        ([(TRUE, "strong")], [(UNKNOWN, "decisive")], "likely"),
    ],
)
def test_status_follows_from_the_weights(for_: list[tuple[str, str]], against: list[tuple[str, str]], outcome: str) -> None:
    one = cause([item(*i) for i in for_], [item(*i) for i in against])
    assert [j.outcome for j in judged(ONE, one)] == [outcome]


@pytest.mark.parametrize(
    ("when", "answer"),
    [
        ([TRUE, TRUE], True),
        ([TRUE, FALSE], False),
        ([TRUE, UNKNOWN], None),
        ([FALSE, UNKNOWN], False),
        ({"any": [FALSE, TRUE]}, True),
        ({"any": [UNKNOWN, TRUE]}, True),
        ({"any": [UNKNOWN, FALSE]}, None),
        ({"any": [FALSE, FALSE]}, False),
        ([TRUE, {"any": [UNKNOWN, FALSE]}], None),
    ],
)
def test_three_truth_values(when: Any, answer: bool | None) -> None:
    evaluator = Evaluator(case(ONE), [])
    assert holds(parse(when, {}), ONE, 0, windows(ONE, 0)[0], evaluator) is answer


def test_open_evidence_names_what_is_missing() -> None:
    (found,) = judged(ONE, cause([item([TRUE, UNKNOWN], "strong")]))
    assert found.outcome == "not_checked"
    assert found.missing == (("scheduler.preemptions.delta", "metrics-scrapes"),)


def test_a_rule_for_an_unknown_version_is_unknown() -> None:
    excerpt = run(samples={"requests.waiting": [1, 2, 3]}, version=None)
    scoped = cause([item(TRUE, "strong")], applies={"version": ">=0.8"})
    assert [j.outcome for j in judged(excerpt, scoped)] == ["not_checked"]
    assert [j.outcome for j in judged(run(samples={"requests.waiting": [1, 2, 3]}, version="0.7.3"), scoped)] == ["not_indicated"]


def test_a_decisive_item_may_hold_in_one_episode_but_against_it_counts_only_the_whole_run() -> None:
    # Waiting 5 at first, quiet for long: an episode satisfies the item, the whole run's maximum does too; a mean over the whole does not.
    long = run(samples={"requests.running": [1] * 12, "requests.waiting": [0, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0]})
    mean = "requests.waiting.mean > 2 count"
    assert [j.outcome for j in judged(long, cause([item(mean, "strong")]))] == ["likely"]
    assert [j.outcome for j in judged(long, cause([item(UNKNOWN, "strong")], [item(mean, "decisive")]))] == ["not_checked"]


def test_faces_of_a_cause_are_judged_apart_and_cleared_together() -> None:
    two = cause([item(TRUE, "strong", variant="a"), item(FALSE, "strong", variant="b")])
    assert [(j.variant, j.outcome) for j in judged(ONE, two)] == [("a", "likely")]
    none = cause([item(FALSE, "strong", variant="a"), item(UNKNOWN, "strong", variant="b")])
    assert [(j.variant, j.outcome) for j in judged(ONE, none)] == [(None, "not_checked")]


def test_an_explained_finding_is_a_symptom_and_comes_later() -> None:
    root = cause([item(TRUE, "strong")], id="kv-cache-exhaustion", explains=["queue-overload"])
    symptom = cause([item(TRUE, "decisive")], id="queue-overload")
    ordered = ranked(judged(ONE, symptom, root), rules(root, symptom))
    assert [(j.cause, j.role, j.explained_by) for j in ordered] == [
        ("kv-cache-exhaustion", "root-cause", ()),
        ("queue-overload", "symptom", ("kv-cache-exhaustion",)),
    ]


def test_loud_findings_come_before_quiet_ones_whatever_their_status() -> None:
    loud = cause([item(TRUE, "strong")], id="kv-cache-exhaustion")
    quiet = cause([item(TRUE, "decisive")], id="orderly-shutdown", severity="info")
    assert [j.cause for j in ranked(judged(ONE, quiet, loud), rules(quiet, loud))] == ["kv-cache-exhaustion", "orderly-shutdown"]


def test_ruled_out_names_an_observation() -> None:
    silent = run(events=[event("startup.complete", 3)])
    cleared = cause([item("engine.died.count > 0 count", "strong")], [item("engine.died.count == 0 count", "decisive")])
    assert [j.outcome for j in judged(silent, cleared)] == ["not_indicated"]  # no line shows that nothing happened
