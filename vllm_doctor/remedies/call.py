"""Keywords of an `LLM(...)` call in Python, set or removed by its syntax tree, the rest to the letter."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable

_PYTHON = re.compile(r"\b(?:LLM|AsyncLLM|EngineArgs|AsyncEngineArgs)\(")


def is_call(text: str) -> bool:
    """Is this Python, with the options as keywords?"""
    return _PYTHON.search(text) is not None


def with_keyword(text: str, option: str, value: str | None) -> str | None:
    """The text with the keyword of an option (`--long-name`) set in its first call, or removed (`value` None); None where that cannot be done."""
    found = _PYTHON.search(text)
    call = _call(text[found.start() :]) if found else None
    if found is None or call is None:
        return None
    source, node = call
    place = _offsets(source, found.start())
    name = option.lstrip("-").replace("-", "_")
    keyword = next((k for k in node.keywords if k.arg == name), None)
    literal = _literal(value)
    ends = [place(a.end_lineno, a.end_col_offset) for a in (*node.args, *(k.value for k in node.keywords))]
    if value is None:
        if keyword is None:
            return None
        before = [e for e in ends if e < place(keyword.lineno, keyword.col_offset)]
        start = max(before) if before else place(keyword.lineno, keyword.col_offset)
        return text[:start] + text[place(keyword.value.end_lineno, keyword.value.end_col_offset) :]
    if keyword is not None:
        start, end = place(keyword.value.lineno, keyword.value.col_offset), place(keyword.value.end_lineno, keyword.value.end_col_offset)
        return text[:start] + literal + text[end:]
    if not ends:
        return None
    starts = [place(k.lineno, k.col_offset) for k in node.keywords]
    gap = text[ends[-2] : starts[-1]] if len(ends) > 1 and starts else ", "
    return text[: ends[-1]] + gap + f"{name}={literal}" + text[ends[-1] :]


def _call(text: str) -> tuple[str, ast.Call] | None:
    """The first call in the text, up to the parenthesis that makes it whole."""
    for end in [i for i, c in enumerate(text) if c == ")"][:50]:
        try:
            node = ast.parse(text[: end + 1], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return (text[: end + 1], node) if isinstance(node, ast.Call) else None
    return None


def _offsets(source: str, base: int) -> Callable[[int | None, int | None], int]:
    """(line, column in UTF-8 bytes) of a syntax tree -> position in the text."""
    rows = source.split("\n")

    def position(line: int | None, column: int | None) -> int:
        row = (line or 1) - 1
        inside = rows[row].encode()[: column or 0].decode("utf-8", "ignore")
        return base + sum(len(r) + 1 for r in rows[:row]) + len(inside)

    return position


def _literal(value: str | None) -> str:
    if value in ("true", "false"):
        return str(value == "true")
    if re.fullmatch(r"-?\d+(?:\.\d+)?", str(value)):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
