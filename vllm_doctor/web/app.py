"""The application: addresses, and what happens to a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from . import openapi, pages
from .bodies import Bodies, Crowded, Gone, LingeringResponse, Slow, TooLarge
from .limits import Limits
from .messages import Done, Failed, Job, Output, Progress
from .pool import Busy, Late, Pool
from .security import LOOPBACK, Headered, refusal

log = logging.getLogger("vllm_doctor.web")
SAMPLE = Path(__file__).resolve().parent / "sample"
FORMS: tuple[Output, ...] = ("html", "json", "markdown")


class State:
    """What one instance holds while it runs. Of what people send: bodies until their analysis ends, and how far each is."""

    def __init__(self, limits: Limits, base: str) -> None:
        self.limits, self.base = limits, base
        self.pool = Pool(limits)
        self.bodies = Bodies(limits)
        self.running: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.samples: dict[str, dict[str, str]] = {}

    def follow(self, job: str | None) -> dict[str, Any] | None:
        """Where the progress of a job is told, if the page asked for it by a number that nobody can guess."""
        if job is None or not (16 <= len(job) <= 64 and job.isalnum()) or len(self.running) > 1000:
            return None
        return self.running.setdefault(job, {"stage": "sending", "name": "", "done": 0, "total": 0})


def application(limits: Limits | None = None, *, base: str = "", hosts: Sequence[str] = ()) -> Starlette:
    """The server as an ASGI application. `base` is the path that a proxy puts before it (`/doctor`), with or without removing it again;
    `hosts` are the names besides this machine's own under which it answers."""
    limits = limits or Limits()
    state = State(limits, base)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await state.pool.close()

    routes = [
        Route("/", _form, name="form"),
        Route("/analyze", _analyze, methods=["POST"], name="analyze"),
        Route("/sample", _sample, name="sample"),
        Route("/progress/{job}", _progress, name="progress"),
        Route("/static/{name}", _static, name="static"),
        Route("/api/analyze", _api, methods=["POST"], name="api"),
        Route("/api/openapi.json", _openapi, name="openapi"),
        Route("/healthz", _healthz, name="healthz"),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error})
    app.state.doctor = state
    app.add_middleware(Guard, state=state, hosts=frozenset(h.lower() for h in (*LOOPBACK, *hosts)))
    app.add_middleware(Headered)
    return app


class Guard:
    """Refuses requests that are not for this server, takes the proxy's path off, logs one line per request, and lets no exception through.

    The line holds nothing that came with the request: the name of the route, not the path.
    """

    def __init__(self, app: ASGIApp, state: State, hosts: frozenset[str]) -> None:
        self.app, self.state, self.hosts = app, state, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        base = self.state.base
        if base and (scope["path"] == base or scope["path"].startswith(base + "/")):
            scope = {**scope, "path": scope["path"][len(base) :] or "/", "raw_path": None}
        scope["state"] = {**scope.get("state", {}), "doctor": self.state}
        request = Request(scope, receive)
        try:
            why = refusal(request.method, request.headers, self.hosts)
            await (self.app(scope, receive, sending) if why is None else _failed(request, why)(scope, receive, sending))
        except Exception as error:
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
            log.error("%s at %s", type(error).__name__, where)
            if not status:
                await _failed(request, "internal")(scope, receive, sending)
        finally:
            route = scope.get("route")
            name = getattr(route, "name", "") or "-"
            log.info(
                "%s %s %s %.0f ms",
                request.method if request.method in ("GET", "HEAD", "POST") else "-",
                name,
                status,
                1000 * (time.monotonic() - started),
            )


def _state(request: Request) -> State:
    state: State = request.scope["state"]["doctor"]
    return state


def _language(request: Request) -> str:
    return pages.language_of(request.query_params.get("lang"), request.headers.get("accept-language", ""))


def _failed(request: Request, code: str, details: Sequence[str] = (), status: int | None = None) -> Response:
    """A refusal, as a page or as JSON."""
    state, language = _state(request), _language(request)
    usual, message = pages.failures(language, state.limits)[code]
    status = status or usual
    headers = {"retry-after": "5"} if status in (429, 503) else {}
    content: Response
    if request.scope["path"].startswith("/api/"):
        body = {"error": {"code": code, "message": message, "details": list(details)}}
        content = JSONResponse(body, status, headers)
    else:
        content = HTMLResponse(pages.refused(language, state.base, message, details), status, headers)
    if request.method == "POST" and code in ("body-too-large", "slow", "crowded", "host", "origin"):
        return LingeringResponse(content.body, status, dict(content.headers))
    return content


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failed(request, "method" if error.status_code == 405 else "not-found", status=error.status_code)


async def _form(request: Request) -> Response:
    # A form that states no origin could not be told from one of another site, so this page says where it is, to this server only.
    return HTMLResponse(pages.form(_language(request), _state(request).base, _state(request).limits), headers={"referrer-policy": "same-origin"})


async def _analyze(request: Request) -> Response:
    return await _answer(request, FORMS, lambda outputs: _page(request, outputs))


async def _api(request: Request) -> Response:
    return await _answer(request, ("json",), lambda outputs: Response(outputs["json"], media_type="application/json"))


def _page(request: Request, outputs: dict[str, str]) -> Response:
    page, policy = pages.result(_language(request), _state(request).base, outputs)
    return HTMLResponse(page.encode("utf-8", "replace"), headers={"content-security-policy": policy})


async def _answer(request: Request, wanted: tuple[Output, ...], show: Callable[[dict[str, str]], Response]) -> Response:
    state = _state(request)
    job = request.query_params.get("job")
    told = state.follow(job)

    def reading(message: Progress) -> None:
        if told is not None:
            told.update(stage="reading", name=message.name, done=message.done, total=message.total)

    def receiving(done: int, total: int) -> None:
        if told is not None:
            told.update(done=done, total=total)

    body = b""
    try:
        body = await state.bodies.read(request, receiving)
        if told is not None:
            told.update(stage="waiting" if state.pool.waiting else "working", done=0, total=0)
        order = Job(request.headers.get("content-type", ""), body, _language(request), wanted)
        answer = await _unless_gone(request, state.pool.run(order, reading))
    except TooLarge:
        return _failed(request, "body-too-large")
    except Slow:
        return _failed(request, "slow")
    except Crowded:
        return _failed(request, "crowded")
    except Busy:
        return _failed(request, "busy")
    except Late:
        return _failed(request, "late")
    except Gone:
        return Response(status_code=499)
    finally:
        state.bodies.release(body)
        state.running.pop(job or "", None)
    return _failed(request, answer.code, answer.details) if isinstance(answer, Failed) else show(answer.outputs)


async def _unless_gone(request: Request, work: Awaitable[Done | Failed]) -> Done | Failed:
    """What `work` gives; if the client goes away first, the work is ended and Gone raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for one in (task, gone):
            if not one.done():
                one.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await one


async def _sample(request: Request) -> Response:
    state, language = _state(request), _language(request)
    if language not in state.samples:
        body = b"".join(
            b'--part\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\n%s\r\n' % (path.name.encode(), path.read_bytes())
            for path in sorted(SAMPLE.iterdir())
        )
        try:
            answer = await state.pool.run(Job("multipart/form-data; boundary=part", body + b"--part--\r\n", language, FORMS))
        except (Busy, Late) as error:
            return _failed(request, "busy" if isinstance(error, Busy) else "late")
        if isinstance(answer, Failed):
            return _failed(request, answer.code)
        state.samples[language] = answer.outputs  # the one report that is kept: it is nobody's
    return _page(request, state.samples[language])


async def _progress(request: Request) -> Response:
    told = _state(request).running.get(request.path_params["job"])
    return JSONResponse(told) if told is not None else _failed(request, "not-found")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in pages.STATIC:
        return _failed(request, "not-found")
    return Response(pages.static(name), media_type=pages.STATIC[name], headers={"cache-control": "no-cache"})


async def _openapi(request: Request) -> Response:
    return JSONResponse(openapi.document(_state(request).base))


async def _healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok", "waiting": _state(request).pool.waiting})
