"""`Source`: one thing to analyse, held in memory or streamed from disk, packed or not."""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Any, Literal, Protocol

from msgspec import Struct

from ..model.observations import Issue, Ref, Scalar

BLOCK = 1 << 20
MAX_RATIO = 300
"""Most bytes out of one packed byte. Logs pack 10 to 100 times; a bomb packs a thousand."""
RATIO_GRACE = 64 << 20
"""Below this a high ratio does no harm: a small file of one repeated line packs very well."""
DAMAGED = (OSError, EOFError, zlib.error, ValueError)
"""What reading a packed or vanishing file can raise."""

Packing = Literal["", "gzip", "zstd"]


class Source(Struct, frozen=True):
    """`name` as the user knows it. Exactly one of `path` and `data` is set. `size` is in bytes as stored (packed where it is),
    `mtime` the Unix time of its last change where that is known."""

    name: str
    path: str | None = None
    data: bytes | None = None
    size: int = 0
    mtime: float | None = None
    packing: Packing = ""

    def blocks(self, issues: list[Issue] | None = None, block: int = BLOCK) -> Iterator[bytes]:
        """The unpacked bytes in order, at most `block` at a time. Never raises: what ends the stream early is added to `issues`."""
        collected = issues if issues is not None else []
        total = 0
        try:
            with closing(self.open()) as stream:
                while piece := stream.read(block):
                    total += len(piece)
                    if self.packing and total > RATIO_GRACE and total > MAX_RATIO * max(self.size, 1):
                        collected.append(
                            issue(
                                self.name,
                                "source.ratio",
                                "unpacks to more than {ratio} times its size: reading stopped after {bytes} bytes",
                                ratio=MAX_RATIO,
                                bytes=total,
                            )
                        )
                        return
                    yield piece
        except Unsupported as error:
            collected.append(issue(self.name, "source.no_zstd", str(error)))
        except DAMAGED as error:
            message = "cannot be read any further after {bytes} bytes: {reason}" if total else "cannot be read: {reason}"
            values: dict[str, Scalar] = {"bytes": total} if total else {}
            collected.append(issue(self.name, "source.damaged", message, reason=reason(error), **values))

    @property
    def plain(self) -> bool:
        """Whether it is a file that holds its bytes as they are, so that any part of it can be read alone."""
        return self.path is not None and not self.packing

    def part(self, start: int, end: int) -> bytes:
        """The bytes of a plain file from `start` to `end`, fewer where it has become shorter. Raises OSError."""
        assert self.path is not None
        with open(self.path, "rb", buffering=0) as stream:
            stream.seek(start)
            return stream.read(end - start)

    def content(self, issues: list[Issue] | None = None, limit: int | None = None) -> bytes:
        """All of it, or the first `limit` bytes."""
        parts: list[bytes] = []
        left = limit if limit is not None else 1 << 62
        for piece in self.blocks(issues, min(BLOCK, max(left, 1))):
            parts.append(piece[:left])
            left -= len(piece)
            if left <= 0:
                break
        return b"".join(parts)

    def open(self) -> Readable:
        """The unpacked bytes as a stream to be closed. Raises one of `DAMAGED`, here or while reading, or Unsupported."""
        raw: IO[bytes] = open(self.path, "rb") if self.path is not None else io.BytesIO(self.data or b"")  # noqa: SIM115  (the caller closes it)
        if self.packing == "gzip":
            return _Gzip(raw)
        return _zstd(raw) if self.packing == "zstd" else raw


class Readable(Protocol):
    """What a reader of sources needs of a file."""

    def read(self, size: int = ..., /) -> bytes: ...

    def close(self) -> None: ...


class Unsupported(Exception):
    """A packing that needs a package which is not installed."""


class _Gzip:
    """gzip as a stream that gives all it can before an error. The standard reader loses what it buffered where a file is cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw = raw
        self.packed = b""
        self.member = zlib.decompressobj(31)

    def read(self, size: int = -1) -> bytes:
        while True:
            if not self.packed:
                self.packed = self.raw.read(1 << 16)
            if self.member.eof:
                self.member, self.packed = self._next(self.packed)
                if not self.packed:
                    return b""
            if not self.packed:
                raise EOFError("the file ends in the middle")
            packed, self.packed = self.packed, b""
            piece = self.member.decompress(packed, size if size > 0 else BLOCK)
            self.packed = self.member.unused_data if self.member.eof else self.member.unconsumed_tail
            if piece:
                return piece

    def _next(self, packed: bytes) -> tuple[zlib._Decompress, bytes]:
        """What follows a part: another part, or nothing but the padding of tapes and block devices."""
        while packed and not packed.strip(b"\0"):
            packed = self.raw.read(1 << 16)
        return (zlib.decompressobj(31), packed.lstrip(b"\0")) if packed else (self.member, b"")

    def close(self) -> None:
        self.raw.close()


def _zstd(raw: IO[bytes]) -> Readable:
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError:
        raw.close()
        raise Unsupported("packed with zstd: run `pip install zstandard`, or unpack it first") from None
    try:
        return _Zstd(zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, read_across_frames=True), zstandard.ZstdError)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


class _Zstd:
    """zstandard's reader with the errors of this module."""

    def __init__(self, reader: Any, error: type[Exception]) -> None:
        self.reader, self.error = reader, error

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self.reader.read(size))
        except self.error as error:
            raise ValueError(str(error)) from None

    def close(self) -> None:
        self.reader.close()


def issue(name: str, code: str, message: str, **values: Scalar) -> Issue:
    """A problem with a source as a whole, at no line of it."""
    return Issue(code, message, values, Ref(name, 0, ""))


def reason(error: BaseException) -> str:
    """An error's words without the path, which the Issue names already."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
