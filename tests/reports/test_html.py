"""The page of a report as text: what stands in it, that it carries everything itself, and that its parts are what the policy names."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import unicodedata
from typing import Any

import msgspec
import pytest

from tests.reports import hostile, samples
from tests.reports.test_text import SAMPLES, same_as_golden
from vllm_doctor.model.report import Change, Line, RemedyReport, Report, RuledOut, SeriesReport
from vllm_doctor.reports import RENDERERS, Style
from vllm_doctor.reports.changes import change_lines, launch_rows, typed
from vllm_doctor.reports.chart import chart, clusters
from vllm_doctor.reports.html import render
from vllm_doctor.reports.plain import code_pieces
from vllm_doctor.reports.telling import Telling


def without_assets(page: str) -> str:
    """The page without style sheet, scripts and their hashes, which have their own files."""
    page = re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.S)
    page = re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.S)
    return re.sub(r"sha256-[\w+/=]+", "sha256-", page)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_reads_as_recorded(name: str, language: str) -> None:
    same_as_golden(f"report-{name}.{language}.html", without_assets(render(SAMPLES[name](language))))


def test_a_hostile_page_reads_as_recorded() -> None:
    same_as_golden("report-hostile.en.html", without_assets(render(samples.hostile())))


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and every text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag if tag in self.raw else ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.raw[self.inside].append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


@pytest.mark.parametrize("report", [samples.kv_exhaustion(), samples.healthy("zh")], ids=["chart", "no chart"])
def test_the_policy_names_the_one_script_and_the_one_style_sheet(report: Report) -> None:
    page = Elements(render(report))
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    script, style = page.raw["script"][-1], page.raw["style"][0]

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert [sum(tag == name for tag, _ in page.elements) for name in ("style", "link")] == [1, 1]


def test_only_a_report_with_a_course_carries_the_chart_library() -> None:
    with_chart, without = render(samples.kv_exhaustion()), render(samples.healthy())
    assert ("uPlot (v" in with_chart, "uPlot (v" in without) == (True, False)
    assert "github.com/leeoniya/uPlot" in with_chart, "the licence asks for its notice"


@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=range(len(hostile.PAYLOADS)))
def test_hostile_text_makes_no_element_and_no_attribute(payload: str) -> None:
    harmless, poisoned = Elements(render(hostile.poisoned("harmless"))), Elements(render(hostile.poisoned(payload)))

    def shape(page: Elements) -> list[tuple[str, list[str]]]:
        # Pairs of backticks are code with a button, labels of charts are shown where they fit, commands have rows, long titles a class.
        own = ("code", "tspan", "text", "span")
        return [(tag, sorted(set(a) - {"class"})) for tag, a in page.elements if tag not in own and "data-copy" not in a]

    assert shape(poisoned) == shape(harmless)
    assert {a["href"] for tag, a in poisoned.elements if tag == "a"} == {a["href"] for tag, a in harmless.elements if tag == "a"}


@pytest.mark.parametrize("report", [samples.hostile(), *(hostile.poisoned(p) for p in hostile.PAYLOADS[25:28])], ids=range(4))
def test_no_page_holds_characters_that_steer(report: Report) -> None:
    page = render(report)
    assert {c for c in page if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} <= {"\n"}


def test_the_chart_data_cannot_end_its_element() -> None:
    page = Elements(render(hostile.poisoned("</script><!--<script>")))
    data = page.raw["script"][0]
    assert not set(data) & set("<>&")
    labels = [line["label"] for panel in json.loads(data)["panels"] for line in panel["lines"]]
    assert "requests.running </script><!--<script>" in labels


def test_a_source_is_a_link_only_where_it_is_an_address_of_the_web() -> None:
    remedy = samples.kv_exhaustion().findings[0].remedies[0]
    sources = ("https://docs.vllm.ai/en/latest/", "javascript:alert(1)", 'https://a.example/" onclick="x', "vllm/config/cache.py, 0.32.0")
    report = samples.kv_exhaustion()
    answer = msgspec.structs.replace(report.findings[0], remedies=(msgspec.structs.replace(remedy, sources=sources),))
    page = Elements(render(msgspec.structs.replace(report, findings=(answer,))))
    assert [(a["href"], a["rel"]) for tag, a in page.elements if tag == "a" and "rel" in a] == [
        ("https://docs.vllm.ai/en/latest/", "noopener noreferrer")
    ]


def test_what_is_not_there_is_left_out() -> None:
    page = render(Report(tool=samples.TOOL, redacted=True, verdict="inconclusive", summary="Cannot tell: the input holds nothing of vLLM."))
    assert re.findall(r'<section id="([\w-]+)"', page) == ["input"]
    assert '<h1 id="answer">Cannot tell: the input holds nothing of vLLM.</h1>' in page


def test_ruled_out_causes_come_with_their_reason_and_its_line() -> None:
    report = samples.kv_exhaustion()
    item = report.ruled_out[0]
    because = msgspec.structs.replace(item.because[0], refs=(Line("server.log", 77, "Running: 24 reqs"),))
    page = render(msgspec.structs.replace(report, ruled_out=(RuledOut(item.id, item.run, item.title, (because,)),)))
    section = page[page.index('id="ruled-out"') : page.index('id="not-checked"')]
    assert [text in section for text in ("max-num-seqs is the limit", "at most 24 of 64 slots were in use", "server.log:77")] == [True] * 3


def test_the_folder_that_all_sources_share_is_said_once() -> None:
    report = samples.kv_exhaustion()
    text = msgspec.json.encode(report).decode().replace('"server.log"', '"case/a/server.log"').replace('"metrics/', '"case/a/metrics/')
    page = render(msgspec.json.decode(text, type=Report))
    assert '<span class="place">server.log:174</span>' in page
    assert '<span class="full">case/a/server.log:174</span>' in page


@pytest.mark.parametrize(
    ("change", "kind", "lines", "paste"),
    [
        (Change("set", "--max-num-seqs", "64", "5"), "flag", [("-", "--max-num-seqs 64"), ("+", "--max-num-seqs 5")], "--max-num-seqs 5"),
        (Change("set", "--enforce-eager", None, "true"), "flag", [("+", "--enforce-eager")], "--enforce-eager"),
        (Change("set", "--max-model-len"), "flag", [("+", "--max-model-len …")], ""),
        (Change("remove", "--swap-space", "4"), "flag", [("-", "--swap-space 4")], ""),
        (Change("set", "A", None, "x y"), "env", [("+", "export A=x y")], "export A='x y'"),
        (Change("set", "--x", None, "$(rm -rf ~)"), "flag", [("+", "--x $(rm -rf ~)")], "--x '$(rm -rf ~)'"),
        (None, "client", [], ""),
    ],
)
def test_a_change_is_a_diff_and_can_be_pasted(change: Change | None, kind: Any, lines: list[tuple[str, str]], paste: str) -> None:
    remedy = RemedyReport("id", "title", kind, change, (), "", "", ())
    assert (change_lines(remedy), typed(remedy)) == (lines, paste)


def test_a_launch_command_has_an_option_on_each_row() -> None:
    assert launch_rows(" vllm serve m  --a 1 --b=x-y -c ") == ["vllm serve m \\", "--a 1 \\", "--b=x-y -c"]
    assert launch_rows('args:\n  - --a\n  - "1"\n') == ["args:", "  - --a", '  - "1"']


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("run `ss -tn` now", [("run ", False), ("ss -tn", True), (" now", False)]),
        ("a ` alone", [("a ` alone", False)]),
        ("``", [("``", False)]),
        ("", []),
    ],
)
def test_pairs_of_backticks_are_code(text: str, pieces: list[tuple[str, bool]]) -> None:
    assert code_pieces(text) == pieces


# -- the chart's data


def series(points: list[tuple[str, float, float, float]], signal: str = "requests.waiting", run: str = "run-1", engine: int = 0) -> SeriesReport:
    return SeriesReport(run, engine, signal, "count", 1, points)


def charted(*parts: SeriesReport) -> Any:
    return chart(Telling(msgspec.structs.replace(samples.kv_exhaustion(), series=parts, timeline=())))


def at(second: int, value: float) -> tuple[str, float, float, float]:
    return (f"2026-11-30T13:{second // 60:02d}:{second % 60:02d}", value, value, value)


def test_a_line_breaks_where_nothing_was_measured() -> None:
    drawn = charted(series([at(s, 1) for s in (0, 10, 20, 30, 300, 310, 320)]))
    assert drawn.panels[0].lines[0].high == [1, 1, 1, 1, None, 1, 1, 1]


def test_a_command_of_several_lines_is_copied_with_them() -> None:
    report = samples.kv_exhaustion()
    command = msgspec.structs.replace(report.commands[0], after='args:\n  - "--max-num-seqs"\n  - "\x1b[31m5"\n')
    page = Elements(render(msgspec.structs.replace(report, commands=(command,))))
    assert 'args:\n  - "--max-num-seqs"\n  - "5"' in [a.get("data-copy") for _, a in page.elements]


def test_two_lives_of_a_server_are_one_line_with_a_break() -> None:
    drawn = charted(series([at(0, 1), at(10, 2)]), series([at(20, 3), at(30, 4)], run="run-2"))
    assert [(line.label, line.high) for line in drawn.panels[0].lines] == [("waiting", [1, 2, None, 3, 4])]


def test_two_clocks_of_one_life_are_two_lines() -> None:
    drawn = charted(series([at(0, 1), at(10, 2)]), series([at(5, 3), at(15, 4)]))
    assert [line.high for line in drawn.panels[0].lines] == [[1, 2], [3, 4]]


def test_engines_have_lines_of_their_own() -> None:
    drawn = charted(*(series([at(0, 1), at(10, 2)], engine=n) for n in (0, 1)))
    assert [(p.title, [line.label for line in p.lines]) for p in drawn.panels] == [("Waiting requests", ["engine 0", "engine 1"])]


def test_events_that_coincide_share_a_flag() -> None:
    assert clusters([0, 10, 33, 40, 100], 34) == [[0, 1, 2], [3], [4]]
    assert clusters([], 34) == []


def test_thinning_keeps_the_lowest_and_the_highest() -> None:
    values = [5.0] * 3600
    values[1234], values[2345] = 99.0, 0.0
    line = charted(series([at(s, v) for s, v in enumerate(values)])).panels[0].lines[0]
    assert (len(line.times) <= 902, max(line.high), min(line.low)) == (True, 99.0, 0.0)


@pytest.mark.parametrize(
    "points", [[], [at(0, 1)], [("yesterday", 1.0, 1.0, 1.0)] * 3, [at(0, float("nan")), at(9, float("inf"))], [at(5, 1), at(5, 1)]]
)
def test_what_has_no_course_is_not_drawn(points: list[tuple[str, float, float, float]]) -> None:
    assert charted(series(points)) is None


def test_phases_are_start_up_the_trouble_and_the_time_between_two_lives() -> None:
    report = samples.kv_exhaustion()
    run = report.runs[0]
    second = msgspec.structs.replace(run, id="run-2", started="2026-11-30T13:55:00", ended=None, end="running")
    ready = msgspec.structs.replace(report.timeline[0], kind="startup.complete", time="2026-11-30T13:48:12")
    late = series([at(56 * 60, 1), at(57 * 60, 1)], run="run-2")
    drawn = chart(Telling(msgspec.structs.replace(report, runs=(run, second), timeline=(report.timeline[0], ready), series=(*report.series, late))))
    assert drawn is not None
    assert [(p.kind, p.label, p.end - p.start) for p in drawn.phases] == [
        ("startup", "start-up", 4),
        ("down", "not running", 204),
        ("trouble", "the trouble", 160),
    ]


def test_the_command_line_offers_every_output() -> None:
    assert list(RENDERERS) == ["text", "json", "markdown", "html", "sarif"]
    outputs = {name: output(samples.kv_exhaustion(), Style()) for name, output in RENDERERS.items()}
    assert {name: text[:2] for name, text in outputs.items()} == {"text": "vL", "json": "{\n", "markdown": "##", "html": "<!", "sarif": "{\n"}


def test_quantiles_of_one_latency_share_a_panel_and_so_do_gpus() -> None:
    names = ("latency.ttft.p50", "latency.ttft.p95", "latency.itl.p50", "gpu.memory.0", "gpu.memory.1")
    drawn = charted(*(series([at(0, 1), at(10, 2)], signal=name) for name in names))
    assert [(p.title, [line.label for line in p.lines]) for p in drawn.panels] == [
        ("GPU memory", ["GPU 0", "GPU 1"]),
        ("Time between tokens", ["p50"]),
        ("Time to first token", ["p50", "p95"]),
    ]
