"""The pages around a report: the form, the bar above a report, refusals. In both languages, without inline scripts and styles."""

from __future__ import annotations

import base64
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..language import LANGUAGES, format_value, translator
from .limits import Limits
from .security import own_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment

HERE = Path(__file__).resolve().parent
STATIC = {"app.css": "text/css", "bar.css": "text/css", "app.js": "text/javascript"}
TYPES = {"html": "text/html", "json": "application/json", "markdown": "text/markdown"}
ENDINGS = {"html": "html", "json": "json", "markdown": "md"}


def language_of(lang: str | None, accepted: str) -> str:
    """`?lang=` if it is one of ours, else the first of Accept-Language that is, else English."""
    if lang in LANGUAGES:
        return lang
    wishes: list[tuple[float, int, str]] = []
    for number, item in enumerate(accepted[:500].split(",")):
        name, _, quality = item.strip().partition(";q=")
        try:
            wishes.append((-float(quality or 1), number, name.lower()[:2]))
        except ValueError:
            continue
    return next((name for weight, _, name in sorted(wishes) if name in LANGUAGES and weight < 0), "en")


def failures(language: str, limits: Limits) -> dict[str, tuple[int, str]]:
    """Code of a failure -> (HTTP status, what happened and what to do)."""
    _ = translator(language)
    most = format_value(limits.body, "bytes", language)
    most_time = format_value(limits.analysis_seconds, "s", language)
    return {
        "nothing-sent": (422, _("Nothing was sent. Paste a log or choose a file.")),
        "nothing-readable": (422, _("None of the inputs could be read.")),
        "bad-form": (400, _("The request could not be read: it is not what its content type says.")),
        "body-too-large": (
            413,
            _("This is too large: at most {size} can be sent at once. Use the command line for more: vllm-doctor analyze FILE").format(size=most),
        ),
        "too-large": (413, _("This unpacks to more than this server takes. Use the command line: vllm-doctor analyze FILE")),
        "slow": (408, _("The upload stopped or was too slow. Please send it again.")),
        "late": (
            503,
            _("The analysis took longer than {time} and was stopped. Send less, or use the command line: vllm-doctor analyze FILE").format(
                time=most_time
            ),
        ),
        "busy": (429, _("Too many analyses are waiting. Please try again in a moment.")),
        "crowded": (503, _("Too much is being sent at the same time. Please try again in a moment.")),
        "worker-died": (500, _("The analysis ended unexpectedly; it may have needed more memory than this server gives it.")),
        "internal": (500, _("An internal error. This is a bug of vllm-doctor; please report it with what you sent, without private data.")),
        "host": (403, _("This server does not answer to that name. Start it with --allow-host NAME to use it under NAME.")),
        "origin": (403, _("This request came from a page of another site and was refused.")),
        "not-found": (404, _("There is no such page.")),
        "method": (405, _("This address does not take that kind of request.")),
    }


def form(language: str, base: str, limits: Limits) -> str:
    _ = translator(language)
    words = {
        "too_large": failures(language, limits)["body-too-large"][1],
        "empty": failures(language, limits)["nothing-sent"][1],
        "sending": _("Sending …"),
        "waiting": _("Waiting for a free worker …"),
        "reading": _("Reading {name} …"),
        "working": _("Analysing …"),
        "remove": _("Remove {name}"),
    }
    return _environment().get_template("form.html").render(_=_, lang=language, base=base, words=words, limit=limits.body, version=__version__,
                                                          size=format_value(limits.body, "bytes", language))  # fmt: skip


def refused(language: str, base: str, message: str, details: Sequence[str] = ()) -> str:
    return _environment().get_template("refused.html").render(_=translator(language), lang=language, base=base, message=message, details=details)


def result(language: str, base: str, outputs: dict[str, str]) -> tuple[str, str]:
    """(the report's page under a bar with downloads, the policy for it). The downloads are in the page: the server keeps nothing."""
    page, policy = own_policy(outputs["html"])
    links = [
        (ENDINGS[name], f"data:{TYPES[name]};charset=utf-8;base64,{base64.b64encode(text.encode('utf-8', 'replace')).decode()}")
        for name, text in outputs.items()
        if name in ENDINGS
    ]
    bar = _environment().get_template("bar.html").render(_=translator(language), base=base, links=links, lang=language)
    head, tag, rest = page.partition("<body>")
    return head + tag + bar + rest, policy


def static(name: str) -> bytes:
    return (HERE / "static" / name).read_bytes()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, auto_reload=False)
