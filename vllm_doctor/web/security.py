"""Who may talk to this server, and what its answers tell a browser to refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Of every page but the report's, which names its one script and its style sheet by their hashes."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_META = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">\n?')


class Headered:
    """Puts the headers on every answer. A header that the answer sets itself stays."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, sending if scope["type"] == "http" else send)


def host_of(authority: str) -> str:
    """The host in `host:port`, `[::1]:8008` or a plain name; empty if it is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def refusal(method: str, headers: Headers, allowed: Iterable[str]) -> str | None:
    """Why a request is not answered: `host` (a name that is not this server's: DNS rebinding) or `origin` (sent by a page of another site).

    A browser states the origin of every POST; programs such as curl state none. A page that hides where it comes from (`null`) is let in only
    where the browser vouches that it is ours.
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or host_of(hosts[0]) not in allowed:
        return "host"
    if method in ("GET", "HEAD"):
        return None
    site = headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site"):
        return "origin"
    origin = headers.get("origin")
    if origin is None:
        return None
    if origin == "null":
        return None if site == "same-origin" else "origin"
    try:
        parts = urlsplit(origin)
        ours = parts.scheme in ("http", "https") and (
            parts.netloc.lower() == hosts[0].lower() or (parts.hostname or "") in set(allowed) - set(LOOPBACK)
        )
    except ValueError:
        ours = False
    return None if ours else "origin"


def own_policy(page: str) -> tuple[str, str]:
    """(the page without its own policy, that policy widened by the bar that is put above it: one style sheet from here).

    The first such element is the page's own: it stands in its head, before anything that came in with a log.
    """
    match = _META.search(page)
    if match is None:
        return page, POLICY
    widened = match[1].replace("&#39;", "'").replace("style-src ", "style-src 'self' ").replace("form-action 'none'", "form-action 'self'")
    return page[: match.start()] + page[match.end() :], widened + "; frame-ancestors 'none'"
