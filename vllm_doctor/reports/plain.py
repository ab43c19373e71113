"""Text for terminals: made harmless, measured in cells, wrapped, and cut so that the telling part stays.

Everything that a log can bring into a report passes `clean` before it is shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

ELLIPSIS = "…"

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]{0,1000}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~]"
)
_HARMLESS = re.compile(r"[\x20-\x7e]*")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories that draw nothing themselves but steer the terminal or the order of letters: controls, bidirectional overrides, zero-width
characters, lone surrogates, private use, line separators."""


def clean(text: str) -> str:
    """One line without escape sequences, control, bidirectional and invisible characters; tabs and line breaks become a space."""
    if _HARMLESS.fullmatch(text):
        return text
    text = _ESCAPES.sub("", text)
    return "".join(" " if c in "\t\n\r\x0b\x0c\x85\u2028\u2029" else "" if unicodedata.category(c) in _INVISIBLE else c for c in text)


def cells(text: str) -> int:
    """Width on a terminal: Chinese characters take two cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fitting(text: str, width: int) -> int:
    """How many characters from the start fit in `width` cells."""
    if text.isascii():
        return min(len(text), max(width, 0))
    used = 0
    for i, char in enumerate(text):
        used += cells(char)
        if used > width:
            return i
    return len(text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells; what is too long loses its middle, and keeps more of its beginning than of its end."""
    if cells(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[: max(width, 0)]
    tail_width = (width - 1) * 2 // 5
    head = text[: _fitting(text, width - 1 - tail_width)].rstrip()
    backwards = text[::-1]
    tail = backwards[: _fitting(backwards, tail_width)][::-1].lstrip()
    return f"{head}{ELLIPSIS}{tail}"


_UNIT = re.compile(
    r"[\d.,]+ (?:[KMGT]iB|%|ms|s|min|tokens)(?![\w/])[^\s\u1100-\uffef]*"  # a figure stays with its unit
    r"|[^\s\u1100-\uffef]+|\s+|[\u1100-\uffef]"
)
_NO_START = frozenset("，。、；：！？）》」』】”’％…,.;:!?)]}%")
_NO_END = frozenset("（《「『【“‘([{")


def wrap(text: str, width: int, start: int = 0) -> list[str]:
    """Lines of at most `width` cells, the first of them `start` cells shorter.

    Breaks at spaces and between Chinese characters, never before closing or after opening punctuation, nor between a figure and its
    unit; a word that is wider than the line is broken.
    """
    width = max(width, 8)
    units: list[str] = []
    for unit in _UNIT.findall(text):
        glued = units and not unit.isspace() and not units[-1].isspace() and (unit[0] in _NO_START or units[-1][-1] in _NO_END)
        if glued:
            units[-1] += unit
        else:
            units.append(unit)
    lines: list[str] = []
    line, used = "", start
    for unit in units:
        size = cells(unit)
        if used + size <= width:
            line, used = line + unit, used + size
            continue
        if unit.isspace():
            continue
        if line.strip() or used:
            lines.append(line.rstrip())
        while size > width:
            n = max(_fitting(unit, width), 1)
            lines.append(unit[:n])
            unit = unit[n:]
            size = cells(unit)
        line, used = unit, size
    if line.strip():
        lines.append(line.rstrip())
    return lines or [""]


_PREFIX = re.compile(
    r"^(?:\([A-Za-z][\w.-]*(?: pid=\d+)?\)\s*)*"  # (APIServer pid=5001), (Worker_TP0 pid=12)
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\s+)?"
    r"(?:\[?[\w./-]+\.py:\d+\]\s*)?"
)
_TELLING = re.compile(
    r"error|exception|segfault|out of memory|oom|failed|fail\b|died|dead|killed|abort|refused|timed? ?out|cannot|tried to allocate|"
    r"not enough|exceed|is needed|larger than|less than|in use|unallocated|is free|"
    r"running:|waiting:|pending:|swapped:|usage|preempt|exit ?code|signal",
    re.IGNORECASE,
)
_SEGMENT = re.compile(r"(?<=[,;])\s+|(?<=[.:])\s+(?=[A-Z])")


_FIGURE = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) ?([KMGT]i?B(?![A-Za-z])|%)?")


def focus(signal: str | None, sentence: str) -> list[str]:
    """What a quoted line should show of a piece of evidence: the parts of its signal's name, and the figures that its sentence states."""
    return [*(signal or "").split("."), *(found[0] for found in _FIGURE.finditer(sentence) if found[2] or len(found[1]) > 3)]


def _figures(text: str) -> list[tuple[float, str]]:
    return [(float(number.replace(",", "")), unit) for number, unit in _FIGURE.findall(text)]


def quote(text: str, width: int, focus: Iterable[str] = ()) -> str:
    """A log line in at most `width` cells, for reading: without vLLM's process, level, time and origin, which the reference gives.

    What is still too long is thinned by clauses: those that hold terms of `focus` (parts of a signal's name, and figures, which count
    most) or report a failure stay, gaps become `…`.
    """
    text = clean(text).strip()
    body = text[_PREFIX.match(text).end() :] or text  # type: ignore[union-attr]
    if cells(body) <= width:
        return body
    parts = [part for part in _SEGMENT.split(body[:4000]) if part]
    if len(parts) < 2:
        return cut(body, width)
    terms = list(focus)
    claimed = [figure for term in terms for figure in _figures(term)]
    phrases = [term.lower().replace("_", " ") for term in terms if len(term) > 1 and not term[0].isdigit()]
    words = {word for phrase in phrases for word in phrase.split() if len(word) > 2}

    def score(i: int) -> tuple[float, int]:
        lowered = parts[i].lower()
        shown = _figures(parts[i]) if claimed else []
        points = (
            6.0 * any(unit == other and abs(number - wanted) <= 0.005 * wanted for number, unit in shown for wanted, other in claimed)
            + 2.0 * sum(p in lowered for p in phrases)
            + 0.5 * sum(w in lowered for w in words)
            + 1.5 * bool(_TELLING.search(parts[i]))
            + 0.5 * any(c.isdigit() for c in lowered)
        )
        return (-points, i)

    ranking = sorted(range(len(parts)), key=score)
    if cells(_joined(parts, {ranking[0]})) > width:
        return cut(parts[ranking[0]], width)  # the telling clause alone is too long: a part of it beats the rest of the line
    kept: set[int] = set()
    for i in ranking:
        if cells(_joined(parts, kept | {i})) <= width:
            kept.add(i)
    return _joined(parts, kept)


def quote_rows(text: str, width: int, focus: Iterable[str] = ()) -> list[str]:
    """The same in one row of `width` cells, or in two where one would lose a clause that reports a failure with a figure: a figure and
    what it is measured against are often in two clauses."""
    terms = list(focus)
    one = quote(text, width, terms)
    clauses = _SEGMENT.split(clean(text)[:4000]) if ELLIPSIS in one else []
    if len(clauses) < 2 or all(c in one or not _TELLING.search(c) or not any(map(str.isdigit, c)) for c in clauses[1:]):
        return [one]
    for room in range(2 * width, width, -4):  # a row that breaks at a word is not filled to its end
        rows = wrap(quote(text, room, terms), width)
        if len(rows) <= 2:
            return rows
    return [one]


def _joined(parts: list[str], kept: set[int]) -> str:
    out: list[str] = []
    last = -1
    for i in sorted(kept):
        if i != last + 1:
            out.append(ELLIPSIS)
        out.append(parts[i])
        last = i
    if last != len(parts) - 1:
        out.append(ELLIPSIS)
    return " ".join(out)


_ISO = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?")


def moment(iso: str | None, day: str = "") -> str:
    """`13:48:52` for an ISO time on `day`, else `2026-11-30 13:48:52`. Empty for None."""
    if iso is None:
        return ""
    found = _ISO.match(iso)
    if not found:
        return clean(iso)
    return found[2] if found[1] == day else f"{found[1]} {found[2]}"


def day_of(iso: str | None) -> str:
    """The date of an ISO time, or empty."""
    found = _ISO.match(iso or "")
    return found[1] if found else ""


def zone_of(iso: str | None) -> str:
    """The zone of an ISO time as written (`UTC` for Z), or empty."""
    found = _ISO.match(iso or "")
    zone = found[3] if found else None
    return "UTC" if zone in ("Z", "+00:00", "+0000") else zone or ""


def span(first: str | None, last: str | None, day: str = "") -> str:
    """`13:48:52 → 13:51:32`; one time alone where the two are equal or one is missing; empty where both are."""
    start = moment(first, day)
    if first is None or last is None or moment(first) == moment(last):
        return start or moment(last, day)
    return f"{start} → {moment(last, day_of(first) or day)}"


def source_name(name: str, width: int) -> str:
    """A source's name in at most `width` cells; the end of a path tells more than its beginning."""
    name = "stdin" if name == "-" else clean(name)
    if cells(name) <= width:
        return name
    backwards = name[::-1]
    return ELLIPSIS + backwards[: _fitting(backwards, width - 1)][::-1]


_CODE = re.compile(r"(?<!`)`([^`\r\n]+)`(?!`)")


def code_pieces(text: str) -> list[tuple[str, bool]]:
    """A text of the rules cut at its backticks: (piece, is it code). A backtick without its partner stays what it is."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    for found in _CODE.finditer(text):
        pieces += [(text[at : found.start()], False), (found[1], True)]
        at = found.end()
    pieces.append((text[at:], False))
    return [piece for piece in pieces if piece[0]]
