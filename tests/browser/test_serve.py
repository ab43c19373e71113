"""The form of `serve` in a real Chromium: pasting, dropping, both languages, with and without scripts, by keyboard, and to a screen reader."""

# ruff: noqa: E501

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.redact.corpus import crash_log
from tests.web.running import Running, running
from vllm_doctor.web.limits import MIB, Limits

ROOT = Path(__file__).resolve().parent.parent.parent
CASE = ROOT / "fixtures" / "kv-exhaustion-0.32"
LOG = (CASE / "server.log").read_text(encoding="utf-8")
ANSWER = "The KV cache is full"
WATCH = "window.violations = []; document.addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective + ' ' + e.blockedURI))"


@pytest.fixture(scope="module")
def here() -> Iterator[Running]:
    with running(Limits(body=8 * MIB)) as server:
        yield server


class Visit:
    def __init__(self, page: Page, server: Running, scripts: bool) -> None:
        self.page, self.server, self.scripts = page, server, scripts
        self.complaints: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.complaints.append(str(e)))
        page.context.on("request", lambda r: None if r.url.startswith((server.address, "data:", "blob:")) else self.complaints.append(r.url))

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.server.address + path)
        return self.page

    def faults(self) -> list[str]:
        return self.complaints + (self.page.evaluate("window.violations") if self.scripts else [])


@pytest.fixture
def visit(browser: Browser, here: Running, request: pytest.FixtureRequest) -> Iterator[Visit]:
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(**options)
    context.add_init_script(WATCH)
    yield Visit(context.new_page(), here, options.get("java_script_enabled", True))
    assert context.cookies() == []
    context.close()


def drop(page: Page, files: dict[str, str]) -> None:
    """Drops files on the page as a person would, from outside the browser."""
    transfer = page.evaluate_handle(
        """files => { const all = new DataTransfer();
        for (const [name, text] of Object.entries(files)) all.items.add(new File([text], name, {type: "text/plain"})); return all; }""",
        files,
    )
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})


def test_a_pasted_log_becomes_a_report(visit: Visit) -> None:
    page = visit.open()
    page.fill("#paste", LOG)
    page.click("#go")
    expect(page.locator("h1")).to_contain_text(ANSWER)
    with page.expect_download() as download:
        page.click("a[download$='.json']")
    assert '"kv-cache-exhaustion"' in Path(download.value.path()).read_text(encoding="utf-8")
    assert visit.faults() == []


def test_three_dropped_files_are_listed_and_read_together(visit: Visit) -> None:
    page = visit.open()
    scrapes = sorted((CASE / "metrics").iterdir())
    drop(page, {"server.log": LOG, "notes.txt": "it got slow at noon\n", scrapes[0].name: scrapes[0].read_text(encoding="utf-8")})
    drop(page, {scrapes[-1].name: scrapes[-1].read_text(encoding="utf-8")})
    assert [t.partition(" (")[0] for t in page.locator("#chosen li span").all_inner_texts()] == [
        "server.log",
        "notes.txt",
        scrapes[0].name,
        scrapes[-1].name,
    ]
    page.get_by_role("button", name="Remove notes.txt").click()
    page.click("#go")
    expect(page.locator("h1")).to_contain_text(ANSWER)
    expect(page.locator("main")).to_contain_text(scrapes[0].name)
    assert "notes.txt" not in page.locator("main").inner_text()
    assert visit.faults() == []


@pytest.mark.parametrize("visit", [{"locale": "zh-CN"}], indirect=True)
def test_a_chinese_browser_gets_chinese_pages(visit: Visit) -> None:
    page = visit.open()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_label("在此粘贴").fill(LOG)
    page.get_by_role("button", name="开始分析").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.locator(".serve-bar")).to_contain_text("重新分析")
    page.get_by_role("link", name="重新分析").click()
    page.get_by_role("link", name="English").click()
    expect(page.locator("h1")).to_have_text("What is wrong with this vLLM server?")
    assert visit.faults() == []


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_the_form_works_without_scripts(visit: Visit) -> None:
    page = visit.open()
    page.fill("#paste", "vllm serve ./models/tiny --max-num-seqs 64\n")
    page.set_input_files("#files", [CASE / "server.log"])
    page.click("#go")
    expect(page.locator("h1")).to_contain_text(ANSWER)
    assert visit.faults() == []


def test_everything_is_reached_by_keyboard(visit: Visit) -> None:
    page = visit.open()
    page.locator("#paste").focus()
    page.keyboard.insert_text(LOG)
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "go":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text(ANSWER)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") in ("New analysis", "Skip to the answer")


def test_the_sample_is_one_click_away(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("link", name="Try it with a sample incident").click()
    expect(page.locator("h1")).to_contain_text(ANSWER)
    expect(page.locator("#panels canvas").first).to_be_visible()
    assert visit.faults() == []


def test_nothing_and_too_much_are_said_on_the_page(visit: Visit) -> None:
    page = visit.open()
    page.click("#go")
    expect(page.locator("#status")).to_have_text("Nothing was sent. Paste a log or choose a file.")
    drop(page, {"big.log": "x" * (9 * MIB)})
    page.click("#go")
    expect(page.locator("#status")).to_contain_text("at most 8.0 MiB")
    assert (page.url, visit.faults()) == (visit.server.address + "/", [])


NOTED = """sessionStorage.seen = ""; new MutationObserver(() => {
    const state = [document.getElementById("status").textContent, document.getElementById("go").disabled, !document.getElementById("progress").hidden];
    sessionStorage.seen += JSON.stringify(state) + "\\n";
}).observe(document.getElementById("status"), {childList: true})"""


def test_progress_is_shown_while_a_report_is_made(visit: Visit) -> None:
    page = visit.open()
    answered: list[bool] = []
    page.on("response", lambda r: answered.append(r.ok) if "/progress/" in r.url else None)
    lines = LOG.splitlines(keepends=True)
    drop(page, {"long.log": "".join(lines[:40] + lines[40:200] * 200)})
    page.evaluate(NOTED)
    page.click("#go")
    expect(page.locator("h1")).to_contain_text(ANSWER, timeout=60_000)
    seen = [json.loads(line) for line in page.evaluate("sessionStorage.seen").splitlines()]
    assert seen[0] == ["Sending …", True, True]
    assert True in answered
    assert {text for text, _, _ in seen} & {"Analysing …", "Reading long.log …"}


HOSTILE = [
    "<script>document.title = 'pwned'</script>", "</script><img src=x onerror=\"document.title='pwned'\">", "<svg onload=\"document.title='pwned'\">",
    "{{ 7 * 7 }} {% raw %}", "javascript:document.title='pwned'", "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\", "\u202egnp.exe",
    '"><style>body{display:none}</style><base href="https://evil.example/">', "<meta http-equiv=\"Content-Security-Policy\" content=\"script-src *\">",
]  # fmt: skip


def test_hostile_lines_and_names_stay_text(visit: Visit) -> None:
    from tests.redact.corpus import Case

    page = visit.open()
    drop(page, {f"{line}.log": crash_log(Case("", line, ())) for line in HOSTILE})
    page.click("#go")
    expect(page.locator(".serve-bar")).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert page.title() != "pwned"
    assert page.locator("main img, main base, body style, body meta").count() == 0
    assert visit.faults() == []


@pytest.mark.parametrize(
    "visit", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 780}}], ids=["light", "dark", "phone"], indirect=True
)
@pytest.mark.parametrize("path", ["/", "/?lang=zh", "/sample", "/nothing"])
def test_no_serious_barrier_for_assistive_technology(visit: Visit, path: str) -> None:
    page = visit.open(path)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_a_page_of_another_site_cannot_post_here(visit: Visit) -> None:
    form = f'<form method="post" action="{visit.server.address}/analyze"><textarea name="paste">x</textarea></form><script>document.forms[0].submit()</script>'
    visit.page.goto("data:text/html;base64," + base64.b64encode(form.encode()).decode())
    expect(visit.page.locator("[role=alert]")).to_have_text("This request came from a page of another site and was refused.")
