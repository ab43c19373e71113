"""Which year the stamps of a log are of, seen from a time near which it ended."""

from __future__ import annotations

from datetime import datetime, timezone

from ..model.observations import Clock
from .lines import seconds
from .log import clock_of
from .stamps_in import last

FUTURE = 2 * 86400.0
"""Stamps that would lie later than this after the reference are of the year before; zones and clocks differ by a day at most."""


def clock(data: bytes, hint: float | None) -> Clock:
    """The clock of a stream; `hint` is the Unix time near which its last stamp should lie."""
    if hint is None:
        return clock_of(data, None)
    year = datetime.fromtimestamp(hint, tz=timezone.utc).year
    found = clock_of(data, year)
    stamp = last(data, 0, len(data))
    time = seconds(stamp, found) if stamp else None
    return clock_of(data, year - 1) if time is not None and time > hint + FUTURE else found
