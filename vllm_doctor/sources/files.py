"""Arguments -> `Source`s: files, folders, stdin, archives, URLs. What cannot be read becomes an Issue; the rest is still read."""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from typing import IO

from ..model.observations import Issue
from . import archives
from .source import Source, issue, reason

MAX_FILES = 5000
"""Files taken from one folder: a month of two-second scrapes in one place is a mistake."""
MAX_PIPE = 1 << 30
"""Bytes taken from a pipe, which cannot be read twice."""
SNIFF = 8192

_NEVER_TEXT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".so", ".pyc", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp4", ".pdf",
               ".whl", ".exe", ".dll", ".o", ".a", ".npy", ".npz", ".parquet")  # fmt: skip
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC = (b"\x7fELF", b"\x89PNG", b"%PDF", b"\xff\xd8\xff", b"GIF8", b"MZ\x90", b"SQLite format")
_CONTROL = bytes(set(range(32)) - {0, 8, 9, 10, 12, 13, 27})


def read(
    arguments: Sequence[str],
    stdin: bytes | IO[bytes] | None = None,
    *,
    scrapes: int = 2,
    interval: float = 10.0,
    timeout: float = 5.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[Source], list[Issue]]:
    """The sources that `arguments` name, in their order. Never raises for an input.

    An argument is a path, `-` for stdin, or an http(s) URL; without any, `stdin` is what there is. `stdin` is its content or the
    open stream, None where nothing was piped. `scrapes`, `interval` and `timeout` (seconds) concern URLs only. Folders are walked in order of name,
    without hidden entries. Files stay on disk until their blocks are read; members of archives are held in memory.
    """
    sources: list[Source] = []
    issues: list[Issue] = []
    seen: set[str] = set()
    for argument in arguments or (["-"] if stdin is not None else []):
        if argument == "-":
            if stdin is None:
                issues.append(issue("<stdin>", "source.no_stdin", "nothing was piped in"))
            else:
                _pipe("<stdin>", io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin, sources, issues)
        elif argument.lower().startswith(("http://", "https://")):
            from .http import scrape

            found, trouble = scrape(argument, scrapes, interval, timeout, progress)
            sources += found
            issues += trouble
        elif _OTHER_SCHEME.match(argument) and not os.path.exists(argument):
            issues.append(issue(argument, "source.scheme", "only http and https addresses can be read"))
        else:
            _path(argument, sources, issues, seen)
    return sources, issues


def _path(argument: str, sources: list[Source], issues: list[Issue], seen: set[str]) -> None:
    try:
        mode = os.stat(argument).st_mode
        if stat.S_ISDIR(mode):
            _folder(argument, sources, issues, seen)
        else:
            _file(argument, sources, issues, seen, named=True)
    except FileNotFoundError:
        issues.append(issue(argument, "source.missing", "there is no file or folder {path}", path=argument))
    except (OSError, ValueError) as error:
        issues.append(issue(argument, "source.unreadable", "cannot be read: {reason}", reason=reason(error)))


def _folder(root: str, sources: list[Source], issues: list[Issue], seen: set[str]) -> None:
    count = 0
    binary = 0

    def unreadable(error: OSError) -> None:
        issues.append(issue(error.filename or root, "source.unreadable", "cannot be read: {reason}", reason=reason(error)))

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.startswith("."):
                continue
            if name.lower().endswith(_NEVER_TEXT):
                binary += 1
                continue
            if count >= MAX_FILES:
                issues.append(issue(root, "source.too_many", "more than {limit} files: the rest is not read", limit=MAX_FILES))
                return
            count += 1
            try:
                _file(path, sources, issues, seen, named=False)
            except (OSError, ValueError) as error:
                issues.append(issue(path, "source.unreadable", "cannot be read: {reason}", reason=reason(error)))
    if binary:
        issues.append(issue(root, "source.binary", "{count} files are no text by their names and were left out", count=binary))
    if not count and not binary:
        issues.append(issue(root, "source.empty", "the folder holds no files"))


def _file(path: str, sources: list[Source], issues: list[Issue], seen: set[str], named: bool) -> None:
    status = os.stat(path)
    if stat.S_ISREG(status.st_mode):
        real = os.path.realpath(path)
        if real in seen:
            if named:
                issues.append(issue(path, "source.twice", "given more than once; it is read once"))
            return
        seen.add(real)
        _add(Source(path, path, None, status.st_size, status.st_mtime), sources, issues)
    elif named:  # a pipe such as <(kubectl logs ...); in a folder it could block for ever
        with open(path, "rb") as pipe:
            _pipe(path, pipe, sources, issues)


def _pipe(name: str, pipe: IO[bytes], sources: list[Source], issues: list[Issue]) -> None:
    """What cannot be read twice is held in memory, up to a limit."""
    try:
        data = pipe.read(MAX_PIPE + 1)
    except (OSError, ValueError) as error:
        issues.append(issue(name, "source.unreadable", "cannot be read: {reason}", reason=reason(error)))
        return
    if len(data) > MAX_PIPE:
        issues.append(issue(name, "source.limit", "only the first {bytes} bytes are read", bytes=MAX_PIPE))
        data = data[:MAX_PIPE]
    _add(Source(name, None, data, len(data), time.time()), sources, issues)  # what is piped in now is of now


def _add(source: Source, sources: list[Source], issues: list[Issue]) -> None:
    for found in archives.opened(source, issues):
        trouble: list[Issue] = []
        head = found.content(trouble, SNIFF)
        if not head:
            issues += trouble or [issue(found.name, "source.empty", "the file is empty")]
        elif not looks_like_text(head):
            issues.append(issue(found.name, "source.binary", "this is no text"))
        else:
            sources.append(found)


def looks_like_text(head: bytes) -> bool:
    """Whether a file's beginning can be a log, in any of the encodings that terminals write.

    NUL bytes alone do not count: UTF-16 is full of them, and a log that was truncated while open starts with a hole."""
    if head.startswith(_MAGIC):
        return False
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    rest = head.replace(b"\0", b"")
    if not rest:
        return True
    control = len(rest) - len(rest.translate(None, _CONTROL))
    return control <= len(rest) * 0.03
