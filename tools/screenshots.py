"""Takes the screenshots in docs/screenshots from reports of this repository's fixtures, in a real Chromium.

Run it after a change of the page: `.venv/bin/python tools/screenshots.py`. Needs Chromium and fonts for Chinese.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import vllm_doctor
from vllm_doctor.reports.html import render

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "screenshots"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1100, "height": 760}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 1.5, "is_mobile": True, "has_touch": True}
SHOTS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    ("answer", "kv-exhaustion-0.32", "en", "", DESKTOP),
    ("timeline", "kv-exhaustion-0.32", "en", "#timeline", DESKTOP),
    ("timeline-without-scripts", "kv-exhaustion-0.32", "en", "#timeline", {**DESKTOP, "java_script_enabled": False}),
    ("dark", "oom-fragmentation-0.14", "en", "", {**DESKTOP, "color_scheme": "dark"}),
    ("memory", "oom-fragmentation-0.14", "en", "#memory", DESKTOP),
    ("phone-zh", "kv-exhaustion-0.32", "zh", "", PHONE),
)
"""Name, fixture, language, the element (the window where empty), and the reader's screen."""


def main() -> None:
    """Writes one PNG for each of SHOTS."""
    OUT.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for name, fixture, language, element, options in SHOTS:
            page_file = Path(folder) / f"{name}.html"
            report = vllm_doctor.analyze(ROOT / "fixtures" / fixture, language=language)
            page_file.write_text(render(report), encoding="utf-8")
            context = browser.new_context(**options)
            page = context.new_page()
            page.goto(page_file.as_uri())
            target = page.locator(element) if element else page
            target.screenshot(path=OUT / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
