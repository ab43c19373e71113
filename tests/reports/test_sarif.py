"""The report as SARIF: valid by the published schema, and within what GitHub and editors take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import msgspec
import pytest

from tests.reports import hostile, samples
from tests.reports.test_text import SAMPLES, same_as_golden
from vllm_doctor.model.report import Report, Severity, Status
from vllm_doctor.reports.sarif import level, log, render, uri

SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
"""As published by OASIS and in the schema store; it names draft 4."""
VALIDATOR = jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
EMPTY = Report(tool=samples.TOOL, redacted=True, verdict="inconclusive", summary="Cannot tell.")
REPORTS = {
    **{f"{name}.{language}": make(language) for name, make in SAMPLES.items() for language in ("en", "zh")},
    "hostile.en": samples.hostile(),
    "empty": EMPTY,
}


def results(report: Report) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log(report)["runs"][0]["results"]
    return found


@pytest.mark.parametrize("name", REPORTS)
def test_the_log_is_valid_and_as_recorded(name: str) -> None:
    text = render(REPORTS[name])
    assert [f"{list(e.absolute_path)}: {e.message}" for e in VALIDATOR.iter_errors(json.loads(text))] == []
    if name != "empty":
        same_as_golden(f"report-{name}.sarif", text)


@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=range(len(hostile.PAYLOADS)))
def test_hostile_text_leaves_the_log_valid_and_without_links(payload: str) -> None:
    made = log(hostile.poisoned(payload, times=True))
    assert list(VALIDATOR.iter_errors(made)) == []
    messages = [r["message"]["text"] for r in made["runs"][0]["results"]]
    assert [m for m in messages if "](" in m or "{0}" in m.replace("{{0}}", "")] == []
    assert "\\u001b" not in json.dumps(made)


@pytest.mark.parametrize("name", REPORTS)
def test_every_result_is_within_what_github_takes(name: str) -> None:
    driver = log(REPORTS[name])["runs"][0]["tool"]["driver"]
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for rule in driver["rules"]:
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
    for result in results(REPORTS[name]):
        assert result["ruleId"] == driver["rules"][result["ruleIndex"]]["id"]
        assert result["level"] in ("error", "warning", "note")
        (place,) = result["locations"]
        assert place["physicalLocation"]["region"]["startLine"] >= 1
        assert not urlsplit(place["physicalLocation"]["artifactLocation"]["uri"]).scheme
        assert len(result["partialFingerprints"]["vllmDoctor/v1"]) == 32


def test_a_finding_points_at_its_strongest_line_and_names_the_others() -> None:
    answer = results(samples.kv_exhaustion())[0]
    assert answer["message"]["text"] == (
        "The KV cache is full, so requests wait or are preempted (confirmed, high): 34 preemptions; "
        "requests waited while 97 % of the KV cache was in use, with scheduler slots free"
    )
    places = [answer["locations"][0], *answer["relatedLocations"]]
    assert [(p["physicalLocation"]["artifactLocation"]["uri"], p["physicalLocation"]["region"]["startLine"]) for p in places] == [
        ("metrics/0098_1796046688.300.txt", 111),
        ("server.log", 174),
        ("server.log", 180),
        ("server.log", 186),
    ]
    assert places[1]["physicalLocation"]["contextRegion"] == {
        "startLine": 173,
        "endLine": 175,
        "snippet": {"text": f"{samples.ACCESS}\n{samples.STATS}\n{samples.ACCESS}"},
    }


def test_a_finding_without_a_line_stands_at_the_beginning_of_the_input() -> None:
    assert results(samples.kv_exhaustion())[1]["locations"] == [
        {"physicalLocation": {"artifactLocation": {"uri": "server.log"}, "region": {"startLine": 1}}}
    ]


def test_the_fingerprint_outlives_times_and_lines_but_not_another_cause() -> None:
    first = samples.kv_exhaustion().findings[0]
    later = msgspec.structs.replace(first, run="run-9", first_time="2027-01-01T00:00:00", evidence=())
    other = msgspec.structs.replace(first, engine=1)
    report = msgspec.structs.replace(samples.kv_exhaustion(), findings=(first, later, other))
    prints = [r["partialFingerprints"]["vllmDoctor/v1"] for r in results(report)]
    assert (prints[0] == prints[1], prints[0] == prints[2]) == (True, False)


@pytest.mark.parametrize(
    ("severity", "status", "expected"),
    [
        ("critical", "confirmed", "error"), ("high", "likely", "error"), ("high", "possible", "warning"), ("medium", "confirmed", "warning"),
        ("medium", "possible", "note"), ("low", "confirmed", "note"), ("info", "confirmed", "note"), ("info", "possible", "note"),
    ],
)  # fmt: skip
def test_the_level_follows_from_how_bad_and_how_sure(severity: Severity, status: Status, expected: str) -> None:
    assert level(msgspec.structs.replace(samples.kv_exhaustion().findings[0], severity=severity, status=status)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("server.log", "server.log"),
        ("./logs/a b.log", "logs/a%20b.log"),
        ("/var/log/vllm.log", "file:///var/log/vllm.log"),
        ("-", "stdin"),
        ("http://host:8000/metrics", "http://host:8000/metrics"),
        ("日志.log", "%E6%97%A5%E5%BF%97.log"),
        ("javascript:alert(1)", "javascript%3Aalert%281%29"),
        ("a.zip/server.log", "a.zip/server.log"),
    ],
)
def test_a_source_is_a_uri_that_editors_find(name: str, expected: str) -> None:
    assert uri(name) == expected
