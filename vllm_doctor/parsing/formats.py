"""Log formats at work: a format file's literals, regex or named parser, and how its groups become observations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from ..model.catalogue import observation
from ..model.figures import figure
from ..model.observations import Issue, Scalar
from ..ruleset.errors import RuleError
from ..ruleset.schema import Format, Gives
from . import lines, scan, tracebacks
from .line_parsers import PARSERS, Line, Values, number

TIMEOUT = 0.1
"""Seconds that one pattern may take on one line."""
STRIKES = 3
"""Timeouts after which a pattern is no longer tried in this process."""

_FACTOR = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 2**10, "s": 1, "ms": 1e-3, "%": 1e-2}

_QUOTING = ("Received request", "Generated response", "Added request")
"""Messages that carry text of users: only a format that starts with the message is tried on them."""
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Timeout)(?:\([\w.]+\))?: |[A-Za-z_]\w*(?:Error|Exception)\(['\"])+")

TRACEBACK, ERROR, REFUSED, FAILED, OLD = -1, -2, -3, -4, -5
"""What the built-in literals mean: a traceback starts; a line may name an exception; an access line with status 4xx; one with 5xx; one
with 2xx over HTTP/1.0, as some proxies talk (those over HTTP/1.1 are too many to look at)."""
_BUILT_IN = {
    tracebacks.HEADER: TRACEBACK,
    b"Error: ": ERROR,
    b"Exception: ": ERROR,
    b' HTTP/1.1" 4': REFUSED,
    b' HTTP/1.1" 5': FAILED,
    b' HTTP/1.1\x1b[0m" \x1b[31m4': REFUSED,
    b' HTTP/1.1\x1b[0m" \x1b[91m5': FAILED,
    b' HTTP/1.0" 4': REFUSED,
    b' HTTP/1.0" 5': FAILED,
    b' HTTP/1.0" 2': OLD,
}


def _kind(name: str) -> str | None:
    declared = observation(name)
    return declared.kind if declared else None


class Reader:
    """One format, ready to read lines. It counts its own timeouts, which is all that changes here."""

    def __init__(self, source: Format) -> None:
        self.source = source
        self.id = source.id
        self.begins = source.begins
        self.literals = [source.literal] if isinstance(source.literal, str) else list(source.literal)
        self.strikes = 0
        self._parser = PARSERS.get(source.parser) if source.parser else None
        self._pattern: Any = None
        self._gives = list(source.gives.items()) if isinstance(source.gives, dict) else []
        self.stats = source.parser == "stats"
        self.samples = all(name == "engine" or _kind(name) == "sample" for name in source.gives)

    def marks(self) -> str | None:
        """The event that the format stands for if that is all it says and its literals start the message; such lines may be many."""
        if self.begins or self.source.regex is None or len(self._gives) != 1 or self._gives[0][1].field is not None:
            return None
        name = self._gives[0][0]
        starts = all(re.match(self.source.regex, text + "x: ") for text in self.literals)
        return name if starts and _kind(name) == "event" else None

    @property
    def disabled(self) -> bool:
        return self.strikes >= STRIKES

    def read(self, line: Line) -> Values | None:
        """What the line says, or None if it is of another kind. Numbers of a size that nothing has are left out."""
        if self._parser is not None:
            values = self._parser(line)
            if values and any(isinstance(v, int | float) and v is not True and v is not False and figure(v) is None for v in values.values()):
                return {n: v for n, v in values.items() if not isinstance(v, int | float) or isinstance(v, bool) or figure(v) is not None}
            return values
        if self.source.regex is None or self.disabled:
            return None
        if self._pattern is None:
            import regex

            self._pattern = regex.compile(self.source.regex)
        try:
            found = self._pattern.match(line.message, timeout=TIMEOUT)
        except TimeoutError:
            self.strikes += 1
            return None
        if found is None:
            return None
        values = {}
        for name, give in self._gives:
            value = _value(name, give, found)
            if value is not None:
                values[name] = value
        return values


def _value(name: str, give: Gives, found: Any) -> Scalar | None:
    if give.value is not None:
        return give.value
    if give.field is None:
        return True
    text = found[give.field]
    if text is None:
        return None
    if name == "engine":
        return int(text[:6])
    declared = observation(name)
    if give.unit == "text" or (give.unit == "" and declared is not None and declared.unit == "text"):
        return str(text)
    try:
        value = number(text)
    except ValueError:
        return None
    factor = _FACTOR.get(give.unit, 1)
    value = value if factor == 1 else value * factor
    return value if figure(value) is not None else None


class Table:
    """All formats of a rule set, with one scanner over their literals."""

    def __init__(self, formats: Iterable[Format]) -> None:
        self.readers = [Reader(f) for f in formats]
        owners: dict[bytes, list[int]] = {}
        for index, reader in enumerate(self.readers):
            for literal in reader.literals:
                owners.setdefault(literal.encode(), []).append(index)
        for text, meaning in _BUILT_IN.items():
            owners.setdefault(text, []).append(meaning)
        self.literals = list(owners)
        self.owners = list(owners.values())
        self._marks: dict[int, str | None] = {}
        self.stats = next((index for index, own in enumerate(self.owners) if len(own) == 1 and own[0] >= 0 and self.readers[own[0]].stats), -1)
        self.error = self.literals.index(b"Error: ")
        self._quick = scan.one_by_one(self.literals)
        self._thorough: scan.Find | None = None

    def mark(self, index: int) -> str | None:
        """The event that a line with this literal stands for if that is all it says."""
        if index not in self._marks:
            own = self.owners[index]
            self._marks[index] = self.readers[own[0]].marks() if len(own) == 1 and own[0] >= 0 else None
        return self._marks[index]

    def find(self, data: bytes) -> scan.Hits:
        """Hits of all literals in raw bytes."""
        if self._thorough is None:
            if len(data) < scan.WORTHWHILE:
                return self._quick(data)
            self._thorough = scan.all_at_once(self.literals)
        return self._thorough(data)

    def read(self, ids: Iterable[int], line: Line) -> list[tuple[Reader, Values]]:
        """Everything that the formats with these indices say about a line.

        The message is anchored: a format reads from its start, or from behind the class name of an exception. A line whose head
        nobody knows is read from the literal on, unless that is quoted.
        """
        results: list[tuple[Reader, Values]] = []
        quoting = line.message.startswith(_QUOTING)
        for index in ids:
            reader = self.readers[index]
            if quoting and not line.message.startswith(tuple(reader.literals)):
                continue
            values = reader.read(line)
            if values is None and not quoting:
                named = _EXCEPTION.match(line.message)
                if named is not None:
                    values = reader.read(_from(line, named.end()))
            if values is None and line.level is None:
                at = next((at for text in reader.literals if (at := line.message.find(text)) > 0), 0)
                if at and line.message[at - 1] not in "\"'`(" and not line.message[at - 1 : at + 1].isalnum():
                    values = reader.read(_from(line, at))
            if values is not None:
                results.append((reader, values))
        return results

    def disabled(self) -> frozenset[str]:
        """Formats whose pattern was given up."""
        return frozenset(r.id for r in self.readers if r.disabled)

    def issues(self, known: frozenset[str]) -> tuple[Issue, ...]:
        """One issue per pattern that was given up since `known`."""
        text = "the pattern of format {format} took too long on this input and was switched off"
        return tuple(Issue("pattern-timeout", text, {"format": name}) for name in sorted(self.disabled() - known))


def _from(line: Line, start: int) -> Line:
    return Line(line.message[start:], line.process, line.level, line.frames)


_TABLES: list[tuple[list[Format], Table]] = []


def table(formats: list[Format]) -> Table:
    """The table of a list of formats; the last few lists are remembered by identity."""
    for known, ready in _TABLES:
        if known is formats:
            return ready
    ready = Table(formats)
    _TABLES.append((formats, ready))
    del _TABLES[:-4]
    return ready


def check(formats: list[Format]) -> list[RuleError]:
    """Faults of formats against their own samples: each sample is read by exactly one format, and in full."""
    ready = Table(formats)
    errors: list[RuleError] = []
    for own in formats:
        if own.parser is not None and own.parser not in PARSERS:
            errors.append(RuleError(own.id, 1, f"no parser is called {own.parser!r}", f"one of {', '.join(sorted(PARSERS))}"))
            continue
        for at, sample in enumerate(own.samples, 1):
            matched = _read_sample(ready, sample.before, sample.line)
            names = [reader.id for reader, _ in matched]
            if names != [own.id]:
                errors.append(RuleError(own.id, at, f"sample {at} ({sample.version}) is read by {names or 'no format'}", sample.line[:200]))
            elif not same(matched[0][1], sample.want):
                errors.append(RuleError(own.id, at, f"sample {at} ({sample.version}) gives {matched[0][1]}", f"wanted {sample.want}"))
            elif undeclared := _undeclared(own, matched[0][1]):
                errors.append(RuleError(own.id, at, f"sample {at} gives {undeclared}, which `gives` does not list", ""))
    return errors


def _read_sample(ready: Table, before: str, line: str) -> list[tuple[Reader, Values]]:
    above = (before.rstrip("\n") + "\n").encode() if before else b""
    data = above + line.encode()
    text = lines.plain(line)
    head = lines.head(text)
    found = (index for index, offsets in enumerate(ready.find(data)) if offsets and offsets[-1] >= len(above))
    ids = sorted({owner for index in found for owner in ready.owners[index] if owner >= 0})
    message = text[head.start :].split("\n")[0]
    return ready.read(ids, Line(message, head.process, head.level, lambda: tracebacks.above(data, len(above))))


def _undeclared(own: Format, values: Values) -> list[str]:
    if isinstance(own.gives, dict):
        return []
    open_names = tuple(name[:-1] for name in own.gives if name.endswith(".*"))
    return [name for name in values if name != "engine" and name not in own.gives and not (open_names and name.startswith(open_names))]


def same(found: Values, want: dict[str, Scalar]) -> bool:
    """Whether two sets of values agree; floats to nine digits."""
    if found.keys() != want.keys():
        return False
    for name, value in found.items():
        other = want[name]
        if isinstance(value, str) or isinstance(other, str) or isinstance(value, bool) or isinstance(other, bool):
            if value != other:
                return False
        elif not math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12):
            return False
    return True
