"""What the readmes say is what the tool does: its options, commands, formats, and the example."""

from __future__ import annotations

import importlib.util
import re

import click
import pytest

from tests.judging import ROOT
from vllm_doctor.cli import COMMANDS
from vllm_doctor.cli.analyze import command as analyze
from vllm_doctor.reports import RENDERERS

SPEC = importlib.util.spec_from_file_location("readme_example", ROOT / "tools" / "readme_example.py")
assert SPEC is not None
assert SPEC.loader is not None
readme_example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(readme_example)

PAGES = sorted(readme_example.PAGES)


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_example_is_what_the_tool_says(page: str) -> None:
    assert text(page) == readme_example.filled(page), "run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_every_option_and_command_is_named_and_no_other(page: str) -> None:
    table = re.search(r"\n\| \| \|\n(.*?)\n\n", text(page), re.DOTALL)
    assert table is not None
    rows = " ".join(line.split(" | ")[0] for line in table[1].splitlines())
    options = {o for p in analyze.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rows)) == options
    assert set(re.findall(r"`([a-z]+) ", rows)) == set(COMMANDS)
    formats = re.search(r"`--format ([^`]+)`", rows)
    assert formats is not None
    assert formats[1].split("\\|") == list(RENDERERS)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page: str) -> None:
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", text(page)) if "://" not in t]
    assert targets != []
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_a_report_is_shortened_to_the_sections_named_and_marked_where_it_is_cut() -> None:
    report = "head\n\n● finding\n\nWHY\n  + one\n  + two\n      line\n  + three\n\nOTHER\n  x\n\nMORE\n  y\n\nRULED OUT\n  - z\n"
    assert readme_example.shortened(report, ("WHY", "RULED OUT")) == (
        "head\n\n● finding\n\nWHY\n  + one\n  + two\n      line\n  …\n\n…\n\nRULED OUT\n  - z"
    )
