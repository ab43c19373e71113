"""The report as JSON, and its JSON Schema; both follow from the types in `model.report`, which are the contract."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..model.report import Report


def render(report: Report) -> str:
    """Indented JSON: keys of objects in the order of their types, keys of free mappings sorted, characters that cannot be seen as \\uXXXX.
    Ends with a newline."""
    try:
        data = msgspec.json.encode(report, order="deterministic")
    except UnicodeEncodeError:  # half of a surrogate pair, which no UTF-8 can hold, came in with some input
        data = msgspec.json.encode(_encodable(msgspec.to_builtins(report)), order="deterministic")
    return _UNSEEN.sub(_escape, msgspec.json.format(data, indent=2).decode()) + "\n"


_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]")
"""Controls, directions and what has no width: a terminal or an editor would obey them instead of showing them."""


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(v) for v in value]
    return value


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `render` writes."""
    own = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "vllm-doctor report, schema_version 1", **own}


def schema_text() -> str:
    """`schema()` as it is published in docs/report.schema.json."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"
