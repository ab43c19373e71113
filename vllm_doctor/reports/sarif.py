"""The report as SARIF 2.1.0, for code scanning and editors: a result for each finding, at the lines that show it.

Only findings are results. What was ruled out is no alert, and GitHub would show it as one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from urllib.parse import quote as percent

from ..model.report import Finding, Line, Report
from .markdown import prose
from .plain import clean
from .telling import Telling, ranked

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
RESULTS, LOCATIONS, TEXT = 1000, 10, 1000
"""GitHub takes 5,000 results of a run, 10 locations of a result, and 1,024 characters of a rule's description."""


def render(report: Report) -> str:
    """Indented JSON that ends with a newline."""
    return json.dumps(log(report), ensure_ascii=False, indent=2) + "\n"


def log(report: Report) -> dict[str, Any]:
    """The SARIF log as plain values."""
    telling = Telling(report)
    findings = report.findings[:RESULTS]
    rules: dict[str, Finding] = {}
    for found in findings:
        rules.setdefault(clean(found.id), found)
    ids = list(rules)
    driver = {
        "name": clean(report.tool.name),
        "version": clean(report.tool.version),
        "informationUri": "https://pypi.org/project/vllm-triage/",
        "rules": [_rule(telling, name, found) for name, found in rules.items()],
    }
    run = {
        "tool": {"driver": driver},
        "language": {"zh": "zh-CN"}.get(report.language, "en"),
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": [_notification(i.message, i.ref) for i in report.issues]}],
        "artifacts": [{"location": {"uri": uri(s.name)}, "length": s.bytes} for s in report.sources],
        "results": [_result(telling, found, ids.index(clean(found.id))) for found in findings],
        "properties": {
            "verdict": report.verdict,
            "summary": clean(report.summary),
            "redacted": report.redacted,
        },
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def uri(name: str) -> str:
    """A source's name as a URI: relative where the name is, so that editors find it below their folder."""
    name = clean(name)
    if name == "-":
        return "stdin"
    if name.startswith(("http://", "https://")):
        return percent(name, safe=":/?&=@%+,;~[]")
    path = percent(name.replace("\\", "/"), safe="/~!+,=@")
    return f"file://{path}" if path.startswith("/") else path.removeprefix("./") or "unnamed"


def level(found: Finding) -> str:
    """error, warning or note; one lower where the evidence only makes the cause possible."""
    rank = {"critical": 0, "high": 0, "medium": 1, "low": 2, "info": 2}[found.severity] + (found.status == "possible")
    return ("error", "warning", "note")[min(rank, 2)]


def _rule(telling: Telling, name: str, found: Finding) -> dict[str, Any]:
    _ = telling._
    changes = [" ".join(telling.change(r).split()) for r in found.remedies]
    lines = [clean(telling.colon(r.title, change) if change else r.title) for r, change in zip(found.remedies, changes, strict=True)]
    steps = [f"{n}. {line}" for n, line in enumerate(lines, 1)] or [_("Read the details below.")]
    more = _("more on this cause: vllm-doctor explain {id}").format(id=name)
    text = "\n".join([clean(found.summary) or clean(found.title), "", _("What to do"), *steps, "", more])
    markdown = "\n".join([prose(found.summary or found.title), "", f"**{_('What to do')}**", "", *map(_step, steps), "", prose(more)])
    return {
        "id": name,
        "name": "".join(part.capitalize() for part in name.split("-")),
        "shortDescription": {"text": clean(found.title)[:TEXT] or name},
        "fullDescription": {"text": (clean(found.summary) or clean(found.title))[:TEXT] or name},
        "help": {"text": text, "markdown": markdown},
        "defaultConfiguration": {"level": level(found)},
        "properties": {
            "tags": ["vllm", found.severity],
            "problem.severity": {"error": "error", "warning": "warning"}.get(level(found), "recommendation"),
        },
    }


def _message(text: str) -> str:
    """A message in which nothing is a link or a placeholder (SARIF 2.1.0, 3.11.5 and 3.11.6)."""
    return re.sub(r"\{(\d+)\}", r"{{\1}}", clean(text)).replace("](", "] (")


def _step(step: str) -> str:
    number, _, text = step.partition(". ")
    return f"{number}. {prose(text)}" if number.isdigit() else prose(step)


def _result(telling: Telling, found: Finding, index: int) -> dict[str, Any]:
    lines = list(dict.fromkeys(line for item in ranked(found.evidence) if item.direction == "for" for line in item.refs))
    whys = [clean(item.text) for item in ranked(found.evidence) if item.direction == "for"][:3]
    state = telling.listed([telling.status(found.status), telling.severity(found.severity)])
    title = telling.noted(clean(found.title), state)
    message = telling.colon(title, telling._("; ").join(whys)) if whys else title
    result: dict[str, Any] = {
        "ruleId": clean(found.id),
        "ruleIndex": index,
        "level": level(found),
        "message": {"text": _message(message)},
        "locations": [_location(lines[0])] if lines else _somewhere(telling.report),
        "partialFingerprints": {"vllmDoctor/v1": _fingerprint(found)},
        "properties": {"status": found.status, "severity": found.severity, "role": found.role},
    }
    related = [{**_location(line), "id": n, "message": {"text": telling._("also here")}} for n, line in enumerate(lines[1:LOCATIONS], 1)]
    if related:
        result["relatedLocations"] = related
    for name, value in (("variant", found.variant), ("run", found.run), ("engine", found.engine), ("firstTime", found.first_time)):
        if value is not None:
            result["properties"][name] = clean(value) if isinstance(value, str) else value
    return result


def _fingerprint(found: Finding) -> str:
    """The same for the same trouble in another log of the same kind: neither line numbers nor times are in it."""
    text = "\n".join([found.id, found.variant or "", "" if found.engine is None else str(found.engine)])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _location(line: Line) -> dict[str, Any]:
    if not line.line:  # the input as a whole
        return {"physicalLocation": {"artifactLocation": {"uri": uri(line.source)}}}
    number = max(line.line, 1)
    place: dict[str, Any] = {
        "artifactLocation": {"uri": uri(line.source)},
        "region": {"startLine": number, "snippet": {"text": clean(line.text)}},
    }
    if line.before or line.after:
        start = max(number - len(line.before), 1)
        rows = [*line.before[len(line.before) - (number - start) :], line.text, *line.after]
        place["contextRegion"] = {
            "startLine": start, "endLine": number + len(line.after), "snippet": {"text": "\n".join(map(clean, rows))},
        }  # fmt: skip
    return {"physicalLocation": place}


def _somewhere(report: Report) -> list[dict[str, Any]]:
    """GitHub refuses a result without a place: the beginning of the first source stands for the whole input."""
    name = uri(report.sources[0].name) if report.sources else "stdin"
    return [{"physicalLocation": {"artifactLocation": {"uri": name}, "region": {"startLine": 1}}}]


def _notification(message: str, ref: Line | None) -> dict[str, Any]:
    note: dict[str, Any] = {"level": "note", "message": {"text": _message(message) or "-"}}
    if ref is not None:
        note["locations"] = [_location(ref)]
    return note
