#!/usr/bin/env python3
"""Puts what the tool really says about a recorded incident into README.md and README.zh.md. `make docs` runs it.

tools/readme_example.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASE = ROOT / "fixtures" / "kv-exhaustion-0.32"
COLUMNS = 100
PAGES = {
    "README.md": ("en", ("WHY", "WHAT TO DO", "RULED OUT", "NOT CHECKED")),
    "README.zh.md": ("zh", ("依据", "处理办法", "已排除", "未能检查")),
}
"""Page -> its language and the headings of the sections that it shows."""
PLACE = re.compile(r"(<!-- example: begin[^\n]*-->\n).*?(<!-- example: end -->)", re.DOTALL)
SHOWN = 2
"""Items of a section shown before it is cut."""


def output(language: str) -> str:
    """The report as somebody sees it who runs the command beside the files."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    arguments = [sys.executable, "-c", "from vllm_doctor.cli import main; main()", "analyze", "--lang", language, "server.log", "metrics"]
    return subprocess.run(arguments, cwd=CASE, env=environment, capture_output=True, encoding="utf-8", check=True, stdin=subprocess.DEVNULL).stdout


def shortened(text: str, headings: tuple[str, ...]) -> str:
    """The head, the first finding and the sections named; a line with an ellipsis stands for whatever was left out."""
    blocks = text.rstrip("\n").split("\n\n")
    kept: list[str] = []
    for i, block in enumerate(blocks):
        heading = next((h for h in headings if block.startswith(h)), None)
        if i >= 2 and heading is None:
            if kept[-1] != "…":
                kept.append("…")
            continue
        if heading is not None:
            items = re.split(r"\n(?=  (?:[+-]|\d\.) )", block)
            block = "\n".join([*items[: SHOWN + 1], *(["  …"] if len(items) > SHOWN + 1 else [])])
        kept.append(block)
    return "\n\n".join(kept)


def example(language: str, headings: tuple[str, ...]) -> str:
    command = "vllm-doctor analyze server.log metrics" if language == "en" else f"vllm-doctor analyze --lang {language} server.log metrics"
    return f"```console\n$ {command}\n{shortened(output(language), headings)}\n```\n"


def filled(page: str) -> str:
    """The page with a fresh example in its place."""
    language, headings = PAGES[page]
    fresh = example(language, headings)
    return PLACE.sub(lambda found: found[1] + fresh + found[2], (ROOT / page).read_text(encoding="utf-8"))


def main() -> int:
    for page in PAGES:
        (ROOT / page).write_text(filled(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
