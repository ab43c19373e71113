"""Content that is handed over, and what is said of what cannot be read."""

from __future__ import annotations

import ast
from pathlib import Path

import vllm_doctor.sources
from vllm_doctor.language import CATALOGUE, read_po
from vllm_doctor.model.observations import Issue, Ref
from vllm_doctor.sources import given

FOLDER = Path(vllm_doctor.sources.__file__).parent


def test_content_is_as_old_as_its_receipt() -> None:
    issues: list[Issue] = []
    assert [(s.name, s.mtime) for s in given("a.log", b"text", issues, 1796046493.0)] == [("a.log", 1796046493.0)]
    assert issues == []


def test_an_issue_of_a_whole_input_has_no_line() -> None:
    issues: list[Issue] = []
    assert given("a.bin", b"\x7fELF", issues, 0.0) == []
    assert issues == [Issue("source.binary", "this is no text", {}, Ref("a.bin", 0, ""))]


def test_every_issue_of_an_input_can_be_said_in_chinese() -> None:
    chinese = read_po(CATALOGUE.read_text(encoding="utf-8"))
    said = {
        call.args[2].value
        for path in FOLDER.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "issue" and len(call.args) > 2 and isinstance(call.args[2], ast.Constant)
    }
    assert len(said) > 20
    assert sorted(str(text) for text in said if text not in chinese) == []
