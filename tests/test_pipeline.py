"""What only the whole pipeline can promise."""

from __future__ import annotations

import pytest

from tests.judging import ROOT
from vllm_doctor import analyze
from vllm_doctor.cli import run
from vllm_doctor.model.timebound import parse
from vllm_doctor.narrate import _scalar
from vllm_doctor.pipeline import analyze as analyze_sources
from vllm_doctor.pipeline import read_case
from vllm_doctor.reports.text import render
from vllm_doctor.ruleset.load import load
from vllm_doctor.sources import Source

LOG = (ROOT / "fixtures/kv-exhaustion-0.32/server.log").read_bytes()
YOUNG = 1796047200.0
"""2026-11-30, when the log was written: its stamps have no year."""


def test_one_report_sets_an_option_to_one_value() -> None:
    for folder in sorted((ROOT / "fixtures").iterdir()):
        report = analyze(*(str(p) for p in sorted(folder.iterdir()) if p.name != "case.yaml"))
        settled: dict[tuple[str | None, str], set[tuple[str, str | None]]] = {}
        for finding in report.findings:
            for remedy in finding.remedies:
                if remedy.change is not None:
                    settled.setdefault((finding.run, remedy.change.flag), set()).add((remedy.change.action, remedy.change.to))
        assert {place: moves for place, moves in settled.items() if len(moves) > 1} == {}, folder.name


@pytest.mark.parametrize(
    ("since", "until", "code", "message"),
    [
        ("2030-01-01", None, "empty-window", "Nothing in the input lies after 2030-01-01T00:00:00."),
        (None, "2020-01-01", "empty-window", "Nothing in the input lies before 2020-01-01T00:00:00."),
        ("23:50", "23:55", "empty-window", "Nothing in the input lies between 2026-11-30T23:50:00 and 2026-11-30T23:55:00."),
        ("13:50", "13:49", "reversed-window", "The window of time ends before it begins: from 2026-11-30T13:50:00 to 2026-11-30T13:49:00."),
    ],
)
def test_a_window_that_holds_nothing_is_said_instead_of_asking_for_a_log(since: str | None, until: str | None, code: str, message: str) -> None:
    bounds = [None if text is None else parse(text) for text in (since, until)]
    report = analyze_sources([Source("server.log", None, LOG, len(LOG), YOUNG)], since=bounds[0], until=bounds[1])
    assert (report.summary, report.runs, report.attach_next, [(i.code, i.message) for i in report.issues if "window" in i.code]) == (
        "Cannot tell: nothing in the input lies in the window of time that was asked for.",
        (),
        (),
        [(code, message)],
    )


def test_a_window_that_ends_before_it_begins_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(ROOT / "fixtures/kv-exhaustion-0.32/server.log"), "--since", "13:50", "--until", "13:49", "--lang", "en"]) == 2
    assert "vllm-doctor: The window of time ends before it begins: from " in capsys.readouterr().err


def test_a_confirmed_stop_is_not_called_a_lead_where_health_cannot_be_told() -> None:
    folder = ROOT / "fixtures" / "sigterm-under-load-0.8.5"
    report = analyze(str(folder / "server.log"))
    text = render(report, width=100)
    assert (report.verdict, report.findings[0].id, report.findings[0].status) == ("inconclusive", "orderly-shutdown", "confirmed")
    assert report.summary == "Too little was seen to call the server healthy; what the input does show stands below."
    assert "WHAT THE INPUT SHOWS" in text
    assert "CLOSEST LEAD" not in text


SCRIPT = 'MODEL=a/b\nARGS="--port 1 --max-model-len 4096"\nvllm serve $MODEL $ARGS\n'
COMMENTED = """    image: vllm/vllm-openai
    args:
    - --model
    - a/b
    - --max-model-len
    - ${LEN:-4096}   # long
    - --port
    - "1"  # why
"""
PYTHON = 'from vllm import LLM\nllm = LLM(model="a/b",\n          max_model_len=4096, port=1)\n'


@pytest.mark.parametrize("text", [SCRIPT, COMMENTED, PYTHON], ids=["script", "comments", "python"])
def test_a_file_with_a_launch_is_read_as_a_whole(text: str) -> None:
    """Lines that tell nothing by themselves (variables, comments, values, Python) belong to the command that they stand around."""
    case = read_case([Source("given", data=text.encode(), size=len(text))], load(None))
    (launch,) = [r.launch for r in case.runs if r.launch]
    assert (launch.model, {n: launch.flags[n] for n in ("--max-model-len", "--port")}) == ("a/b", {"--max-model-len": 4096, "--port": 1})


def test_a_structure_of_the_log_is_told_as_it_is_typed() -> None:
    assert _scalar("{'method': 'eagle3', 'num_speculative_tokens': 3}") == '{"method": "eagle3", "num_speculative_tokens": 3}'
    assert (_scalar("{half"), _scalar(True), _scalar(None), _scalar("['a']")) == ("{half", "true", None, "['a']")
