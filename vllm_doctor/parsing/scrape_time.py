"""Where a scrape lies: its time, and its bounds in a file that holds several."""

from __future__ import annotations

import re
from datetime import datetime, timezone


def split(data: bytes, first_line: int = 1) -> list[tuple[int, bytes]]:
    """Scrapes appended to one file, as (line, bytes): a new one starts where the family that came first is declared again."""
    first: bytes | None = None
    starts = [0]
    lines = data.split(b"\n")
    for index, line in enumerate(lines):
        if not line.startswith((b"# HELP ", b"# TYPE ")):
            continue
        words = line.split(None, 3)
        if first is None and len(words) > 2:
            first, kind = words[2], words[1]
        elif len(words) > 2 and words[2] == first and words[1] == kind:
            # a header block or a blank line before it belongs to the new scrape
            cut = index
            while cut > starts[-1] + 1 and not lines[cut - 1].startswith(b"#") and (not lines[cut - 1].strip() or b": " in lines[cut - 1]):
                cut -= 1
            if cut > starts[-1] + 1 and lines[cut - 1].startswith(b"HTTP/"):
                cut -= 1
            starts.append(cut)
    ends = [*starts[1:], len(lines)]
    return [(first_line + a, b"\n".join(lines[a:b]) + (b"\n" if b < len(lines) else b"")) for a, b in zip(starts, ends, strict=True)]


def scrape_time(name: str, data: bytes) -> float | None:
    """When a scrape was taken, as Unix seconds: sample timestamps, else `_<unixtime>` or an ISO time in the name. None: not known.

    An ISO time without a zone is read as if it were UTC.
    """
    stamped = re.findall(rb"^[A-Za-z_:][\w:]*(?:\{[^\n]*\})? +[^\s#]+ +(\d{10,13}(?:\.\d+)?)\s*$", data[: 1 << 20], re.MULTILINE)
    if stamped:
        return max(seconds(float(value)) for value in stamped)
    base = re.split(r"[/\\]", name)[-1]
    unix = re.search(r"(?:^|[^\d])(1\d{9})(?:(\d{3})|(\.\d{1,6}))?(?!\d)", base)
    if unix:
        return float(unix[1] + (f".{unix[2]}" if unix[2] else unix[3] or ""))
    iso = re.search(r"(20\d\d)-?([01]\d)-?([0-3]\d)[T_ -]([0-2]\d)[-:_]?([0-5]\d)(?:[-:_]?([0-5]\d)(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?", base)
    if not iso:
        return None
    try:
        when = datetime(*(int(part or 0) for part in iso.groups()[:6]), tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    offset = 0.0
    if iso[8] and iso[8] != "Z":
        digits = iso[8].replace(":", "")
        offset = (int(digits[1:3]) * 3600 + int(digits[3:5]) * 60) * (-1 if digits[0] == "-" else 1)
    return when + float(iso[7] or 0) - offset


def seconds(stamp: float) -> float:
    """Prometheus writes milliseconds, OpenMetrics seconds."""
    return stamp / 1000 if stamp > 1e11 else stamp
