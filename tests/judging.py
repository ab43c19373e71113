"""What a labelled case is, and when a report about it is wrong. Used for the fixtures here and for cases kept elsewhere."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllm_doctor.pipeline import analyze
from vllm_doctor.reports.json import render
from vllm_doctor.sources import read

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
OUTSIDE = os.environ.get("VLLM_DOCTOR_CASES")
"""A folder with `captures/` and `cases/` that is no part of this repository; None where nobody named one."""

NOT_INPUT = {"case.yaml", "truth.md", "cmd.txt", "proc.csv", "requests.jsonl", "README.md"}
LOUD = {"critical", "high", "medium"}
FIRM = {"confirmed", "likely"}


@dataclass(frozen=True)
class LabelledCase:
    """A folder with `case.yaml` and inputs. `right` are the answers a careful expert could give, `near` those and near misses."""

    folder: Path
    expect: str
    right: frozenset[str]
    near: frozenset[str]
    confidence: float
    vllm_version: str

    @property
    def inputs(self) -> list[str]:
        return [str(p) for p in sorted(self.folder.iterdir()) if p.name not in NOT_INPUT and not p.name.startswith(".")]


def labelled_case(folder: Path) -> LabelledCase:
    label = yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8"))
    right = frozenset({label["expect"], *(label.get("also") or [])})
    return LabelledCase(
        folder=folder,
        expect=label["expect"],
        right=right,
        near=right | frozenset(label.get("accept") or []),
        confidence=float(label.get("confidence", 1)),
        vllm_version=str(label.get("vllm_version") or ""),
    )


def labelled_cases(*roots: Path) -> list[LabelledCase]:
    return [labelled_case(path.parent) for root in roots for path in sorted(root.rglob("case.yaml"))]


def outside_cases() -> list[LabelledCase]:
    return labelled_cases(*(Path(OUTSIDE) / name for name in ("captures", "cases"))) if OUTSIDE else []


def report_on(case: LabelledCase) -> dict[str, Any]:
    """What `analyze --format json` writes about a case, but with exceptions."""
    sources, issues = read(case.inputs)
    return dict(json.loads(render(analyze(sources, extra_issues=issues))))


def loud_findings(report: dict[str, Any]) -> list[str]:
    """Ids of what the report says firmly and not just for information, in its order."""
    return [f["id"] for f in report["findings"] if f["status"] in FIRM and f["severity"] in LOUD]


def wrong_answer(case: LabelledCase, report: dict[str, Any]) -> str | None:
    """Why the report would mislead: its first firm answer is not among the case's. None where it would not."""
    loud = loud_findings(report)
    if loud and case.expect == "healthy":
        return f"alarms about {', '.join(loud)} on a healthy server"
    if loud and loud[0] not in case.near:
        return f"says {loud[0]}, and it was {case.expect}"
    return None


def right_answer(case: LabelledCase, report: dict[str, Any]) -> bool:
    """The first finding is the cause; of a healthy or unclear case the verdict says so and nothing firm is claimed."""
    if report["findings"] and report["findings"][0]["id"] in case.right:
        return True
    verdicts = {"healthy"} if "healthy" in case.right else set()
    if "unclear" in case.near:
        verdicts.add("inconclusive")
    return bool({"healthy", "unclear"} & case.right) and not loud_findings(report) and report["verdict"] in verdicts
