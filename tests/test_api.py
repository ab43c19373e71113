"""The Python API: any mixture of paths and content, the same answer as the command line, no connection."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import subprocess
import sys
import zipfile
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest

import vllm_doctor
from vllm_doctor.model.observations import Ref
from vllm_doctor.model.report import Report
from vllm_doctor.reports.html import render
from vllm_doctor.sources import Source

CASE = Path(__file__).resolve().parent.parent / "fixtures" / "kv-exhaustion-0.32"
LOG = (CASE / "server.log").read_text(encoding="utf-8")


def ids(report: Report) -> list[str]:
    return [f.id for f in report.findings]


def test_paths_text_bytes_names_and_sources_give_the_same_answer() -> None:
    data = LOG.encode()
    forms = [str(CASE / "server.log"), CASE / "server.log", LOG, data, gzip.compress(data), ("a.log", LOG), Source("a.log", None, data, len(data))]
    answers = [(r.verdict, ids(r)) for r in map(vllm_doctor.analyze, forms)]
    assert answers == [answers[0]] * len(forms)
    assert "kv-cache-exhaustion" in answers[0][1]


def test_names_of_content_are_the_names_of_sources() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("logs/server.log", LOG)
    report = vllm_doctor.analyze(("incident.zip", archive.getvalue()), LOG)
    assert [s.name for s in report.sources] == ["incident.zip/logs/server.log", "input-2"]


def test_a_missing_file_is_an_issue_and_not_an_exception(tmp_path: Path) -> None:
    report = vllm_doctor.analyze(tmp_path / "nothing.log", b"", ("x.bin", b"\x7fELF\x01\x02"))
    assert (report.verdict, [i.code for i in report.issues]) == ("inconclusive", ["source.missing", "source.empty", "source.binary"])


def test_the_issue_of_a_missing_file_names_it_and_no_line() -> None:
    (issue,) = vllm_doctor.analyze("/no/such.log", language="zh").issues
    assert issue.message == "没有这个文件或文件夹：/no/such.log"
    assert issue.ref is not None
    assert (issue.ref.source, issue.ref.line) == ("/no/such.log", 0)


def test_content_without_years_is_dated_near_its_receipt_and_the_report_says_so() -> None:
    yearless = "INFO 01-02 13:53:41 [api_server.py:1896] vLLM API server version 0.10.2\nERROR 01-02 13:54:03 [core.py:720] broken\n"
    report = vllm_doctor.analyze(yearless, ("b.log", yearless.encode()))
    now = datetime.datetime.now(datetime.timezone.utc).year
    assert [i.code for i in report.issues if i.code == "year-assumed"] == ["year-assumed"]
    assert {int((r.started or "0")[:4]) for r in report.runs} <= {now - 1, now}
    assert report.runs


def test_the_package_is_typed() -> None:
    assert (Path(vllm_doctor.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    ("end", "window_end", "kinds", "ongoing"),
    [
        ("running", 990.0, (), True),
        ("running", 500.0, (), False),
        ("stopped", 990.0, (), False),
        ("crashed", 500.0, (), False),
        ("crashed", 990.0, (), None),
        ("crashed", 500.0, ("oom",), None),
        ("crashed", 500.0, ("scheduler.preempted",), False),
    ],
)
def test_a_crash_is_not_said_to_be_over(end: str, window_end: float, kinds: tuple[str, ...], ongoing: bool | None) -> None:
    from vllm_doctor.narrate import _ongoing

    ref = Ref("a.log", 5, "line")
    events = {kind: SimpleNamespace(events=[SimpleNamespace(ref=ref, time=500.0)]) for kind in kinds}
    run = SimpleNamespace(end=end, ended=1000.0, events=events)
    window = SimpleNamespace(whole=False, track=0, end=window_end)
    judgement = SimpleNamespace(window=window, evidence=[SimpleNamespace(direction="for", refs=[ref])])
    assert _ongoing(judgement, run) is ongoing  # type: ignore[arg-type]


def test_misuse_raises() -> None:
    with pytest.raises(TypeError, match="input 1 is neither a path"):
        vllm_doctor.analyze(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="language must be one of en, zh, not 'fr'"):
        vllm_doctor.analyze(LOG, language="fr")


def test_language_and_bounds_are_passed_on() -> None:
    whole, part = vllm_doctor.analyze(LOG), vllm_doctor.analyze(LOG, language="zh", until="13:48:30")
    points = [sum(len(s.points) for s in r.series) for r in (whole, part)]
    assert (part.language, 0 < points[1] < points[0]) == ("zh", True)


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    report = vllm_doctor.analyze(LOG)
    shown = report._repr_html_()
    start = shown.index('srcdoc="') + len('srcdoc="')
    assert unescape(shown[start : shown.index('"', start)]) == render(report)
    assert 'sandbox="allow-scripts"' in shown[shown.index('"', start) :]


NO_SOCKETS = """
import io, json, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")
sys.addaudithook(lambda event, args: refuse() if event.startswith("socket.") and event != "socket.gethostname" else None)
import vllm_doctor
from vllm_doctor.cli import run
report = vllm_doctor.analyze({case!r}, ("pasted", open({log!r}).read()))
codes = [run(["analyze", {case!r}, "--format", form, "-o", {out!r}]) for form in ("text", "json", "markdown", "html", "sarif")]
sys.stdin = io.TextIOWrapper(open({log!r}, "rb"))
codes.append(run(["analyze", "-", "-o", {out!r}]))
print(json.dumps([report.verdict, codes]))
"""


def test_analysing_files_text_and_stdin_opens_no_socket(tmp_path: Path) -> None:
    code = NO_SOCKETS.format(case=str(CASE), log=str(CASE / "server.log"), out=str(tmp_path / "report"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert json.loads(result.stdout or "null") == ["problem", [0, 0, 0, 0, 0, 0]], result.stderr


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import vllm_doctor; print([m for m in set(sys.modules) - before if m.startswith('vllm_doctor.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
