"""`LLM(model=..., ...)` and its kin in Python code, whole or cut off."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from ..model.observations import Scalar

CALL_CHARACTERS = 20_000
CALL_LINES = 60
CALLS = 50
"""Bounds on hostile text: no script that starts a server is longer."""
_CALL = re.compile(r"\b(?:LLM|AsyncLLM|EngineArgs|AsyncEngineArgs)\(")
_KEYWORD = re.compile(r"(?:^|[(,\s])([a-z]\w*)\s*=\s*(\"[^\"\n]*\"|'[^'\n]*'|[\w.+-]+)")
_MODEL_KEYS = ("model", "model_tag", "model_path")


def python_calls(lines: list[str]) -> Iterator[tuple[int, int, str, dict[str, Scalar], str | None]]:
    """(first line, line behind, the call, options by `--name`, model) of each call that sets anything."""
    seen = 0
    for index, line in enumerate(lines):
        for found in _CALL.finditer(line):
            seen += 1
            if seen > CALLS or re.search(r"(?:class|def)\s+$", line[: found.start()]):
                continue
            call, end = _balanced(lines, index, found.start())
            keywords, model = _keywords(call)
            if keywords or model is not None:
                yield index, end, " ".join(call.split()), keywords, model


def _balanced(lines: list[str], index: int, start: int) -> tuple[str, int]:
    """The call up to its closing parenthesis, or what there is of it up to an empty line."""
    parts: list[str] = []
    depth, size = 0, 0
    piece = lines[index][start:]
    end = index + 1
    while True:
        quote, escaped = "", False
        for i, character in enumerate(piece):
            if escaped:
                escaped = False
            elif quote:
                escaped = character == "\\"
                quote = "" if character == quote else quote
            elif character in "\"'":
                quote = character
            elif character in "([{":
                depth += 1
            elif character in ")]}":
                depth -= 1
                if depth == 0:
                    return "\n".join([*parts, piece[: i + 1]]), end
        parts.append(piece)
        size += len(piece)
        if end >= len(lines) or not lines[end].strip() or end - index > CALL_LINES or size > CALL_CHARACTERS:
            return "\n".join(parts), end
        piece = lines[end]
        end += 1


def _keywords(call: str) -> tuple[dict[str, Scalar], str | None]:
    try:
        node = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if not isinstance(node, ast.Call):
        rough: dict[str, Scalar] = {}
        for name, value in _KEYWORD.findall(call[call.index("(") :]):
            if value != "None":
                rough["--" + name.replace("_", "-")] = value.strip("\"'")
        model = rough.get("--model")
        return rough, None if model is None else str(model)
    result: dict[str, Scalar] = {}
    model_value = _value(node.args[0]) if node.args else None
    for keyword in node.keywords:
        value = _value(keyword.value)
        if keyword.arg is None or value is None:
            continue
        if keyword.arg in _MODEL_KEYS:
            model_value = value
        result["--" + keyword.arg.replace("_", "-")] = value
    return result, None if model_value is None else str(model_value)


def _value(node: ast.expr) -> Scalar | None:
    """A literal as itself, structures as JSON, anything else as its source; None for None."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.unparse(node)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return ast.unparse(node)
