"""Reads bodies of requests into memory, within limits, without looking at them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .limits import Limits

LINGER_SECONDS = 2.0


class TooLarge(Exception):
    pass


class Slow(Exception):
    pass


class Crowded(Exception):
    """Too many bytes of all requests wait in memory."""


class Gone(Exception):
    """The client went away."""


class Bodies:
    """Counts what is held in memory for all requests of one instance."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    async def read(self, request: Request, watch: Callable[[int, int], None] | None = None) -> bytes:
        """The body. Its bytes count until `release`. `watch` gets (bytes so far, bytes announced). Raises TooLarge, Slow, Crowded, Gone."""
        limits = self.limits
        announced = request.headers.get("content-length", "0")
        total = int(announced) if announced.isdecimal() else 0
        if total > limits.body:
            raise TooLarge
        if self.held + total > limits.buffered:
            raise Crowded
        parts: list[bytes] = []
        size = 0
        deadline = time.monotonic() + limits.body_seconds
        try:
            while True:
                left = min(limits.idle_seconds, deadline - time.monotonic())
                try:
                    message = await asyncio.wait_for(request.receive(), max(left, 0.01))
                except asyncio.TimeoutError:
                    raise Slow from None
                if message["type"] == "http.disconnect":
                    raise Gone
                piece = message.get("body", b"")
                size += len(piece)
                self.held += len(piece)
                parts.append(piece)
                if size > limits.body:
                    raise TooLarge
                if self.held > limits.buffered:
                    raise Crowded
                if time.monotonic() > deadline:
                    raise Slow
                if watch:
                    watch(size, total)
                if not message.get("more_body"):
                    return b"".join(parts)
        except BaseException:
            self.held -= size
            raise

    def release(self, body: bytes) -> None:
        self.held -= len(body)


class LingeringResponse(Response):
    """An answer before the request has ended. What still comes is thrown away for a moment: a connection that is closed at once is reset, and
    the client would never see why."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        deadline = time.monotonic() + LINGER_SECONDS
        try:
            while (left := deadline - time.monotonic()) > 0:
                message = await asyncio.wait_for(receive(), left)
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    break
        except asyncio.TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
