"""The page of a report in a real Chromium: what a reader sees, on every kind of screen, and that nothing but the page is at work."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import msgspec
import pytest

from tests.browser.conftest import Open, Opened
from tests.reports import hostile, samples
from vllm_doctor.model.report import Report, SeriesReport
from vllm_doctor.reports.html import render

SAMPLES = {"kv-exhaustion": samples.kv_exhaustion, "healthy": samples.healthy, "failed-start": samples.failed_start}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 780}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


def bottom(opened: Opened, selector: str) -> float:
    box = opened.page.locator(selector).bounding_box()
    assert box is not None
    return box["y"] + box["height"]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_answer_and_the_next_step_are_seen_without_scrolling(open_page: Open, name: str, language: str) -> None:
    opened = open_page(SAMPLES[name](language))
    assert bottom(opened, "#answer") < bottom(opened, ".next") < 800
    assert opened.page.evaluate("document.documentElement.lang") == {"en": "en", "zh": "zh-CN"}[language]
    assert opened.faults() == {}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_phone_shows_the_answer_at_once_and_never_scrolls_sideways(open_page: Open, language: str) -> None:
    opened = open_page(samples.kv_exhaustion(language), **PHONE)
    assert bottom(opened, ".next") < 780
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert opened.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]") == [360, 360]


def test_hostile_length_does_not_widen_the_page(open_page: Open) -> None:
    opened = open_page(samples.hostile(), **PHONE)
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert opened.page.evaluate("document.scrollingElement.scrollWidth") == 360


def test_a_quoted_line_opens_between_its_neighbours_with_their_numbers(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion()).page
    ref = page.locator("#why details.ref", has_text="server.log:174")
    assert not ref.locator(".row").first.is_visible()
    ref.locator("summary").click()
    assert ref.locator(".no").all_inner_texts() == ["173", "174", "175"]
    assert ref.locator(".row.this .line-text").inner_text() == samples.STATS
    assert [ref.locator(".line-text").nth(i).inner_text() for i in (0, 2)] == [samples.ACCESS, samples.ACCESS]


def test_the_copy_button_copies_what_is_typed(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion(), permissions=["clipboard-read", "clipboard-write"]).page
    page.locator("#do .launch button.copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "vllm serve ./models/tiny --max-model-len 2048 --max-num-seqs 64"
    page.locator("#do .remedies button.copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "--max-num-seqs 5"
    assert page.locator("#status").inner_text() == "Copied"


# -- the timeline


def test_the_chart_takes_the_place_of_the_picture(open_page: Open) -> None:
    opened = open_page(samples.kv_exhaustion())
    assert (opened.page.locator("#picture").is_visible(), opened.page.locator("#panels canvas").count()) == (False, 3)
    assert opened.page.locator(".panel-head .name").all_inner_texts() == ["Requests", "KV cache usage", "Throughput"]
    assert opened.faults() == {}


def test_hovering_reads_every_panel_at_one_moment(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion()).page
    area = page.locator("#panels .u-over").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    area.hover(position={"x": box["width"] * (40 - 8) / (212 - 8), "y": 30})  # the span is 13:48:08 to 13:51:36; this is the fourth step
    assert page.locator(".panel-head .value").all_inner_texts() == [
        "running 8 (0 – 24)",
        "waiting 4.5 (0 – 9)",
        "60 % (10 % – 97 %)",
        "prompt 90 tokens/s (0 tokens/s – 148.2 tokens/s)",
        "generation 260 tokens/s (68.5 tokens/s – 502 tokens/s)",
    ]
    assert page.locator(".panel-head .at").first.inner_text().startswith("13:48:4")


def test_dragging_zooms_all_panels_and_a_double_click_shows_the_whole(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion()).page
    area = page.locator("#panels .u-over").nth(1)
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=5)
    page.mouse.up()
    assert page.locator("#status").inner_text().startswith("shown: 13:49:0")
    area.dblclick()
    assert page.locator("#status").inner_text() == "shown: 13:48:08 → 13:51:36"


def test_everything_works_from_the_keyboard(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion()).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "why"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#why details.ref").first.get_attribute("open") == ""
    page.locator("[data-do=in]").focus()
    page.keyboard.press("Enter")
    assert page.locator("#status").inner_text() == "shown: 13:49:00 → 13:50:44"
    page.keyboard.press("ArrowRight")
    assert page.locator("#status").inner_text() == "shown: 13:49:52 → 13:51:36"
    page.keyboard.press("0")
    assert page.locator("#status").inner_text() == "shown: 13:48:08 → 13:51:36"
    unreachable = "[...document.querySelectorAll('a[href], button, summary')].filter(e => e.checkVisibility() && e.tabIndex < 0).length"
    assert page.evaluate(unreachable) == 0


def test_without_scripts_the_picture_stands_in_and_nothing_dead_is_shown(open_page: Open) -> None:
    opened = open_page(samples.kv_exhaustion(), java_script_enabled=False)
    page = opened.page
    assert page.locator("#picture svg").is_visible()
    assert [page.locator(s).is_visible() for s in ("#chart", "button.copy >> nth=0")] == [False, False]
    page.locator("#why details.ref summary").first.click()
    assert page.locator("#why pre.context").first.is_visible()
    assert opened.faults() == {}


def test_paper_has_the_picture_and_the_open_evidence_but_no_controls(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion(), color_scheme="dark").page
    page.emulate_media(media="print")
    assert page.locator("#picture svg").is_visible()
    assert [page.locator(s).first.is_visible() for s in ("#chart", "nav", "button.copy")] == [False, False, False]
    shown = page.locator("#why details.ref .row.this").first.bounding_box()
    assert shown is not None
    assert shown["height"] > 5
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_dark_mode_is_dark_and_the_chart_follows(open_page: Open) -> None:
    page = open_page(samples.kv_exhaustion(), color_scheme="dark").page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
    picture = "document.querySelector('#panels canvas').toDataURL()"
    dark = page.evaluate(picture)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"dark => {picture} !== dark", arg=dark)


# -- accessibility


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
@pytest.mark.parametrize("name", SAMPLES)
def test_axe_finds_nothing_serious(open_page: Open, name: str, options: dict[str, Any]) -> None:
    page = open_page(SAMPLES[name]("zh" if options is PHONE else "en"), bypass_csp=True, **options).page
    page.evaluate("document.querySelectorAll('section:not(#input) details, #input details:first-of-type').forEach(d => { d.open = true })")
    page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    assert [(v["id"], v["impact"], v["nodes"][0]["html"]) for v in found["violations"] if v["impact"] in ("serious", "critical")] == []
    assert len(found["passes"]) > 15


# -- hostile input


GROUPS = [" ".join(hostile.PAYLOADS[i : i + 6]) for i in range(0, len(hostile.PAYLOADS), 6)]


@pytest.mark.parametrize("without_policy", [False, True])
@pytest.mark.parametrize("payload", GROUPS, ids=range(len(GROUPS)))
def test_nothing_of_a_hostile_log_comes_alive(open_page: Open, payload: str, without_policy: bool) -> None:
    opened = open_page(hostile.poisoned(payload), bypass_csp=without_policy)  # escaping must hold without the policy, too
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    page.evaluate(
        "document.querySelectorAll('*').forEach(e => { for (const n of ['mouseover', 'focus', 'toggle', 'load']) e.dispatchEvent(new Event(n)) })"
    )
    page.locator("#panels .u-over").first.hover()
    page.locator("button.copy").first.click()
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    alien = "[...document.querySelectorAll('iframe, img, form, base, object, embed, [onerror], [onload], [onclick], [href^=javascript]')].length"
    assert page.evaluate(alien) == 0
    assert opened.faults() == {}


def test_times_are_as_harmless_as_other_texts(open_page: Open) -> None:
    assert open_page(hostile.poisoned(" ".join(hostile.PAYLOADS), times=True), bypass_csp=True).faults() == {}


def test_the_page_shows_hostile_text_as_it_was_written(open_page: Open) -> None:
    payload = hostile.PAYLOADS[8]
    page = open_page(hostile.poisoned(payload)).page
    assert page.locator("h1").inner_text() == f"The KV cache is full, so requests wait or are preempted {payload}"
    assert page.locator("#data").inner_text().count("<") == 0


def test_the_policy_alone_would_stop_a_script_a_style_and_a_request(open_page: Open) -> None:
    torn = render(samples.kv_exhaustion()).replace(
        "<footer>",
        "<script>window.pwned=1</script><img src=x onerror='window.pwned=1'><img src='http://evil.invalid/x.png'><p style='color:red'>x</p><footer>",
    )
    opened = open_page(torn)
    assert opened.page.evaluate("window.pwned") is None
    blocked = opened.page.evaluate("violations.map(v => v.split(' ')[0]).sort()")
    assert blocked == ["img-src", "img-src", "script-src-attr", "script-src-elem", "style-src-attr"]


# -- size


def day_of_stats() -> Report:
    """8,640 samples, one each ten seconds, of eight series, with one peak of a single sample in each."""
    signals = [
        ("requests.running", "count"), ("requests.waiting", "count"), ("kv_cache.usage", "ratio"), ("throughput.prompt", "tokens/s"),
        ("throughput.generation", "tokens/s"), ("latency.ttft.p50", "s"), ("latency.ttft.p99", "s"), ("gpu.memory.0", "bytes"),
    ]  # fmt: skip
    series = []
    for k, (signal, unit) in enumerate(signals):
        scale = {"ratio": 1.0, "bytes": 80e9, "s": 3.0}.get(unit, 250.0)
        values = [scale * (0.37 + ((n * (7 + k)) % 101) / 400) for n in range(8640)]
        values[1000 + 700 * k] = scale
        points = [(f"2026-11-30T{n // 360:02d}:{n // 6 % 60:02d}:{n % 6 * 10:02d}", v, v, v) for n, v in enumerate(values)]
        series.append(SeriesReport("run-1", 0, signal, unit, 10, points))
    return msgspec.structs.replace(samples.kv_exhaustion(), series=tuple(series))


def test_a_day_of_stats_lines_stays_below_300_kb_and_keeps_its_peaks(open_page: Open) -> None:
    report = day_of_stats()
    html = render(report)
    assert len(html.encode()) <= 300_000
    opened = open_page(html)
    data = json.loads(opened.page.locator("#data").inner_text())
    peaks = {line["label"]: max(line["high"]) for panel in data["panels"] for line in panel["lines"]}
    assert peaks == {
        "running": 250, "waiting": 250, "KV cache usage": 1, "prompt": 250, "generation": 250, "p50": 3, "p99": 3, "GPU 0": 80e9,
    }  # fmt: skip
    assert opened.page.locator(".panel-head .name").all_inner_texts() == [
        "Requests",
        "KV cache usage",
        "Throughput",
        "GPU memory",
        "Time to first token",
    ]
    assert opened.faults() == {}
