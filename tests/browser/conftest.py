"""A real Chromium for the tests of pages. Its absence is a failure: a page that nobody opened is not tested."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from vllm_doctor.model.report import Report
from vllm_doctor.reports.html import render

PACKAGES = ("chromium", "fonts-noto-cjk")
SWITCHES = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")


def find_chromium() -> str:
    """The path of a Chromium; installs Debian's where that is possible. Fails the test with a word on what to do."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update", "-q"], check=False, **quiet)  # type: ignore[call-overload]
        subprocess.run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES], check=False, **quiet)  # type: ignore[call-overload]
        path = shutil.which("chromium")
        if path:
            return path
    pytest.fail(f"the tests of pages need Chromium: as root, apt-get install -y {' '.join(PACKAGES)}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=list(SWITCHES))
        yield chromium
        chromium.close()


class Opened:
    """A page that was opened from a file, and what it did that it should not: requests, policy violations, errors."""

    def __init__(self, context: BrowserContext, path: Path) -> None:
        self.page: Page = context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        own = path.as_uri()
        context.on("request", lambda r: None if r.url.split("#")[0] == own or r.url.startswith("data:") else self.requests.append(r.url))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(own)

    def faults(self) -> dict[str, object]:
        """Everything that went wrong; empty where nothing did."""
        pwned, violations = self.page.evaluate("[window.pwned ?? null, window.violations ?? []]") if self.scripts else (None, [])
        found = {"requests": self.requests, "complaints": self.complaints, "violations": violations, "pwned": pwned}
        return {k: v for k, v in found.items() if v}

    scripts = True


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a report's page from a file in a context of its own; further arguments are those of a browser context."""
    contexts = []

    def opened(report: Report | str, **options: Any) -> Opened:
        path = tmp_path / f"report-{len(contexts)}.html"
        path.write_text(report if isinstance(report, str) else render(report), encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.add_init_script(
            "window.violations = []; addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + ' ' + e.blockedURI))"
        )
        contexts.append(context)
        result = Opened(context, path)
        result.scripts = options.get("java_script_enabled", True)
        return result

    yield opened
    for context in contexts:
        context.close()
