"""YAML without surprises: plain scalars, no aliases, no duplicate or non-string keys, bounded depth and size, and a line for every value.

PyYAML's composer gives nodes with marks; the constructor here knows only null, bool, int, float, str, list and dict.
"""

from __future__ import annotations

from typing import Any

import yaml

from .errors import RuleError

MAX_BYTES = 512 * 1024
MAX_DEPTH = 12
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str, file: str) -> tuple[Any, dict[str, int]]:
    """The document and the line of each value by its msgspec path (`$.samples[0].want`). Raises RuleError."""
    if len(text.encode()) > MAX_BYTES:
        raise RuleError(file, 1, f"larger than {MAX_BYTES // 1024} KiB", "split it: one cause per file, one chapter of formats per file")
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise RuleError(
                    file, event.start_mark.line + 1 if event.start_mark else 1, "anchors and aliases are not allowed", "write the value out"
                )
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise RuleError(file, mark.line + 1 if mark else 1, str(getattr(error, "problem", None) or error), "check quoting and indentation") from None
    lines: dict[str, int] = {}
    return (None if node is None else _build(node, file, "$", 0, lines)), lines


def _build(node: yaml.Node, file: str, path: str, depth: int, lines: dict[str, int]) -> Any:
    line = node.start_mark.line + 1
    lines[path] = line
    if depth > MAX_DEPTH:
        raise RuleError(file, line, f"nested deeper than {MAX_DEPTH}", "flatten it")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise RuleError(file, key_node.start_mark.line + 1, f"key {getattr(key_node, 'value', '?')!r} is not a string", "quote it")
            if key in result:
                raise RuleError(file, key_node.start_mark.line + 1, f"key {key!r} occurs twice", "keep one")
            result[key] = _build(value_node, file, f"{path}.{key}", depth + 1, lines)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, file, f"{path}[{i}]", depth + 1, lines) for i, item in enumerate(node.value)]
    return _scalar(node) if isinstance(node, yaml.ScalarNode) else None


def _scalar(node: yaml.ScalarNode) -> Any:
    kind, text = node.tag.rpartition(":")[2], node.value
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and text.lstrip("+-").isdigit():
        return int(text)
    if kind == "float" and ":" not in text:
        return float(text.replace("_", "")) if text.lstrip("+-").lower() not in (".inf", ".nan") else text
    return text  # dates, sexagesimal numbers, yes/no/on/off: what the author typed
