"""Content that a program hands over instead of a path: pasted text, uploaded files, archives."""

from __future__ import annotations

from ..model.observations import Issue
from . import archives
from .files import SNIFF, looks_like_text
from .source import Source, issue


def given(name: str, content: bytes, issues: list[Issue]) -> list[Source]:
    """The sources in `content`: itself, or the members of the archive that it is. What cannot be read is added to `issues`."""
    found = []
    for source in archives.opened(Source(name, None, content, len(content)), issues):
        trouble: list[Issue] = []
        head = source.content(trouble, SNIFF)
        if not head:
            issues += trouble or [issue(source.name, "source.empty", "the file is empty")]
        elif not looks_like_text(head):
            issues.append(issue(source.name, "source.binary", "this is no text"))
        else:
            found.append(source)
    return found
