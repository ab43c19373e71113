"""Packed sources: gzip and zstd are streamed, members of zip and tar are unpacked into memory, never to disk.

An archive from a stranger may lie about sizes, hold a bomb or name paths outside itself: everything is counted as it comes out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, cast

from msgspec import structs

from ..model.observations import Issue
from .source import BLOCK, DAMAGED, MAX_RATIO, RATIO_GRACE, Readable, Source, Unsupported, issue, reason

if TYPE_CHECKING:
    import zipfile

MAX_MEMBERS = 5000
MAX_BYTES = 1 << 30
"""Most unpacked bytes of one archive that are held in memory."""
MAX_DEPTH = 2
"""An archive inside an archive is read; a third level is not."""

_OTHER = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "7-Zip", b"Rar!": "RAR"}


def opened(source: Source, issues: list[Issue], depth: int = 0) -> Iterator[Source]:
    """`source` itself, made ready to be streamed where it is packed, or its members where it is an archive."""
    trouble: list[Issue] = []
    head = source.content(trouble, 512)
    if trouble:
        issues += trouble
        return
    other = next((tool for magic, tool in _OTHER.items() if head.startswith(magic)), None)
    if other:
        issues.append(issue(source.name, "source.packing", "packed with {tool}, which is not read: unpack it first", tool=other))
    elif head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        packed = structs.replace(source, packing="gzip" if head[0] == 0x1F else "zstd")
        inner = packed.content(trouble, 512)
        if _is_tar(inner):
            yield from _within(packed, issues, depth, _tar_members)
        elif trouble and not inner:
            issues += trouble
        else:
            yield packed
    elif head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        yield from _within(source, issues, depth, _zip_members)
    elif _is_tar(head):
        yield from _within(source, issues, depth, _tar_members)
    else:
        yield source


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


class _Budget:
    """What may still come out of one archive. As a stream it counts what passes, members that are skipped included."""

    def __init__(self, packed: int) -> None:
        self.packed = max(packed, 1)
        self.out = 0
        self.members = 0

    def over(self, stream: Readable) -> IO[bytes]:
        """`stream`, counted. Reading raises _Exhausted at the limit."""
        return cast("IO[bytes]", _Counted(stream, self))

    def count(self, size: int) -> None:
        self.out += size
        if self.out > MAX_BYTES or (self.out > RATIO_GRACE and self.out > MAX_RATIO * self.packed):
            raise _Exhausted


class _Counted:
    def __init__(self, stream: Readable, budget: _Budget) -> None:
        self.stream, self.budget = stream, budget

    def read(self, size: int = -1) -> bytes:
        piece = self.stream.read(size)
        self.budget.count(len(piece))
        return piece


def _all(stream: IO[bytes]) -> bytes:
    return b"".join(iter(lambda: stream.read(BLOCK), b""))


def _broken() -> tuple[type[Exception], ...]:
    """What a damaged archive can raise. The modules are loaded where there is an archive."""
    import tarfile
    import zipfile

    return (*DAMAGED, tarfile.TarError, zipfile.BadZipFile, RuntimeError, NotImplementedError)


class _Exhausted(Exception):
    """More came out of an archive than anyone would attach."""


Walk = Callable[[Source, list[Issue], _Budget], Iterator[Source]]


def _within(source: Source, issues: list[Issue], depth: int, walk: Walk) -> Iterator[Source]:
    if depth >= MAX_DEPTH:
        issues.append(issue(source.name, "source.nested", "archives are nested too deeply: unpack it first"))
        return
    budget = _Budget(source.size)
    found: list[Source] = []
    before = len(issues)
    try:
        for member in walk(source, issues, budget):
            budget.members += 1
            if budget.members > MAX_MEMBERS:
                issues.append(issue(source.name, "source.too_many", "more than {limit} members: the rest is not read", limit=MAX_MEMBERS))
                break
            found.append(member)
    except _Exhausted:
        issues.append(issue(source.name, "source.limit", "unpacks to more than is sensible: the rest is not read"))
    except Unsupported as error:
        issues.append(issue(source.name, "source.no_zstd", str(error)))
    except _broken() as error:
        issues.append(issue(source.name, "source.damaged", "the archive cannot be read any further: {reason}", reason=reason(error)))
    if not found and len(issues) == before:
        issues.append(issue(source.name, "source.empty", "nothing to read in the archive"))
    for member in sorted(found, key=lambda m: m.name):
        yield from opened(member, issues, depth + 1)


def _acceptable(archive: str, member: str, issues: list[Issue]) -> bool:
    """Whether a member's name stays inside its archive and is not hidden."""
    parts = re.split(r"[/\\]", member)
    if member.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", member):
        issues.append(issue(archive, "source.escape", "a member's name points outside the archive, it is left out: {member}", member=member[:200]))
        return False
    return not any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in parts)


def _zip_members(source: Source, issues: list[Issue], budget: _Budget) -> Iterator[Source]:
    import zipfile

    with zipfile.ZipFile(source.path if source.path is not None else io.BytesIO(source.data or b"")) as archive:
        for info in archive.infolist():
            if info.is_dir() or not _acceptable(source.name, info.filename, issues):
                continue
            name = f"{source.name}/{info.filename}"
            if info.flag_bits & 1:
                issues.append(issue(name, "source.encrypted", "needs a password: unpack it first"))
                continue
            try:
                with archive.open(info) as stream:
                    data = _all(budget.over(stream))
            except _broken() as error:
                issues.append(issue(name, "source.damaged", "cannot be read: {reason}", reason=reason(error)))
                continue
            yield Source(name, None, data, len(data), _zip_time(info))


def _zip_time(info: zipfile.ZipInfo) -> float | None:
    try:
        return datetime(*info.date_time, tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


def _tar_members(source: Source, issues: list[Issue], budget: _Budget) -> Iterator[Source]:
    import tarfile

    with closing(source.open()) as stream, tarfile.open(fileobj=budget.over(stream), mode="r|") as archive:
        for info in archive:
            if not info.isreg() or not _acceptable(source.name, info.name, issues):
                continue
            member = archive.extractfile(info)
            if member is not None:
                data = _all(member)
                yield Source(f"{source.name}/{info.name.removeprefix('./')}", None, data, len(data), float(info.mtime))
