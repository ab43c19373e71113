"""Takes secrets, prompts and outputs out of a Report before it leaves `analyze`.

Works on every string of the Report, so a new field cannot be forgotten. The evidence keeps its line numbers and enough of its line
to be recognised. Patterns are plain `re` with bounded repeats: they run on hostile text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from .model.report import Report

MASK = "***"

_SECRETS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # options and settings whose value is a secret: --api-key X, 'api_key': ['X'], HF_TOKEN=X, "password": "X"
    (
        re.compile(
            r"(?i)((?:--?|\b)(?:[a-z0-9]{1,30}[_-]){0,4}(?:api[_-]?keys?|token|secret|password|passwd|credentials?|access[_-]?key(?:[_-]id)?)"
            r"[\"']?\s{0,3}(?:[=:]\s{0,3}|\s{1,3}))(\[[^\]\n]{1,500}\]|\"[^\"\n]{1,500}\"|'[^'\n]{1,500}'|[^\s,;)}\]\"']{4,500})"
        ),
        lambda m: m[0] if _harmless(m[2]) else m[1] + MASK,
    ),
    (re.compile(r"(?i)(authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:bearer|basic|token)\s{1,3})[^\s\"',]{1,2000}"), r"\1" + MASK),
    (re.compile(r"(?i)\b(bearer\s{1,3})[A-Za-z0-9._~+/=-]{12,2000}"), r"\1" + MASK),
    (re.compile(r"\bhf_[A-Za-z0-9]{8,100}"), "hf_" + MASK),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,200}"), "sk-" + MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,20}\b"), MASK),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{16,255}"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{6,2000}\.[A-Za-z0-9_-]{4,4000}(?:\.[A-Za-z0-9_-]{0,2000})?"), MASK),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{1,100}:)[^\s@/]{1,200}(@)"), r"\1" + MASK + r"\2"),
)
_PROMPTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"(?s)((?:^|[\s({,])(?:prompt|output|generated_text|prompt_text)[\"']?\s{0,2}[:=]\s{0,2})(?:'(?:[^'\\]|\\.){0,200000}'?|\"(?:[^\"\\]|\\.){0,200000}\"?)"
        ),
        r"\1" + MASK,
    ),
    (re.compile(r"((?:prompt_token_ids|token_ids|output_token_ids)[\"']?\s{0,2}[:=]\s{0,2})\[[0-9,\s.]{1,200000}\]?"), r"\1[" + MASK + "]"),
)
_PLAIN_WORDS = frozenset({"none", "null", "true", "false", MASK, "auto", "[]", "''", '""', "required", "invalid", "missing", "count", "throughput"})


def _harmless(value: str) -> bool:
    """`api_key=None` gives nothing away, and `token ids` is no secret."""
    inner = value.strip("[]'\" ").lower()
    return inner in _PLAIN_WORDS or not inner or inner.replace(".", "").isdigit()


def clean(text: str) -> str:
    """One string without secrets, prompts and outputs."""
    for pattern, replacement in _PROMPTS:
        text = pattern.sub(replacement, text)
    for pattern, secret in _SECRETS:
        text = pattern.sub(secret, text)
    return text


def redact(report: Report) -> Report:
    """The same report with every string cleaned, and marked so."""
    plain = msgspec.to_builtins(report)
    memo: dict[str, str] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return memo.setdefault(value, clean(value)) if len(value) > 7 else value
        if isinstance(value, list | tuple):
            return [walk(v) for v in value]
        if isinstance(value, dict):
            return {walk(k): walk(v) for k, v in value.items()}
        return value

    fixed = {k: v if k in ("schema_version", "verdict", "language", "tool") else walk(v) for k, v in plain.items()}
    return msgspec.convert({**fixed, "redacted": True}, Report)
