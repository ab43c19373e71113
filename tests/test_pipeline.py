"""What only the whole pipeline can promise."""

from __future__ import annotations

from tests.judging import ROOT
from vllm_doctor import analyze


def test_one_report_sets_an_option_to_one_value() -> None:
    for folder in sorted((ROOT / "fixtures").iterdir()):
        report = analyze(*(str(p) for p in sorted(folder.iterdir()) if p.name != "case.yaml"))
        settled: dict[tuple[str | None, str], set[tuple[str, str | None]]] = {}
        for finding in report.findings:
            for remedy in finding.remedies:
                if remedy.change is not None:
                    settled.setdefault((finding.run, remedy.change.flag), set()).add((remedy.change.action, remedy.change.to))
        assert {place: moves for place, moves in settled.items() if len(moves) > 1} == {}, folder.name
