"""Runs the application with Uvicorn, and closes connections that do not get to the point."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import application
from .limits import Limits


def impatient(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol, with an end to waiting for a request's head. Uvicorn itself only limits the pause between two requests, so a
    client that sends a header a byte at a time would hold its connection for ever."""

    class Impatient(H11Protocol):
        _since: float | None = None
        _last: object = None
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._since = self.loop.time()
            self._timer = self.loop.call_later(seconds, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            now = self.loop.time()
            if self.cycle is not None and not self.cycle.response_complete:
                self._since = None
            elif self._since is None or self.cycle is not self._last:  # idle since now, or since a request that came and went between two looks
                self._since = now
            elif now - self._since >= seconds and not self.transport.is_closing():
                self.transport.abort()
                return
            self._last = self.cycle
            self._timer = self.loop.call_later(max(seconds / 4, 0.05), self._look)

    return Impatient


def server(limits: Limits, *, host: str, port: int, base: str = "", hosts: Sequence[str] = ()) -> uvicorn.Server:
    """A server that is configured and not yet running. Access lines of Uvicorn are off: they hold the query."""
    config = uvicorn.Config(
        application(limits, base=base, hosts=hosts),
        host=host,
        port=port,
        http=impatient(limits.header_seconds),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=32 << 10,
    )
    return uvicorn.Server(config)


def run(limits: Limits, *, host: str, port: int, base: str, hosts: Sequence[str], started: Callable[[str], Any], verbose: bool) -> None:
    """Serves until it is told to stop. `started` gets the address. Raises OSError where the port cannot be had."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        usable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{usable}]" if ":" in usable else usable
        started(f"http://{shown}:{listening.getsockname()[1]}{base}/")
        server(limits, host=host, port=port, base=base, hosts=hosts).run(sockets=[listening])
