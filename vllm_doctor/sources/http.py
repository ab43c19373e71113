"""Scrapes of a /metrics endpoint. The only module that talks to a network, and only to the host that the user named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit, urlunsplit

from ..model.observations import Issue
from .source import Source, issue

if TYPE_CHECKING:
    import requests

MAX_BYTES = 16 << 20
"""A large server with many models exports a megabyte."""
MAX_SECONDS = 60.0
"""For one reading as a whole, from the host's name to the last byte. A megabyte takes a second; a server that drips its headers or its
body byte by byte never runs into the timeout of a single wait, and is given up after this."""
PIECE = 1 << 12
"""Bytes. Small, so that a dripping body is noticed and its thread ends."""
REDIRECTS = 3


def scrape(
    url: str,
    scrapes: int = 2,
    interval: float = 10.0,
    timeout: float = 5.0,
    progress: Callable[[str, int, int], None] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[list[Source], list[Issue]]:
    """`scrapes` readings of `url`, `interval` seconds apart: two are what rates need. Never raises for what the network does.

    A URL without a path means /metrics. `timeout` (seconds) bounds connecting and each wait for data. `progress` gets the address, the
    readings done and their number before each. A page that is no metrics text is read once. The time of a reading is in its Source's
    name and mtime.
    """
    try:
        address, shown = _address(url)
    except ValueError as error:
        return [], [issue(url, "http.bad_url", "this is no address: {reason}", reason=str(error))]
    sources: list[Source] = []
    for i in range(max(scrapes, 1)):
        if i:
            wait(interval)
        if progress:
            progress(shown, i, max(scrapes, 1))
        body, trouble = _get_in_time(address, shown, timeout)
        if trouble is not None:
            return sources, [trouble]
        now = time.time()
        sources.append(Source(f"{shown}_{now:.3f}", None, body, len(body), now))
        if b"# TYPE" not in body:
            break
    return sources, []


def _address(url: str) -> tuple[str, str]:
    """The URL to ask, and the one to show: without user and password."""
    parts = urlsplit(url)
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), urlunsplit((parts.scheme, host, path, "", ""))


def _get_in_time(address: str, shown: str, timeout: float) -> tuple[bytes, Issue | None]:
    """`_get` in a thread that is left behind at the deadline: resolving a name and reading headers cannot be interrupted otherwise."""
    answers: list[tuple[bytes, Issue | None]] = []
    thread = threading.Thread(target=lambda: answers.append(_get(address, shown, timeout)), daemon=True)
    thread.start()
    thread.join(MAX_SECONDS)
    return answers[0] if answers else (b"", _slow(shown))


def _slow(shown: str) -> Issue:
    return issue(shown, "http.slow", "the answer did not end within {seconds} s", seconds=MAX_SECONDS)


def _get(address: str, shown: str, timeout: float) -> tuple[bytes, Issue | None]:
    import requests

    try:
        with requests.Session() as session:
            for _ in range(REDIRECTS + 1):
                with session.get(address, timeout=timeout, stream=True, allow_redirects=False) as response:
                    target = response.headers.get("Location") if response.is_redirect else None
                    if target is None:
                        return _body(response, shown)
                    moved = urljoin(address, target)
                    if urlsplit(moved).hostname != urlsplit(address).hostname:
                        return b"", issue(
                            shown, "http.redirect", "redirects to another host, which is not followed: {host}", host=str(urlsplit(moved).hostname)
                        )
                    address = moved
        return b"", issue(shown, "http.redirect", "redirects in a circle")
    except requests.exceptions.Timeout:
        return b"", issue(shown, "http.timeout", "no answer within {seconds} s: the server hangs, or a firewall drops the request", seconds=timeout)
    except (requests.exceptions.RequestException, ValueError, OSError) as error:
        return b"", _failed(shown, str(error))


def _failed(shown: str, text: str) -> Issue:
    lower = text.lower()
    if "refused" in lower:
        return issue(shown, "http.refused", "connection refused: nothing listens there (not started yet, crashed, or another port)")
    if any(words in lower for words in ("name or service", "getaddrinfo", "resolve", "nodename")):
        return issue(shown, "http.unknown_host", "the host's name is not known")
    if "certificate" in lower or "ssl" in lower:
        return issue(shown, "http.tls", "no secure connection: try http://, or check the certificate")
    return issue(shown, "http.failed", "cannot be read: {reason}", reason=text[:200])


def _body(response: requests.Response, shown: str) -> tuple[bytes, Issue | None]:
    status = response.status_code
    if status == 404:
        return b"", issue(shown, "http.not_found", "404: no metrics at this path")
    if status in (401, 403):
        return b"", issue(shown, "http.denied", "{status}: the endpoint wants a key", status=status)
    if status != 200:
        return b"", issue(shown, "http.status", "the server answered with {status}", status=status)
    parts: list[bytes] = []
    size = 0
    started = time.monotonic()
    for piece in response.iter_content(PIECE):
        parts.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            return b"", issue(shown, "http.too_large", "more than {bytes} bytes: this is no metrics endpoint", bytes=MAX_BYTES)
        if time.monotonic() - started > MAX_SECONDS:
            return b"", _slow(shown)
    body = b"".join(parts)
    if not body.strip():
        return b"", issue(shown, "http.empty", "the answer is empty: this is no metrics endpoint, or the server has nothing to report yet")
    if body.lstrip()[:1] == b"<":
        return b"", issue(shown, "http.html", "a web page instead of metrics: check the port and the path")
    return body, None
