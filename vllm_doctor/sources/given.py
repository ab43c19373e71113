"""Content that a program hands over instead of a path: pasted text, uploaded files, archives."""

from __future__ import annotations

import time

from ..model.observations import Issue
from . import archives
from .files import SNIFF, looks_like_text
from .source import Source, issue


def given(name: str, content: bytes, issues: list[Issue], received: float | None = None) -> list[Source]:
    """The sources in `content`: itself, or the members of the archive that it is. What cannot be read is added to `issues`.

    It is as old as its receipt, a Unix time, now where that is not said: a log whose stamps have no year is of some year, which the report states.
    """
    found = []
    age = time.time() if received is None else received
    for source in archives.opened(Source(name, None, content, len(content), age), issues):
        trouble: list[Issue] = []
        head = source.content(trouble, SNIFF)
        if not head:
            issues += trouble or [issue(source.name, "source.empty", "the file is empty")]
        elif not looks_like_text(head):
            issues.append(issue(source.name, "source.binary", "this is no text"))
        else:
            found.append(source)
    return found
