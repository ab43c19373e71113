"""Languages: detection, a complete catalogue, and figures with units."""

from __future__ import annotations

import ast
import math
import string
from pathlib import Path

import pytest
from babel.messages.pofile import read_po as babel_read_po

from vllm_doctor.language import CATALOGUE, detect, format_value, read_po, translator
from vllm_doctor.model.catalogue import OBSERVATIONS
from vllm_doctor.narrate import TIMELINE
from vllm_doctor.parsing.gpu import _FAILURES

PACKAGE = Path(__file__).resolve().parent.parent / "vllm_doctor"


def texts_in_code() -> list[tuple[str, ast.expr]]:
    """Every first argument of a call of `_` (or `self._`) in the package, with its place."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and "_" in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", node.args[0]))
    return found


LITERALS = {node.value: place for place, node in texts_in_code() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
CHINESE = read_po(CATALOGUE.read_text(encoding="utf-8"))


def texts_in_templates() -> dict[str, str]:
    """Every text that a template translates, with its place."""
    from jinja2.ext import babel_extract

    found = {}
    for path in sorted(PACKAGE.rglob("templates/*.html")):
        with path.open("rb") as file:
            options = {"trim_blocks": "true", "silent": "false"}
            for line, _function, text, _comments in babel_extract(file, ["_"], [], options):
                assert isinstance(text, str), f"{path.name}:{line}: _ takes one literal text"
                found[text] = f"{path.relative_to(PACKAGE)}:{line}"
    return found


LITERALS |= texts_in_templates()


def texts_of_misuse() -> list[tuple[str, ast.expr]]:
    """Every first argument of an error of the command line, with its place."""
    return [
        (f"{path.relative_to(PACKAGE)}:{node.lineno}", node.args[0])
        for path in sorted((PACKAGE / "cli").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Misuse", "NoInput")
    ]


LITERALS |= {n.value: place for place, n in texts_of_misuse() if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_an_error_of_the_command_line_is_given_as_a_text_and_its_values() -> None:
    assert [place for place, node in texts_of_misuse() if isinstance(node, (ast.JoinedStr, ast.BinOp))] == []
    assert "cannot write {path}: {reason}" in LITERALS


MESSAGE_AT = {"Issue": 1, "_issue": 1, "issue": 2}
"""Functions that make an issue, and where their message stands."""


def messages_of_issues() -> dict[str, str]:
    """Every message of an issue with its place: literal at the call, in a name that the same file binds to literals, or in a table of GPU
    failures. Messages that an error brings along (`str(error)`) are made elsewhere."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bound: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                bound.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(tree):
            at = MESSAGE_AT.get(getattr(node.func, "id", "")) if isinstance(node, ast.Call) else None
            if at is None or not isinstance(node, ast.Call) or len(node.args) <= at:
                continue
            message = node.args[at]
            values = bound.get(message.id, []) if isinstance(message, ast.Name) else [message]
            parts = [part for v in values for part in ((v.body, v.orelse) if isinstance(v, ast.IfExp) else (v,))]
            found |= {p.value: f"{path.name}:{node.lineno}" for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)}
    return found | {text: "gpu.py" for _, _, text in _FAILURES}


ISSUES = messages_of_issues()


def test_messages_of_issues_are_found_however_they_are_given() -> None:
    assert {
        "The rule {id} of this tool was replaced by one of your own.",
        "the endpoint answered with HTTP status {status}",
        "the file is empty",
        "a GPU has fallen off the bus: look for Xid 79 in the kernel log",
    } <= set(ISSUES)


@pytest.mark.parametrize("text", sorted(ISSUES), ids=repr)
def test_a_message_of_an_issue_has_a_translation_with_the_same_placeholders(text: str) -> None:
    assert CHINESE.get(text), f"{ISSUES[text]}: no Chinese for {text!r} in {CATALOGUE.name}"
    assert placeholders(CHINESE[text]) == placeholders(text)


def placeholders(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def test_there_are_texts_to_translate() -> None:
    assert len(LITERALS) > 50


@pytest.mark.parametrize("text", sorted(LITERALS), ids=repr)
def test_a_text_in_code_has_a_translation_with_the_same_placeholders(text: str) -> None:
    assert CHINESE.get(text), f"{LITERALS[text]}: no Chinese for {text!r} in {CATALOGUE.name}"
    assert placeholders(CHINESE[text]) == placeholders(text)


@pytest.mark.parametrize("kind", TIMELINE)
def test_an_event_of_the_timeline_has_a_translation(kind: str) -> None:
    assert CHINESE.get(OBSERVATIONS[kind].meaning)


def test_every_translation_keeps_its_placeholders() -> None:
    assert {k: v for k, v in CHINESE.items() if placeholders(k) != placeholders(v)} == {}


def test_the_catalogue_is_read_as_babel_reads_it() -> None:
    with CATALOGUE.open("rb") as file:
        catalogue = babel_read_po(file, locale="zh")
    assert {str(m.id): str(m.string) for m in catalogue if m.id} == CHINESE


def test_no_text_stands_twice_in_the_catalogue() -> None:
    ids = [line for line in CATALOGUE.read_text(encoding="utf-8").splitlines() if line.startswith("msgid ")]
    assert sorted(set(ids)) == sorted(ids)


def test_strings_of_a_catalogue_may_span_lines_and_hold_escapes() -> None:
    assert read_po('# note\nmsgid ""\nmsgstr "Language: zh\\n"\n\nmsgid "a "\n"\\"b\\""\nmsgstr "甲\\n"\n"乙"\n') == {'a "b"': "甲\n乙"}


def test_a_catalogue_with_plurals_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: 'msgid_plural' is not msgid or msgstr"):
        read_po('msgid "a"\nmsgid_plural "b"\n')


def test_english_and_missing_texts_stay_as_they_are() -> None:
    assert (translator("en")("WHY"), translator("zh")("WHY"), translator("zh")("no such text"), translator("fr")("WHY")) == (
        "WHY",
        "依据",
        "no such text",
        "WHY",
    )


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "de_DE", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN", "LC_ALL": ""}, "zh"),
        ({"VLLM_DOCTOR_LANG": "ZH", "LC_ALL": "en_US"}, "zh"),
        ({"VLLM_DOCTOR_LANG": "en", "LANG": "zh_CN"}, "en"),
    ],
)
def test_the_first_variable_that_is_set_decides(environ: dict[str, str], language: str) -> None:
    assert detect(environ) == language


@pytest.mark.parametrize(
    ("value", "unit", "english", "chinese"),
    [
        (10_597_000_000, "bytes", "9.87 GiB", "9.87 GiB"),
        (-(2**30), "bytes", "-1.00 GiB", "-1.00 GiB"),
        (96_675_430, "bytes", "92.2 MiB", "92.2 MiB"),
        (1536, "bytes", "1.5 KiB", "1.5 KiB"),
        (0, "bytes", "0 B", "0 B"),
        (3 * 2**40, "bytes", "3.00 TiB", "3.00 TiB"),
        (0.969, "ratio", "97 %", "97%"),
        (0, "ratio", "0 %", "0%"),
        (1, "ratio", "100 %", "100%"),
        (0.004, "ratio", "0.4 %", "0.4%"),
        (0.0001, "ratio", "< 0.1 %", "< 0.1%"),
        (0.996, "ratio", "99.6 %", "99.6%"),
        (0.99999, "ratio", "> 99.9 %", "> 99.9%"),
        (12.5, "ratio", "1,250 %", "1,250%"),
        (5120, "tokens", "5,120 tokens", "5,120 个 token"),
        (34, "count", "34", "34"),
        (1234567, "count", "1,234,567", "1,234,567"),
        (0.375, "count", "0.375", "0.375"),
        (41.04, "tokens/s", "41 tokens/s", "41 token/s"),
        (0.00004, "s", "0.04 ms", "0.04 毫秒"),
        (0.17, "s", "170 ms", "170 毫秒"),
        (0, "s", "0 s", "0 秒"),
        (6.2, "s", "6.2 s", "6.2 秒"),
        (59.97, "s", "1 min", "1 分"),
        (105, "s", "1 min 45 s", "1 分 45 秒"),
        (3725, "s", "1 h 02 min", "1 小时 02 分"),
        (90000, "s", "1 d 01 h", "1 天 01 小时"),
        (-105, "s", "-1 min 45 s", "-1 分 45 秒"),
        (4.2, "per_minute", "4.2/min", "4.2/分钟"),
        (0.53, "per_second", "0.53/s", "0.53/秒"),
        (0.12, "times", "0.12x", "0.12x"),
        (256, "times", "256x", "256x"),
        (7, "widgets", "7 widgets", "7 widgets"),
        (True, "flag", "yes", "是"),
        ("FLASH_ATTN", "text", "FLASH_ATTN", "FLASH_ATTN"),
        (None, "count", "unknown", "未知"),
        (math.nan, "s", "unknown", "未知"),
        (math.inf, "s", "unlimited", "无上限"),
    ],
)
def test_a_value_reads_with_its_unit(value: float | str | None, unit: str, english: str, chinese: str) -> None:
    assert (format_value(value, unit, "en"), format_value(value, unit, "zh")) == (english, chinese)
