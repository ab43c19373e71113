"""The first and the last stamp in a stretch of raw bytes, found without looking at every line."""

from __future__ import annotations

from .lazy import lazy
from .lines import Stamp

_LEVELS = (b"INFO ", b"ERROR ", b"WARNING ", b"DEBUG ")
"""Uvicorn puts a colon behind the level, so that these are rare among access lines."""
_OWN = lazy(rb" *(\d\d-\d\d) (\d\d:\d\d:\d\d)")
_DATED = lazy(rb"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?")
_DATES = (b"\n20", b"\n[20")


def first(data: bytes, start: int, end: int) -> Stamp | None:
    """The first stamp in `data[start:end]`."""
    found = _dated(data, start) if start < end else None
    stop = start if found is not None else end
    for level in _LEVELS:
        at = data.find(level, start, stop)
        while at >= 0:
            stamp = _own(data, at + len(level))
            if stamp is not None:
                found, stop = stamp, at
                break
            at = data.find(level, at + 1, stop)
    for sign in _DATES:
        at = data.find(sign, start, stop)
        while at >= 0:
            stamp = _dated(data, at + 1)
            if stamp is not None:
                found, stop = stamp, at
                break
            at = data.find(sign, at + 1, stop)
    return found


def last(data: bytes, start: int, end: int) -> Stamp | None:
    """The last stamp in `data[start:end]`; `start` and `end` are starts of lines."""
    found, floor = (_dated(data, start), start) if start < end else (None, start)
    for level in _LEVELS:
        at = data.rfind(level, floor, end)
        while at >= 0:
            stamp = _own(data, at + len(level))
            if stamp is not None:
                found, floor = stamp, at
                break
            at = data.rfind(level, floor, at)
    for sign in _DATES:
        at = data.rfind(sign, max(floor - 1, 0), end - 1)
        while at >= floor:
            stamp = _dated(data, at + 1)
            if stamp is not None:
                found = stamp
                floor = at
                break
            at = data.rfind(sign, max(floor - 1, 0), at)
    return found


def _own(data: bytes, at: int) -> Stamp | None:
    found = _OWN.match(data, at)
    return (found[1].decode(), found[2].decode(), 0.0) if found is not None else None


def _dated(data: bytes, at: int) -> Stamp | None:
    found = _DATED.match(data, at)
    if found is None:
        return None
    return found[1].decode(), found[2].decode(), float("0." + found[3].decode()) if found[3] else 0.0
