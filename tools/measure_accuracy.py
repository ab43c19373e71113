"""Measures how often each status is right on labelled cases, and writes docs/accuracy.md and rules/knowledge/accuracy.yaml.

    python tools/measure_accuracy.py FOLDER...

A case is a folder with case.yaml (expect, also, accept, confidence) and inputs. The first finding of a report counts, under its status:
right if its id is the expected one or in `also`; findings of info severity and cases labelled with less than 0.7 confidence are left out.
The confidence that a report states is (right + 1) / (n + 2): Laplace's rule of succession, because no count of a few dozen proves 100 %.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import yaml

from vllm_doctor.pipeline import diagnose, read_case
from vllm_doctor.ruleset.load import load
from vllm_doctor.sources import read

ROOT = Path(__file__).resolve().parent.parent
NOT_INPUT = {"case.yaml", "truth.md", "cmd.txt", "proc.csv", "requests.jsonl", "README.md"}
MIN_LABEL_CONFIDENCE = 0.7
STATUSES = ("confirmed", "likely", "possible")


def main(folders: list[str]) -> int:
    rules = load()
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    misses: list[str] = []
    cases = sorted(p for folder in folders for p in Path(folder).rglob("case.yaml"))
    for path in cases:
        label = yaml.safe_load(path.read_text(encoding="utf-8"))
        if float(label.get("confidence", 1)) < MIN_LABEL_CONFIDENCE:
            continue
        inputs = [str(p) for p in sorted(path.parent.iterdir()) if p.name not in NOT_INPUT]
        sources, issues = read(inputs, None)
        findings = [
            f for f in diagnose(read_case(sources, rules, issues), rules).findings if f.severity not in ("info", "low") or f.id == label["expect"]
        ]
        if not findings:
            continue
        first = findings[0]
        total[first.status] += 1
        if first.id in {label["expect"], *(label.get("also") or [])}:
            right[first.status] += 1
        else:
            misses.append(f"| {path.parent.name} | {first.id} ({first.status}) | {label['expect']} |")
    write(right, total, misses, len(cases))
    return 0


def write(right: Counter[str], total: Counter[str], misses: list[str], cases: int) -> None:
    rows = [f"| {s} | {right[s]} of {total[s]} | {(right[s] + 1) / (total[s] + 2):.2f} |" for s in STATUSES]
    lines = [
        "# How often a status is right",
        "",
        f"Measured on {cases} labelled cases (recorded servers and public incidents rebuilt from their reports; the fixtures of this repository are",
        "trimmed copies of some of them and are not counted again). The first finding of a report counts, under its status.",
        "",
        "| status | right | confidence that a report states |",
        "|---|---|---|",
        *rows,
        "",
        "The stated confidence is (right + 1) / (n + 2), Laplace's rule of succession: no count of a few dozen proves 100 %. It is one",
        "figure per status over all causes, never fitted per cause. Cases whose cause has no rule yet answer *inconclusive* and are in",
        "none of these rows. The rules were written with these cases at hand: on logs that nobody has seen yet, expect less.",
        "",
        "Not the expected cause:",
        "",
        "| case | first finding | expected |",
        "|---|---|---|",
        *(misses or ["| none | | |"]),
        "",
        "`python tools/measure_accuracy.py FOLDER...` writes this page and `rules/knowledge/accuracy.yaml`.",
        "",
    ]
    (ROOT / "docs" / "accuracy.md").write_text("\n".join(lines), encoding="utf-8")
    data = [
        "# Written by tools/measure_accuracy.py; explained in docs/accuracy.md.",
        *(f"- {{status: {s}, right: {right[s]}, of: {total[s]}}}" for s in STATUSES),
    ]
    (ROOT / "rules" / "knowledge" / "accuracy.yaml").write_text("\n".join(data) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
