"""`--since` and `--until`: a point in time as the user writes it, with the parts left open that only the input can fill in."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from msgspec import Struct

_DAY = 86400.0
_EPOCH = datetime(1970, 1, 1)
_ABSOLUTE = re.compile(
    r"(?:(?:(?P<year>\d{4})-)?(?P<month>\d{1,2})-(?P<day>\d{1,2}))?"
    r"(?:(?:^|[T ]\s*)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:[.,]\d{1,9})?))?)?"
    r"\s*(?P<zone>Z|[+-]\d{2}:?\d{2})?"
)
_RELATIVE = re.compile(r"-(?=\d)(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m(?:in)?)?(?:(?P<s>\d{1,9})s?)?")


class TimeBound(Struct, frozen=True):
    """Either `before_last` seconds before the input's last observation, or a time of day with as much of a date as was given.

    `clock` is seconds since midnight, `utc_offset` seconds east of UTC (None: the input's own clock).
    """

    before_last: float | None = None
    year: int | None = None
    month: int | None = None
    day: int | None = None
    clock: float = 0.0
    utc_offset: float | None = None

    def resolve(self, first: float, last: float, utc_offset: float | None = None) -> float:
        """The bound on the input's clock, given its first and last observation (seconds; local time read as if it were UTC).

        A time without a date is the latest one within the input, else that time on the day of `last`; a date without a year is in the
        latest year that does not put it half a year or more after `last`. `utc_offset` is the input clock's, where known; a bound with
        a zone is moved to it, and read as it stands where it is unknown.
        """
        if self.before_last is not None:
            return last - self.before_last
        moved = (utc_offset - self.utc_offset) if utc_offset is not None and self.utc_offset is not None else 0.0
        if self.month is None or self.day is None:
            days = (last - moved) // _DAY
            at = days * _DAY + self.clock
            return (at if at <= last - moved else at - _DAY if at - _DAY >= first - moved else at) + moved
        if self.year is not None:
            return _seconds(self.year, self.month, self.day) + self.clock + moved
        year = (_EPOCH + timedelta(seconds=last - moved)).year
        for candidate in (year, year - 1, year - 2, year - 3, year - 4):
            try:
                at = _seconds(candidate, self.month, self.day) + self.clock + moved
            except ValueError:  # 29 February of a year without one
                continue
            if at <= last or at - last < 183 * _DAY:
                return at
        return last


def parse(text: str) -> TimeBound:
    """A bound from ISO 8601, `MM-DD HH:MM[:SS]`, `HH:MM[:SS]` or `-10m` (also s, h, d and `-1h30m`). Raises ValueError with the accepted forms."""
    text = text.strip()
    found = _RELATIVE.fullmatch(text)
    if found:
        d, h, m, s = (int(found[name] or 0) for name in "dhms")
        return TimeBound(before_last=d * _DAY + h * 3600.0 + m * 60.0 + s)
    found = _ABSOLUTE.fullmatch(text)
    if not found or not (found["month"] or found["hour"]):
        raise ValueError(_forms(text))
    if found["month"] and not found["year"] and not found["hour"]:
        raise ValueError(_forms(text))
    month, day, year = (int(found[name]) if found[name] else None for name in ("month", "day", "year"))
    hour, minute = int(found["hour"] or 0), int(found["minute"] or 0)
    second = float((found["second"] or "0").replace(",", "."))
    try:
        if month is not None and day is not None:
            _seconds(2000 if year is None else year, month, day)  # 2000 has a 29 February
    except ValueError:
        raise ValueError(_forms(text)) from None
    if hour > 24 or minute > 59 or second >= 61 or (hour == 24 and (minute or second)):
        raise ValueError(_forms(text))
    return TimeBound(year=year, month=month, day=day, clock=hour * 3600.0 + minute * 60.0 + second, utc_offset=_offset(found["zone"]))


def _seconds(year: int, month: int, day: int) -> float:
    return datetime(year, month, day, tzinfo=timezone.utc).timestamp()


def _offset(zone: str | None) -> float | None:
    if zone is None:
        return None
    if zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0) * (-1 if zone[0] == "-" else 1)


def _forms(text: str) -> str:
    return f"{text!r} is not a time: use 2026-11-30T13:48:00, 11-30 13:48, 13:48[:10], or -10m for ten minutes before the last observation"
