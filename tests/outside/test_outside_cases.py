"""Labelled cases kept outside the repository: no answer may mislead. How many are right is what `make score` tells."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.judging import OUTSIDE, ROOT, LabelledCase, labelled_case, outside_cases, report_on, right_answer, wrong_answer


def finding(cause: str, status: str = "likely", severity: str = "high") -> dict[str, str]:
    return {"id": cause, "status": status, "severity": severity}


def case(tmp_path: Path, label: str) -> LabelledCase:
    (tmp_path / "case.yaml").write_text(label, encoding="utf-8")
    return labelled_case(tmp_path)


@pytest.mark.parametrize(
    ("findings", "fault"),
    [
        ([finding("kv-cache-exhaustion")], None),
        ([finding("queue-overload")], None),
        ([finding("prefill-spike", "possible"), finding("kv-cache-exhaustion")], None),
        ([finding("orderly-shutdown", severity="info"), finding("kv-cache-exhaustion")], None),
        ([finding("prefill-spike"), finding("kv-cache-exhaustion")], "says prefill-spike, and it was kv-cache-exhaustion"),
        ([], None),
    ],
)
def test_only_the_first_firm_answer_can_be_wrong(tmp_path: Path, findings: list[dict[str, str]], fault: str | None) -> None:
    labelled = case(tmp_path, "expect: kv-cache-exhaustion\naccept: [queue-overload]\n")
    assert wrong_answer(labelled, {"verdict": "problem", "findings": findings}) == fault


def test_an_accepted_cause_still_alarms_on_a_healthy_server(tmp_path: Path) -> None:
    labelled = case(tmp_path, "expect: healthy\naccept: [client-backpressure]\n")
    report = {"verdict": "problem", "findings": [finding("client-backpressure")]}
    assert wrong_answer(labelled, report) == "alarms about client-backpressure on a healthy server"


@pytest.mark.parametrize(
    ("label", "verdict", "findings", "right"),
    [
        ("expect: healthy", "healthy", [], True),
        ("expect: healthy", "healthy", [finding("client-errors", severity="low")], True),
        ("expect: healthy", "inconclusive", [], False),
        ("expect: healthy\naccept: [unclear]", "inconclusive", [], True),
        ("expect: unclear", "inconclusive", [], True),
        ("expect: unclear", "healthy", [], False),
        ("expect: native-crash\nalso: [engine-killed]", "problem", [finding("engine-killed", "possible")], True),
        ("expect: native-crash", "problem", [finding("engine-killed"), finding("native-crash")], False),
    ],
)
def test_what_counts_as_right(tmp_path: Path, label: str, verdict: str, findings: list[dict[str, str]], right: bool) -> None:
    assert right_answer(case(tmp_path, label), {"verdict": verdict, "findings": findings}) is right


if OUTSIDE is not None:  # where it is not set, the closing word in conftest says what did not run

    @lru_cache(maxsize=1)
    def validator() -> Any:
        return jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8")))

    @pytest.mark.parametrize("labelled", outside_cases(), ids=lambda c: f"{c.folder.parent.name}/{c.folder.name}")
    def test_an_outside_case_is_not_misjudged(labelled: LabelledCase) -> None:
        report = report_on(labelled)
        assert [error.message for error in validator().iter_errors(report)] == []
        if labelled.confidence >= 0.7:
            assert wrong_answer(labelled, report) is None
