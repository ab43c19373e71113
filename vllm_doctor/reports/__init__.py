"""Report -> bytes for people and programs. `RENDERERS` is the one list of outputs: the command line offers exactly its keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..model.report import Report


Links = Callable[[str], "str | None"]
"""From a source's name to the URI that opens it on this machine, None where there is nothing to open."""


class Style(NamedTuple):
    """What an output may need to know about its reader. `width` is in terminal cells; `detail` is -1 (short), 0 or 1 (everything);
    `links` is given where the terminal can show hyperlinks."""

    width: int = 100
    color: bool = False
    detail: int = 0
    links: Links | None = None


def _text(report: Report, style: Style) -> str:
    from .text import render

    return render(report, width=style.width, color=style.color, detail=style.detail, links=style.links)


def _json(report: Report, style: Style) -> str:
    from .json import render

    return render(report)


def _html(report: Report, style: Style) -> str:
    from .html import render

    return render(report)


def _markdown(report: Report, style: Style) -> str:
    from .markdown import render

    return render(report, detail=style.detail)


def _sarif(report: Report, style: Style) -> str:
    from .sarif import render

    return render(report)


RENDERERS: dict[str, Callable[[Report, Style], str]] = {"text": _text, "json": _json, "markdown": _markdown, "html": _html, "sarif": _sarif}
