"""One log line: bytes to text, and the head that vLLM, uvicorn or a custom logging format puts before the message.

A head gives the process tag, its pid, the level and the stamp. vLLM's stamps are `MM-DD HH:MM:SS`: no year, no zone.
"""

from __future__ import annotations

import datetime
from functools import lru_cache

from msgspec import Struct

from ..model.observations import Clock
from .lazy import lazy

MAX_TEXT = 2000
"""Characters of a line that a Ref keeps; a dumped batch or a prompt may run to a mebibyte."""

_ESCAPES = r"(?:\x1b|#033|\\u001b|\\x1b|\\033|\^\[|␛)"
_ANSI = lazy(rf"{_ESCAPES}(?:\[[0-?]*[ -/]*[@-~]|[\]_P^][^\x07\x1b]{{0,400}}(?:\x07|\x1b\\)?)|(?<![\w\]])\[(?:\d{{1,2}};)*\d{{1,2}}m")
_RANK = lazy(r"\[rank\d+\]:\s?")
_TAG = lazy(r"\((?P<tag>[A-Za-z_][\w.:\-]*(?: rank=\d+| (?:[A-Z]{2,4}\d+_?)+)?)?\s?pid=(?P<pid>\d+)(?:, ip=[^)\s]*)?\) ?")
_STAMPED = lazy(
    r"(?P<level>I?NFO|W?ARNING|E?RROR|D?EBUG|C?RITICAL) +(?P<day>\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d+)?"
    r"(?: +(?:\[[^\]\n]{1,200}\]|[\w./\-]+:\d+\]?))?(?: |$)"
)
USUAL = lazy(r"(?:\(([A-Za-z]\w*) pid=(\d{1,9})\) )?(INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d) (\d\d:\d\d:\d\d) \[[^\]\n]{1,200}\] ")
"""The head that nearly all lines of vLLM have, in one match."""
RAW_HEAD = (
    rb"(?:(?:\x1b\[[\d;]*m)?\(([A-Za-z]\w*) pid=(\d{1,9})\)(?:\x1b\[[\d;]*m)? )?"
    rb"(INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d) \[[\w.\-/]{1,190}:\d{1,9}\] "
)
"""The same in raw bytes, for the lines that there are many of; groups: tag, pid, level, stamp. What it does not match is decoded."""
_UVICORN = lazy(r"(?P<level>INFO|WARNING|ERROR|CRITICAL): +")
_ISO = lazy(r"\[?(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?:Z|[+-]\d\d:?\d\d)?\]?")
_AFTER_ISO = lazy(r"(?:[^\n]{0,120}?\b(?P<level>INFO|WARNING|ERROR|DEBUG|CRITICAL)\b)?[\s\-|:\]]*(?:vllm[\w.]*(?::\w+)*(?::\d+)?\s*[\-:|\]]+\s*)?")
FREE_PREFIX = 100
"""Characters before the level that VLLM_LOGGING_PREFIX or an unknown shipper may take."""


Stamp = tuple[str, str, float]
"""Date (`MM-DD` or `YYYY-MM-DD`), clock (`HH:MM:SS`), fraction of a second."""


class Head(Struct, frozen=True):
    """What stands before a message. `start` is where the message begins in the text."""

    process: str | None
    pid: int | None
    level: str | None
    stamp: Stamp | None
    start: int
    rank: bool = False


def text_of(raw: bytes) -> str:
    """A line as text, without colours."""
    text = raw.decode("utf-8", "replace")
    return plain(text)


def plain(text: str) -> str:
    """Text without terminal escapes, in the spellings that shippers leave behind."""
    if "\x1b" in text:
        return _ANSI.sub("", text)
    front = text[:DAMAGE_WITHIN]
    return _ANSI.sub("", front) + text[DAMAGE_WITHIN:] if _damaged(front) else text


DAMAGE_WITHIN = 400
"""Characters in which escapes that lost their escape character are looked for: tags, level, place. Further on, `[1m` may be text."""


def _damaged(text: str) -> bool:
    """Whether a text may hold escapes in one of the spellings of shippers and editors; an `in` is many times faster than the regex."""
    return (
        "[0" in text or "[1;" in text or "[3" in text or "[9" in text or "#033" in text or "001b" in text or "\\x1b" in text
        or "\\033" in text or "^[" in text or "␛" in text
    )  # fmt: skip


def head(text: str) -> Head:
    """Reads the head of a line that has no wrapper and no colours."""
    usual = USUAL.match(text)
    if usual is not None:
        process, number, level, date, clock = usual.groups()
        return Head(process, int(number) or None if number else None, level, (date, clock, 0.0), usual.end())
    pos = 0
    process, pid = None, None
    rank = _RANK.match(text)
    if rank:
        pos = rank.end()
    while (tag := _TAG.match(text, pos)) is not None:
        process, pid, pos = tag["tag"], int(tag["pid"][:9]) or None, tag.end()
    found = _STAMPED.match(text, pos) or _UVICORN.match(text, pos)
    if found is None:
        iso = _ISO.match(text, pos)
        if iso is not None:
            inner = _STAMPED.search(text, iso.end(), iso.end() + FREE_PREFIX)
            fraction = float("0." + iso["fraction"]) if iso["fraction"] else 0.0
            stamp = (iso["date"], iso["clock"], fraction)
            if inner is not None:
                return Head(process, pid, inner["level"], stamp, inner.end(), rank is not None)
            after = _AFTER_ISO.match(text, iso.end())
            assert after is not None  # every part is optional
            return Head(process, pid, after["level"], stamp, after.end(), rank is not None)
        if pos == 0:
            found = _STAMPED.search(text, 0, FREE_PREFIX)
    if found is None:
        return Head(process, pid, None, None, pos, rank is not None)
    groups = found.groupdict()
    stamp2 = (groups["day"], groups["clock"], 0.0) if groups.get("day") else None
    level = next((name for name in ("INFO", "WARNING", "ERROR", "DEBUG", "CRITICAL") if name.endswith(found["level"])), found["level"])
    return Head(process, pid, level, stamp2, found.end(), rank is not None)


@lru_cache(maxsize=512)
def _midnight(date: str, year: int, first_month: int) -> float | None:
    """Seconds since epoch of a date `YYYY-MM-DD` or `MM-DD`, read as UTC; None if there is no such day."""
    if len(date) == 5:
        month = int(date[:2])
        date = f"{year + (month < first_month):04d}-{date}"
    try:
        day = datetime.date(int(date[:4]), int(date[5:7]), int(date[8:10]))
    except ValueError:
        return None
    return float((day.toordinal() - 719163) * 86400)


def seconds(stamp: Stamp, clock: Clock) -> float | None:
    """A stamp on the stream's own clock: local time read as if it were UTC. None where it names no real time."""
    midnight = _midnight(stamp[0], clock.year, clock.first_month)
    if midnight is None:
        return None
    text = stamp[1]
    return midnight + int(text[:2]) * 3600 + int(text[3:5]) * 60 + int(text[6:8]) + stamp[2]
