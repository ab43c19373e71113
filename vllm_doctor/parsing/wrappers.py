"""What container run-times, system loggers, launchers and log stores put around a line: data, and one way to take it off.

A wrapper is accepted by vote over the lines of a source, never line by line: vLLM's own tags look like wrappers, too.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec import Struct

from .lazy import lazy


class Row(Struct):
    """A line on its way out of its wrappers. `stamp` is local to `offset` (seconds east of UTC); `open` means the line goes on in the
    next row of the same origin."""

    text: bytes
    number: int
    stamp: float = math.nan
    offset: float | None = None
    origin: str = ""
    open: bool = False


class Wrapper(Struct, frozen=True):
    """`read` fills a row from a line, or returns False. `constant` asks for few different origins on many lines, `column` for one
    position of the bar: prose and tables look alike otherwise. `share` is the part of the lines that must match."""

    name: str
    read: Callable[[bytes, Row], bool]
    share: float = 0.6
    constant: bool = False
    column: bool = False


_ISO = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_OWN_HEAD = rb"\s*[-|]?\s*(?:[\w.]+\s*[-|:]\s*)?\[?(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b(?! +\d\d-\d\d |: {2,})"


def _pattern(expression: bytes) -> Callable[[bytes, Row], bool]:
    """A reader from an anchored pattern with the optional groups `stamp`, `origin`, `flag`; the rest of the line is the message."""
    compiled = lazy(expression)
    names = [name for name in ("stamp", "origin", "flag") if b"(?P<%s>" % name.encode() in expression]

    def read(line: bytes, row: Row) -> bool:
        found = compiled.match(line)
        if found is None:
            return False
        if "stamp" in names and found["stamp"]:
            take_stamp(row, found["stamp"].decode("ascii", "replace"))
        if "origin" in names and found["origin"]:
            add_origin(row, found["origin"].decode("utf-8", "replace"))
        if "flag" in names:
            row.open = found["flag"] == b"P"
        row.text = line[found.end() :]
        return True

    return read


def add_origin(row: Row, name: str) -> None:
    row.origin = f"{row.origin}/{name}" if row.origin else name


def take_stamp(row: Row, text: str) -> None:
    """Keeps the first stamp with a zone; one without only until then."""
    read = seconds(text)
    if read is None:
        return
    value, offset = read
    if math.isnan(row.stamp) or (row.offset is None and offset is not None):
        row.stamp, row.offset = value, offset


_STAMP = lazy(r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)?")
_SYSLOG = lazy(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)")
_MONTHS = {name: i for i, name in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)}


@lru_cache(maxsize=512)
def _midnight(date: str) -> float | None:
    try:
        return float((datetime.date.fromisoformat(date).toordinal() - 719163) * 86400)
    except ValueError:
        return None


def seconds(text: str) -> tuple[float, float | None] | None:
    """A stamp as (seconds since epoch of its own local clock, seconds east of UTC or None). A syslog stamp has no year and gets 1972:
    the fold moves it."""
    found = _STAMP.match(text)
    if found is not None:
        midnight = _midnight(found[1])
        if midnight is None:
            return None
        fraction = float("0." + found[5]) if found[5] else 0.0
        value = midnight + int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4]) + fraction
        zone = found[6]
        if not zone:
            return value, None
        digits = zone[1:].replace(":", "")
        return value, 0.0 if zone == "Z" else (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:4]) * 60.0)
    old = _SYSLOG.match(text)
    if old is None or old[1] not in _MONTHS:
        return None
    midnight = _midnight(f"{YEARLESS}-{_MONTHS[old[1]]:02d}-{int(old[2]):02d}")
    return None if midnight is None else (midnight + int(old[3]) * 3600 + int(old[4]) * 60 + int(old[5]), None)


YEARLESS = 1972
"""A leap year long before vLLM, for stamps without one."""

_KEYS = ("log", "message", "MESSAGE", "msg", "line", "textPayload", "@message", "Message")
_TIMES = ("time", "timestamp", "@timestamp", "asctime", "ts", "date", "__REALTIME_TIMESTAMP", "timeUnixNano")
_ORIGINS = ("container_name", "pod", "podName", "CONTAINER_NAME", "_SYSTEMD_UNIT", "logStreamName")


def _json(line: bytes, row: Row) -> bool:
    """One JSON object per line: docker, journald, log stores, and vLLM's own JSON logging."""
    if not line.startswith(b"{"):
        return False
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and from_record(record, row)


def from_record(record: dict[str, Any], row: Row) -> bool:
    """Message, time and origin of a JSON record; False if it has no message."""
    message = next((record[key] for key in _KEYS if isinstance(record.get(key), str | list)), None)
    body = record.get("body")
    if message is None and isinstance(body, dict):
        message = body.get("stringValue")
    if isinstance(message, list):  # journald gives bytes that are no UTF-8 as an array of numbers
        message = bytes(b for b in message if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
    if not isinstance(message, str):
        return False
    _json_time(record, row)
    kubernetes = record.get("kubernetes")
    places = {**record, **kubernetes} if isinstance(kubernetes, dict) else record
    for key in _ORIGINS:
        if isinstance(places.get(key), str):
            add_origin(row, places[key])
            break
    if "levelname" in record and "message" in record:
        row.text = _headed(record, message, row).encode("utf-8", "replace")
        return True
    row.open = "log" in record and "stream" in record and not message.endswith("\n") and "kubernetes" not in record
    row.text = message.removesuffix("\n").encode("utf-8", "replace")
    return True


def _json_time(record: dict[str, Any], row: Row) -> None:
    for key in _TIMES:
        value = record.get(key)
        if isinstance(value, str) and not value.isdigit():
            take_stamp(row, value)
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            number = float(value)
            while number > 1e11:
                number /= 1000
            if number > 1e8 and math.isnan(row.stamp):
                row.stamp, row.offset = number, 0.0
        if not math.isnan(row.stamp):
            return


def _headed(record: dict[str, Any], message: str, row: Row) -> str:
    """A record of vLLM's JSON logging as the text line that it would have been, so that everything else reads it the same way."""
    process = record.get("vllm_process_name") or record.get("processName")
    pid = record.get("process")
    tag = f"({process} pid={pid if isinstance(pid, int) else 0}) " if isinstance(process, str) else ""
    stamp = str(record.get("asctime", ""))[5:19]
    level = record["levelname"]
    if not re.fullmatch(r"\d\d-\d\d \d\d:\d\d:\d\d", stamp):
        stamp = "01-01 00:00:00"
    if str(record.get("name", "")).startswith("uvicorn"):
        return f"{level + ':':<10}{message}"
    place = f"{record['filename']}:{record.get('lineno', 0)}" if "filename" in record else f"{record.get('name', 'log')}:0"
    prefix = f"{tag}{level} {stamp} [{place}] "
    return "\n".join(prefix + part for part in message.split("\n"))


WRAPPERS: tuple[Wrapper, ...] = (
    Wrapper("json", _json, share=0.3),
    Wrapper("cri", _pattern(rb"(?P<stamp>" + _ISO + rb") (?:stdout|stderr) (?P<flag>[FP])(?::\S+)? ?")),
    Wrapper("kubectl-prefix", _pattern(rb"\[pod/(?P<origin>[^/\]]+/[^\]]+)\] ?")),
    Wrapper("gitlab", _pattern(rb"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z) [0-9a-f]{2}[OE][+ ]")),
    Wrapper("grafana", _pattern(rb"\d{13}\t(?P<stamp>" + _ISO + rb")\t")),
    Wrapper("journald-iso", _pattern(rb"(?P<stamp>" + _ISO + rb") [\w.\-]+ (?P<origin>[^\s:\[\]]+)\[\d+\]: ?")),
    Wrapper("syslog-5424", _pattern(rb"<\d{1,3}>1 (?P<stamp>\S+) \S+ (?P<origin>\S+) \S+ \S+ (?:-|\[[^\]]*\]) ?")),
    Wrapper("syslog", _pattern(rb"(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [\w.\-]+ (?P<origin>[^\s:\[\]]+)(?:\[\d+\])?: ?")),
    Wrapper("stamp", _pattern(rb"\[?(?P<stamp>" + _ISO + rb")\]?(?!" + _OWN_HEAD + rb")(?: ?\| ?|\t| |$)")),
    Wrapper("unix-stamp", _pattern(rb"(?P<epoch>1[5-9]\d{8}\.\d{3,9}) ")),
    Wrapper("buildkite", _pattern(rb"(?:\x1b)?_bk;t=\d{13}\x07?")),
    Wrapper("compose", _pattern(rb"(?P<origin>[A-Za-z][\w.\-]*)\s+\| ?"), column=True),
    Wrapper("pm2", _pattern(rb"\d+\|(?P<origin>[\w.\-]+)\s+\| ")),
    Wrapper("mpirun", _pattern(rb"\[(?P<origin>\d+,\d+)\]<std(?:out|err)>: ?")),
    Wrapper("torchrun", _pattern(rb"\[(?P<origin>[a-z]+\d+)\]:(?<!\[rank0\]:)"), constant=True),
    Wrapper("srun", _pattern(rb" *(?P<origin>\d{1,4}): "), share=0.9, constant=True),
    Wrapper("stern", _pattern(rb"(?P<origin>[a-z0-9][a-z0-9.\-]*-[a-z0-9]+ [a-z][a-z0-9\-]*) (?=\S)"), share=0.9, constant=True),
    Wrapper("quote", _pattern(rb"> ?(?!>)"), share=0.95),
)
"""Outermost first where two could read the same line."""
