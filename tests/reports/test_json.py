"""The JSON report is the contract: its schema is published, and every report fits it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.reports import samples
from vllm_doctor.model.report import Report
from vllm_doctor.reports.json import render, schema, schema_text

PUBLISHED = Path(__file__).resolve().parent.parent.parent / "docs" / "report.schema.json"
MAKERS: dict[str, Callable[[], Report]] = {
    "kv-exhaustion": samples.kv_exhaustion,
    "kv-exhaustion in Chinese": lambda: samples.kv_exhaustion("zh"),
    "healthy": samples.healthy,
    "failed start": samples.failed_start,
    "hostile": samples.hostile,
    "empty": lambda: Report(tool=samples.TOOL, redacted=True, verdict="inconclusive", summary=""),
}

KEYS = {
    "": "schema_version tool redacted verdict summary sources runs memory findings ruled_out not_indicated not_checked commands series "
    "issues timeline",
    "tool": "name version rules_version",
    "sources.0": "name kinds bytes lines first_time last_time",
    "runs.0": "id vllm_version engine_generation model gpus flags launch_command started ended end",
    "memory.0": "run gpu total_bytes outside_bytes budget_bytes weights_bytes activation_bytes non_torch_bytes graphs_bytes kv_bytes headroom_bytes "
    "kv_bytes_per_token kv_tokens max_concurrency requests_that_fit refs",
    "memory.0.requests_that_fit.p50": "tokens_per_request requests basis",
    "findings.0": "id variant run engine severity status confidence role explained_by title summary first_time last_time ongoing evidence missing "
    "remedies not_remedies",
    "findings.0.evidence.1": "text direction weight signal value unit refs",
    "findings.0.evidence.1.refs.0": "source line text",
    "findings.0.missing.0": "signal how_to_get",
    "findings.0.remedies.0": "id title kind change effect risk verify sources",
    "findings.0.remedies.0.change": "action flag from to",
    "findings.0.remedies.0.effect.0": "quantity unit before after basis",
    "findings.0.not_remedies.0": "flag because",
    "ruled_out.0": "id run because",
    "not_checked.0": "id needs",
    "commands.0": "run before after diff",
    "series.0": "run engine signal unit bucket_seconds points",
    "issues.0": "code message ref",
    "timeline.0": "time run kind text ref",
}
"""The keys that the design fixes, by path. More may be added; none may go."""


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_report_fits_the_published_schema(make: Callable[[], Report]) -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(json.loads(render(make())), published, cls=jsonschema.Draft202012Validator)


def test_the_published_schema_is_the_one_of_the_types() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PUBLISHED.write_text(schema_text(), encoding="utf-8")
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text()


def test_a_wrong_word_does_not_fit_the_schema() -> None:
    document = json.loads(render(samples.kv_exhaustion()))
    document["findings"][0]["severity"] = "huge"
    with pytest.raises(jsonschema.ValidationError, match="'huge' is not one of"):
        jsonschema.validate(document, schema())


@pytest.mark.parametrize("path", KEYS)
def test_the_keys_of_the_contract_are_there(path: str) -> None:
    value = json.loads(render(samples.kv_exhaustion()))
    for part in filter(None, path.split(".")):
        value = value[int(part)] if part.isdigit() else value[part]
    assert set(KEYS[path].split()) - set(value) == set()


def test_the_same_report_gives_the_same_bytes_whatever_the_order_of_its_flags() -> None:
    one, other = samples.kv_exhaustion(), samples.kv_exhaustion()
    flags = one.runs[0].flags
    for key in sorted(flags):
        other.runs[0].flags[key] = other.runs[0].flags.pop(key)
    assert list(other.runs[0].flags) != list(flags)
    assert render(one) == render(other)


def test_keys_come_in_the_order_of_the_types() -> None:
    assert list(json.loads(render(samples.healthy())))[:4] == ["tool", "redacted", "verdict", "summary"]


def test_what_no_utf8_can_hold_is_replaced_instead_of_failing() -> None:
    document = json.loads(render(Report(tool=samples.TOOL, redacted=True, verdict="inconclusive", summary="a\ud800b")))
    assert document["summary"] == "a?b"


def test_characters_that_cannot_be_seen_are_escaped_and_the_data_is_the_same() -> None:
    seen = "a\x9b31m b\u202ec\u2066 d\x7f e\u200f \U000e0041 中文 é"
    report = Report(tool=samples.TOOL, redacted=True, verdict="inconclusive", summary=seen)
    text = render(report)
    assert json.loads(text)["summary"] == seen
    assert '"a\\u009b31m b\\u202ec\\u2066 d\\u007f e\\u200f \\udb40\\udc41 中文 é"' in text
