"""Scraping a URL, against a server on this machine's loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from vllm_doctor.sources import http, read
from vllm_doctor.sources.http import scrape

METRICS = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 1.0\n'
Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(body: bytes, status: int = 200, kind: str = "text/plain", **headers: str) -> Answer:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return send


@contextmanager
def serving(routes: dict[str, Answer]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            routes.get(self.path, answer(b"not here", 404))(self)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def outcome(url: str, timeout: float = 5.0) -> str:
    sources, issues = scrape(url, 1, 0.0, timeout)
    assert (sources, len(issues)) == ([], 1)
    return issues[0].code


def test_several_readings_come_with_their_times_and_waits_between() -> None:
    waits: list[float] = []
    told: list[tuple[str, int, int]] = []
    with serving({"/metrics": answer(METRICS)}) as base:
        before = time.time()
        sources, issues = scrape(base, 3, 7.5, progress=lambda *seen: told.append(seen), wait=waits.append)
    assert ([s.data for s in sources], issues, waits) == ([METRICS] * 3, [], [7.5, 7.5])
    assert told == [(f"{base}/metrics", i, 3) for i in range(3)]
    assert all(s.mtime is not None and before <= s.mtime <= time.time() and s.name == f"{base}/metrics_{s.mtime:.3f}" for s in sources)


def test_a_url_among_the_arguments_is_scraped() -> None:
    with serving({"/metrics": answer(METRICS)}) as base:
        sources, issues = read([f"{base}/metrics"], scrapes=1)
    assert ([s.data for s in sources], issues) == ([METRICS], [])


def test_a_page_that_is_no_metrics_is_read_once() -> None:
    with serving({"/server.log": answer(b"INFO hello\n")}) as base:
        assert [s.data for s in scrape(f"{base}/server.log", 5, 60.0)[0]] == [b"INFO hello\n"]


def test_user_and_password_are_not_shown() -> None:
    with serving({"/metrics": answer(METRICS)}) as base:
        sources, _ = scrape(base.replace("http://", "http://me:secret@"), 1)
    assert sources[0].name.startswith(f"{base}/metrics_")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (answer(b"no", 404), "http.not_found"),
        (answer(b"no", 401), "http.denied"),
        (answer(b"no", 500), "http.status"),
        (answer(b""), "http.empty"),
        (answer(b"<!DOCTYPE html><html></html>", 200, "text/html"), "http.html"),
        (answer(b"", 302, Location="http://example.invalid/metrics"), "http.redirect"),
        (answer(b"", 302, Location="/metrics"), "http.redirect"),
    ],
    ids=["404", "401", "500", "empty", "html", "other host", "circle"],
)
def test_an_answer_that_is_no_scrape_is_named(reply: Answer, code: str) -> None:
    with serving({"/metrics": reply}) as base:
        assert outcome(base) == code


def test_a_redirect_on_the_same_host_is_followed() -> None:
    with serving({"/": answer(METRICS), "/metrics": answer(b"", 307, Location="/metrics/"), "/metrics/": answer(METRICS)}) as base:
        assert [s.data for s in scrape(base, 1)[0]] == [METRICS]


def test_a_refused_connection_is_named() -> None:
    with serving({}) as base:
        pass
    assert outcome(base) == "http.refused"


def test_a_server_that_does_not_answer_is_named() -> None:
    release = threading.Event()
    with serving({"/metrics": lambda _: release.wait(10) and None}) as base:
        assert outcome(base, 0.2) == "http.timeout"
        release.set()


def drip(handler: BaseHTTPRequestHandler, stop: threading.Event, text: bytes) -> None:
    """A few bytes at a time, for ever: no single wait is long."""
    with suppress(OSError):
        while not stop.wait(0.02):
            handler.wfile.write(text)


@pytest.mark.parametrize("where", ["headers", "body"])
def test_a_server_that_drips_is_given_up_at_the_deadline(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_SECONDS", 0.3)
    stop = threading.Event()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n" + (b"X: " if where == "headers" else b"\r\n"))
        drip(handler, stop, b"ab")

    with serving({"/metrics": reply}) as base:
        assert outcome(base) == "http.slow"
        stop.set()


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 100_000)
    with serving({"/metrics": answer(METRICS * 5000)}) as base:
        assert outcome(base) == "http.too_large"


def test_a_failure_later_on_keeps_what_was_read() -> None:
    replies = iter([answer(METRICS), answer(b"", 500)])
    with serving({"/metrics": lambda handler: next(replies)(handler)}) as base:
        sources, issues = scrape(base, 3, 1.0, wait=lambda _: None)
    assert ([s.data for s in sources], [i.code for i in issues]) == ([METRICS], ["http.status"])


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://host:99999999/metrics", "http://\x00/"])
def test_a_url_that_is_none_is_no_crash(url: str) -> None:
    assert scrape(url, 1, 0.0, 0.2)[0] == []


def test_other_schemes_are_refused_by_name() -> None:
    sources, issues = read(["ftp://host/server.log"])
    assert (sources, [(i.code, i.message) for i in issues]) == ([], [("source.scheme", "only http and https addresses can be read")])
