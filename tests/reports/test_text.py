"""The terminal report, judged on hand-made reports: golden files, and what must hold for any input."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports import hostile, samples
from vllm_doctor.model.report import EvidenceReport, Line, MissingReport, Report
from vllm_doctor.reports import RENDERERS, Style
from vllm_doctor.reports.page import Page
from vllm_doctor.reports.plain import cells, clean, cut, focus, quote, quote_rows, source_name, span, wrap
from vllm_doctor.reports.text import render

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SAMPLES = {"kv-exhaustion": samples.kv_exhaustion, "healthy": samples.healthy, "failed-start": samples.failed_start}


def same_as_golden(name: str, text: str) -> None:
    """Compares with tests/golden/NAME; UPDATE_GOLDEN=1 writes it instead, for the diff to be read before it is committed."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_report_reads_as_recorded(name: str, language: str) -> None:
    same_as_golden(f"report-{name}.{language}.txt", render(SAMPLES[name](language), width=80))


def test_the_detailed_report_reads_as_recorded() -> None:
    same_as_golden("report-kv-exhaustion.verbose.en.txt", render(samples.kv_exhaustion(), width=120, detail=1))


def test_the_short_report_reads_as_recorded() -> None:
    same_as_golden("report-kv-exhaustion.quiet.en.txt", render(samples.kv_exhaustion(), width=80, detail=-1))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", SAMPLES)
def test_only_what_is_to_be_copied_is_wider_than_asked_for(name: str, language: str, width: int) -> None:
    wide = [line for line in render(SAMPLES[name](language), width=width).splitlines() if cells(line) > width]
    assert [line for line in wide if not re.search(r"--[a-z]|export ", line)] == []


@pytest.mark.parametrize("detail", [-1, 0, 1])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_colour_adds_nothing_but_escape_sequences(detail: int, language: str) -> None:
    report = samples.kv_exhaustion(language)
    colored = render(report, width=80, color=True, detail=detail)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == render(report, width=80, detail=detail)


@pytest.mark.parametrize("detail", [-1, 0, 1])
def test_hostile_text_steers_neither_terminal_nor_markup(detail: int) -> None:
    text = render(samples.hostile(), width=80, detail=detail)
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} == {"\n"}
    assert "[bold]markup[/bold]" in text
    assert ":smile:" in text
    assert "]0;title" not in text


def test_hostile_text_keeps_its_marks_in_colour_too() -> None:
    colored = render(samples.hostile(), width=80, color=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == render(samples.hostile(), width=80)


def test_the_verdict_is_the_first_thing_after_the_header() -> None:
    answers = [render(make("en"), width=200).split("\n\n")[1].split("\n")[0] for make in SAMPLES.values()]
    assert answers == [
        "● CONFIRMED, HIGH  The KV cache is full, so requests wait or are preempted",
        f"● {samples.healthy().summary}",
        f"● {samples.failed_start().summary}",
    ]


def test_an_empty_report_says_that_it_cannot_tell_and_nothing_else() -> None:
    report = Report(tool=samples.TOOL, redacted=True, verdict="inconclusive", summary="Cannot tell: the input holds nothing of vLLM.")
    assert render(report, width=100) == (
        "no vLLM server was seen in the input\n\n"
        "● Cannot tell: the input holds nothing of vLLM.\n\n"
        "Redacted: keys, prompts, user names and addresses are masked. Still read it before you post it.\n"
    )


def test_evidence_against_is_shown_as_such_and_last() -> None:
    lines = render(samples.kv_exhaustion(), width=100).splitlines()
    marks = [
        line.strip()[:9]
        for line in lines[lines.index("WHY") : lines.index("WHAT TO DO  best first, one change at a time")]
        if line[2:4] in ("+ ", "- ")
    ]
    assert marks == ["+ 34 pree", "+ request", "- against"]


def test_the_same_cause_on_several_engines_is_one_entry() -> None:
    report = samples.kv_exhaustion()
    symptom = report.findings[1]
    several = [msgspec.structs.replace(symptom, engine=engine) for engine in (2, 0, 1)]
    text = render(msgspec.structs.replace(report, findings=(report.findings[0], *several)), width=100)
    assert text.count(symptom.title) == 1
    assert "engines 0, 1, 2" in text


def test_a_status_is_explained_once() -> None:
    text = " ".join(render(samples.kv_exhaustion(), width=80).split())
    assert [text.count(word) for word in ("confirmed: decisive evidence", "likely: strong evidence", "possible: some")] == [1, 1, 0]


def test_sources_of_one_folder_and_kind_are_one_entry() -> None:
    header = render(samples.kv_exhaustion(), width=120).splitlines()[1]
    assert header == "read  server.log (server log, lines: 310) · metrics/ (metrics, files: 101)"


def test_a_report_that_is_not_redacted_warns() -> None:
    assert render(samples.healthy(), width=120).splitlines()[-1] == "NOT redacted: this may show keys, prompts and hosts. Do not post it."


# -- quoting and measuring

OOM = (
    "(EngineCore_DP0 pid=88) ERROR 04-16 14:35:27 [core.py:390] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.71 GiB. "
    "GPU 0 has a total capacity of 79.15 GiB of which 6.24 GiB is free. Including non-PyTorch memory, this process has 72.90 GiB memory in use. "
    "Of the allocated memory 61.10 GiB is allocated by PyTorch, and 9.83 GiB is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def test_a_line_that_fits_loses_only_what_the_reference_says_already() -> None:
    assert quote("(APIServer pid=1) INFO 11-30 13:51:36 [launcher.py:146] [shutdown] triggered", 80) == "[shutdown] triggered"
    assert quote('INFO:     127.0.0.1:60872 - "GET /metrics HTTP/1.1" 200 OK', 80) == 'INFO:     127.0.0.1:60872 - "GET /metrics HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("line", "width", "focus", "expected"),
    [
        (samples.STATS, 70, ("kv_cache", "usage", "max"), "… Running: 11 reqs, Waiting: 13 reqs, CPU KV cache usage: 96.9%, …"),
        (samples.STATS, 60, ("throughput", "generation", "mean"), "Engine 000: … Avg generation throughput: 41.0 tokens/s, …"),
        (OOM, 73, ("oom", "requested"), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.71 GiB. …"),
        (OOM, 76, ("oom", "reserved_to_request"), "… and 9.83 GiB is reserved by PyTorch but unallocated. …"),
        ("a" * 100, 20, (), "aaaaaaaaaaaa…aaaaaaa"),
    ],
)
def test_a_long_line_keeps_its_telling_part(line: str, width: int, focus: tuple[str, ...], expected: str) -> None:
    assert quote(line, width, focus) == expected


@given(st.text(max_size=300), st.integers(1, 90))
def test_a_quote_is_one_harmless_line_of_the_width_at_most(text: str, width: int) -> None:
    quoted = quote(text, width, ("running",))
    assert cells(quoted) <= width
    assert clean(quoted) == quoted
    assert cells(cut(clean(text), width)) <= width


@given(st.text(max_size=300), st.integers(8, 60), st.integers(0, 30))
def test_wrapping_loses_nothing_but_spaces(text: str, width: int, start: int) -> None:
    text = clean(text)
    rows = wrap(text, width, min(start, width))
    assert "".join("".join(rows).split()) == "".join(text.split())
    assert all(cells(row) <= width for row in rows)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("KV 缓存已满，请求只能排队", ["KV 缓存已", "满，请求只", "能排队"]),
        ("weights 14.99 GiB, x", ["weights", "14.99 GiB,", "x"]),
        ("abcdefghijklmno p", ["abcdefghij", "klmno p"]),
        ("", [""]),
    ],
)
def test_lines_break_where_a_reader_expects(text: str, rows: list[str]) -> None:
    assert wrap(text, 10) == rows


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b[1;36m(APIServer)\x1b[0;0m ok", "(APIServer) ok"),
        ("\x1b]0;owned\x07a", "a"),
        ("\x1b]52;c;cm0gLXJm\x1b\\a", "a"),
        ("\x1b]never ends", "never ends"),
        ("\x9b2Ja\x9d0;t\x9cb", "ab"),
        ("a\tb\r\nc", "a b  c"),
        ("user\u202egpj.exe\u2066", "usergpj.exe"),
        ("z\u200bw\ufeff\U000e0041\ud800", "zw"),
        ("é 漢 😀", "é 漢 😀"),
    ],
)
def test_what_steers_a_terminal_is_taken_out(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


def test_a_long_name_of_a_source_keeps_its_end() -> None:
    assert (source_name("a/very/long/path/server.log", 12), source_name("-", 12)) == ("…/server.log", "stdin")


@pytest.mark.parametrize(
    ("first", "last", "day", "expected"),
    [
        ("2026-11-30T13:48:08", "2026-11-30T13:51:36.123Z", "2026-11-30", "13:48:08 → 13:51:36"),
        ("2026-11-30T23:59:08", "2026-12-01T00:01:00", "2026-11-30", "23:59:08 → 2026-12-01 00:01:00"),
        ("2026-11-30T13:48:08", "2026-11-30T13:48:08", "", "2026-11-30 13:48:08"),
        (None, "2026-11-30T13:48:08", "2026-11-30", "13:48:08"),
        (None, None, "", ""),
        ("yesterday\x1b[1m", None, "", "yesterday"),
    ],
)
def test_times_name_the_day_only_where_it_changes(first: str | None, last: str | None, day: str, expected: str) -> None:
    assert span(first, last, day) == expected


def test_a_page_begins_without_a_gap_and_never_has_two() -> None:
    page = Page(80)
    page.blank()
    page.raw("a", 0)
    page.blank()
    page.blank()
    page.raw("b", 2)
    page.blank()
    assert page.render(color=False) == "a\n\n  b\n"


def test_many_lines_of_evidence_are_named_and_shown_in_detail_on_request() -> None:
    refs = tuple(Line("server.log", n, f"line {n}") for n in (3, 5, 9))
    report = samples.kv_exhaustion()
    answer = msgspec.structs.replace(report.findings[0], evidence=(EvidenceReport("it", "for", "strong", refs=refs),))
    report = msgspec.structs.replace(report, findings=(answer,))
    assert "also at server.log:5, server.log:9" in render(report, width=80)
    detailed = render(report, width=80, detail=1)
    assert [f"server.log:{n}  line {n}" in detailed for n in (3, 5, 9)] == [True, True, True]


def test_a_place_is_a_link_only_where_there_is_something_to_open() -> None:
    targets = {"server.log": "file:///logs/server.log"}
    linked = render(samples.kv_exhaustion(), width=80, color=True, links=targets.get)
    assert set(re.findall(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b\\", linked)) == {"file:///logs/server.log", ""}
    assert re.sub(r"\x1b\]8;[^\x1b]*\x1b\\", "", linked) == render(samples.kv_exhaustion(), width=80, color=True)
    assert "\x1b" not in render(samples.kv_exhaustion(), width=80, links=targets.get)


def test_a_hostile_report_reads_as_recorded() -> None:
    same_as_golden("report-hostile.en.txt", render(samples.hostile(), width=80, detail=1))


@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=range(len(hostile.PAYLOADS)))
def test_no_field_of_a_report_brings_control_characters_to_the_terminal(payload: str) -> None:
    text = render(hostile.poisoned(payload, times=True), width=100, detail=1)
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} == {"\n"}


FRAGMENTED = (
    "(EngineCore_DP0 pid=311) ERROR 07-02 14:30:21 [core.py:710] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. "
    "GPU 0 has a total capacity of 44.39 GiB of which 201.06 MiB is free. Including non-PyTorch memory, this process has 44.18 GiB memory in use. "
    "Of the allocated memory 39.02 GiB is allocated by PyTorch, and 4.31 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
TOO_LONG = (
    "(EngineCore pid=6628) ERROR 11-30 13:49:55 [core.py:1510] ValueError: To serve at least one request with the model's max seq len (2000000), "
    "(3.81 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated "
    "maximum model length is 524256. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)


@pytest.mark.parametrize("width", [72, 92])
@pytest.mark.parametrize(
    ("text", "signal", "sentence", "shown"),
    [
        (FRAGMENTED, "oom.reserved", "4.31 GiB was reserved but unallocated when the request failed: 862 % of what was asked for", ["4.31 GiB"]),
        (FRAGMENTED, "oom.reserved", "请求失败时有 4.31 GiB 已保留但未分配", ["4.31 GiB"]),
        (TOO_LONG, "startup.kv.shortfall", "one request of max-model-len needs 381 % of the KV cache that there is", ["3.81 GiB", "(1.0 GiB)"]),
        (TOO_LONG, "startup.estimate", "the longest that fits is 524,256 tokens", ["524256"]),
    ],
)
def test_a_thinned_quote_keeps_the_figure_that_the_evidence_claims(width: int, text: str, signal: str, sentence: str, shown: list[str]) -> None:
    rows = quote_rows(text, width, focus(signal, sentence))
    assert len(rows) <= 2
    assert all(cells(row) <= width for row in rows)
    assert [figure for figure in shown if figure not in " ".join(rows)] == []


def test_what_is_not_known_is_said_in_words() -> None:
    report = SAMPLES["kv-exhaustion"]("en")
    lead = report.findings[0]
    lacks = (MissingReport("scheduler.preemptions.delta", "two scrapes"), MissingReport("some.new.signal", "a look"))
    changed = msgspec.structs.replace(report, findings=(msgspec.structs.replace(lead, missing=lacks), *report.findings[1:]), attach_next=())
    for form in ("text", "markdown", "html"):
        shown = RENDERERS[form](changed, Style(100, False, 0, None))
        assert ("how often requests were preempted" in shown, "To find out more: a look" in shown) == (True, True), form
        assert ("scheduler.preemptions.delta" in shown, "some.new.signal" in shown) == (False, False), form
