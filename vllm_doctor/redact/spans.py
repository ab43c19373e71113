"""Where a value ends: quoted at any depth of escaping, bracketed, cut off. Every function is linear in what it reads."""

from __future__ import annotations

import re
from functools import cached_property

MASK = "***"

_TOKEN = re.compile(r"[\[\](){}\"'\n]")
_OPENING = re.compile(r"\\{0,15}[\"'“‘「]")
_LONGEST_TRIPLE = 1 << 14
_SMART = {"“": "”", "‘": "’", "「": "」"}


class Lazy:
    """A pattern that is compiled when it is first needed: most texts need few of them, and compiling all takes longer than a short analysis."""

    def __init__(self, source: str, flags: int = 0) -> None:
        self.source, self.flags = source, flags

    @cached_property
    def re(self) -> re.Pattern[str]:
        return re.compile(self.source, self.flags)


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


def opening_quote(text: str, at: int) -> int | None:
    """The position after an opening quote (with the backslashes of its depth) at `at`, or None."""
    match = _OPENING.match(text, at)
    return match.end() if match else None


def quoted_end(text: str, inner: int) -> tuple[int, int]:
    """(end of the content, end of the closing quote) of what an opening quote before `inner` holds.

    In a string that was escaped d times the quote carries 2**d - 1 backslashes, and one that belongs to the content carries more. What is
    not closed in its line ends with the line: the rest was cut off.
    """
    quote = text[inner - 1]
    newline = text.find("\n", inner)
    limit = len(text) if newline < 0 else newline
    if quote in _SMART:
        end = text.find(_SMART[quote], inner, limit)
        return (limit, limit) if end < 0 else (end, end + 1)
    if text.startswith(quote * 2, inner) and text[inner - 2 : inner - 1] != "\\":  # of TOML and Python, which reach over lines
        end = text.find(quote * 3, inner + 2, inner + _LONGEST_TRIPLE)
        if end > 0:
            return end, end + 3
        if text[inner + 2 : inner + 3] not in ("", ",", ")", "}", "]"):
            return (limit, limit) if newline < 0 else (min(len(text), inner + _LONGEST_TRIPLE),) * 2
    depth = backslashes(text, inner - 1, max(inner - 17, 0))
    at = inner
    while (at := text.find(quote, at, limit)) >= 0:
        count = backslashes(text, at, inner)
        if count % (2 * (depth + 1)) == depth:
            return at - depth, at + 1
        at += 1
    return limit, limit


def backslashes(text: str, at: int, start: int) -> int:
    """How many backslashes stand right before `at`, not looking before `start`."""
    first = at
    while first > start and text[first - 1] == "\\":
        first -= 1
    return at - first


def balanced_end(text: str, at: int) -> int:
    """The position after the bracket that closes the one at `at`; the end of the line where none does."""
    depth = 0
    while match := _TOKEN.search(text, at):
        found = match[0]
        at = match.end()
        if found == "\n":
            return at - 1
        if found in "\"'":
            at = quoted_end(text, at)[1]
        else:
            depth += 1 if found in "[({" else -1
            if depth <= 0:
                return at
    return len(text)


def line_end(text: str, at: int) -> int:
    """The end of the line that `at` lies in."""
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline


def mask(hidden: str) -> str:
    """What stands for `hidden`: as many line ends as it had, so that numbers of lines stay true."""
    return MASK + "\n" * hidden.count("\n")
