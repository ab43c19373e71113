"""The server with clients that mean it ill, or are simply many."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import socket
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.running import Running, command, running
from vllm_doctor.web.limits import MIB, Limits

ROOT = Path(__file__).resolve().parent.parent.parent
LOG = (ROOT / "fixtures" / "kv-exhaustion-0.32" / "server.log").read_bytes()
QUICK = Limits(body=4 * MIB, buffered=16 * MIB, header_seconds=0.6, idle_seconds=0.6, body_seconds=2.0, analysis_seconds=20.0)


@pytest.fixture(scope="module")
def here() -> Iterator[Running]:
    with running(QUICK) as server:
        yield server


def head(length: str, path: str = "/api/analyze") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n\r\n".encode()


def answered(connection: socket.socket) -> bytes:
    """All that comes back until the connection ends."""
    connection.settimeout(30)
    parts = []
    try:
        while piece := connection.recv(65536):
            parts.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def cut_off(connection: socket.socket) -> bool:
    """Does the server end a connection on which a byte comes now and then?"""
    for _ in range(400):
        try:
            connection.sendall(b"X")
        except OSError:
            return True
        time.sleep(0.05)
    return False


def settled(server: Running) -> dict[str, int]:
    """What the server holds, once what it was doing is done."""
    for _ in range(200):
        held = {"bytes": server.state.bodies.held, "followed": len(server.state.running), "waiting": server.state.pool.waiting}
        if not any(held.values()):
            break
        time.sleep(0.02)
    return held


NOTHING = {"bytes": 0, "followed": 0, "waiting": 0}


def test_two_gigabytes_are_refused_before_they_are_sent(here: Running) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(head("Content-Length: 2147483648"))
        reply = answered(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b'"body-too-large"' in reply
    assert b"connection: close" in reply.lower()
    assert settled(here) == NOTHING


def test_two_gigabytes_in_pieces_are_refused_when_the_limit_is_passed(here: Running) -> None:
    sent = 0
    piece = b"100000\r\n" + b"x" * MIB + b"\r\n"
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(head("Transfer-Encoding: chunked"))
        connection.settimeout(10)
        try:
            while sent < 2048:
                connection.sendall(piece)
                sent += 1
        except OSError:
            pass
        reply = answered(connection) if sent < 2048 else b""
    assert sent < 2048
    assert reply == b"" or reply.startswith(b"HTTP/1.1 413 ")  # a client that never reads may find the connection reset
    assert settled(here) == NOTHING


def test_a_client_that_reads_sees_why_its_pieces_are_refused(here: Running) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(head("Transfer-Encoding: chunked") + (b"100000\r\n" + b"x" * MIB + b"\r\n") * 5)
        assert answered(connection).startswith(b"HTTP/1.1 413 ")


def test_a_head_that_drips_is_cut_off(here: Running) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(b"POST /analyze HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert cut_off(connection)
    assert here.get("/healthz").status_code == 200


def test_a_silent_connection_is_cut_off(here: Running) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        assert answered(connection) == b""


def test_the_second_request_of_a_connection_may_not_drip_either(here: Running) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert cut_off(connection)


@pytest.mark.parametrize("drip", [False, True], ids=["stops", "drips"])
def test_a_body_that_is_too_slow_is_told_so(here: Running, drip: bool) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(head("Content-Length: 1000") + b"x")
        if drip:
            connection.settimeout(0.2)
            for _ in range(100):
                try:
                    connection.sendall(b"x")
                    if connection.recv(1, socket.MSG_PEEK):
                        break
                except TimeoutError:
                    continue
        assert answered(connection).startswith(b"HTTP/1.1 408 ")
    assert settled(here) == NOTHING


def test_many_slow_clients_do_not_keep_others_out(here: Running) -> None:
    slow = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(100)]
    try:
        for connection in slow:
            connection.sendall(b"POST /analyze HTTP/1.1\r\nHost: 12")
        assert here.post("/api/analyze", content=LOG).status_code == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_bomb_of_gzip_is_read_no_further_than_is_sensible(here: Running) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        for _ in range(96):
            file.write((b"INFO 11-30 13:53:41 [core.py:1] " + b"x" * 65000 + b"\n") * 16)
    report = here.post("/api/analyze", files=[("files", ("bomb.gz", packed.getvalue())), ("files", ("server.log", LOG))]).json()
    assert "source.ratio" in [i["code"] for i in report["issues"]]
    assert report["findings"][0]["id"] == "kv-cache-exhaustion"


def test_a_bomb_of_zip_is_read_no_further_than_is_sensible(here: Running) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number in range(8):
            archive.writestr(f"{number}.log", b"\0" * (32 * MIB))
    report = here.post("/api/analyze", files=[("files", ("bomb.zip", packed.getvalue())), ("files", ("server.log", LOG))]).json()
    assert "source.limit" in [i["code"] for i in report["issues"]]
    assert report["findings"][0]["id"] == "kv-cache-exhaustion"


def test_a_bomb_of_zeros_is_said_to_be_one(here: Running) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        for _ in range(96):
            file.write(b"\0" * MIB)
    report = here.post("/api/analyze", files=[("files", ("bomb.gz", packed.getvalue()))]).json()
    told = [i["message"] for i in report["issues"] if i["code"] == "source.ratio"]
    assert [t.partition(" after ")[0] for t in told] == ["unpacks to more than 300 times its size: reading stopped"]
    assert [(s["name"], s["kinds"]) for s in report["sources"]] == [("bomb.gz", ["binary"])]
    assert not [i for i in report["issues"] if i["code"] in ("empty-input", "large-input")]


@pytest.mark.parametrize(
    "line",
    [
        b"prompt: '",
        b"(a",
        b'\\"',
        b"password = ",
        b"[core.py:1] " * 3,
        b'{"log":"',
        b"10.0.0.1 ",
        b"vllm serve --a ",
        b"Traceback (most recent call last):\n",
        b"\x1b[0m",
    ],
    ids=repr,
)
def test_text_made_to_keep_patterns_busy_is_answered(here: Running, line: bytes) -> None:
    status = here.post("/api/analyze", content=(line * (MIB // 4 // len(line))) + b"\n" + LOG).status_code
    assert status in (200, 503)  # done, or stopped in time; never hung
    assert here.post("/api/analyze", content=LOG).status_code == 200


def test_an_analysis_that_takes_too_long_is_killed_and_the_next_one_works() -> None:
    with running(Limits(analysis_seconds=0.02, workers=1)) as server:
        answer = server.post("/api/analyze", content=LOG * 100)
        assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (503, "late", "5")
        assert (server.state.pool.killed, len(server.state.pool._all)) == (1, 0)
        server.state.pool.limits = Limits()
        assert server.post("/api/analyze", content=LOG).status_code == 200
        assert settled(server) == NOTHING


def test_a_client_that_goes_away_takes_its_analysis_with_it() -> None:
    with running(Limits(workers=1)) as server:
        assert server.post("/api/analyze", content=LOG).status_code == 200
        body = LOG * 1000
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head(f"Content-Length: {len(body)}") + body)
            time.sleep(0.1)
        for _ in range(500):
            if server.state.pool.killed:
                break
            time.sleep(0.02)
        assert server.state.pool.killed == 1
        assert settled(server) == NOTHING


def test_more_than_may_wait_are_turned_away() -> None:
    with running(Limits(waiting=0)) as server:
        answer = server.post("/api/analyze", content=LOG)
        assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (429, "busy", "5")


def test_more_than_fits_in_memory_is_turned_away() -> None:
    with running(Limits(buffered=1000)) as server:
        answer = server.post("/api/analyze", content=LOG)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "crowded")
        assert settled(server) == NOTHING


def test_a_worker_that_dies_is_replaced() -> None:
    with running(Limits(workers=1)) as server:
        assert server.post("/api/analyze", content=LOG).status_code == 200
        (worker,) = server.state.pool._all
        worker.process.kill()
        assert server.post("/api/analyze", content=LOG).json()["error"]["code"] == "worker-died"
        assert server.post("/api/analyze", content=LOG).status_code == 200


def test_a_worker_without_memory_says_so_and_the_server_goes_on() -> None:
    text = bytes(range(32, 127)) * 700_000  # 64 MiB that do not pack
    with running(Limits(worker_memory=320 * MIB, body=128 * MIB)) as server:
        answer = server.post("/api/analyze", files=[("files", (f"{n}.log", text[: 30 * MIB])) for n in range(4)])
        assert answer.json()["error"]["code"] in ("too-large", "worker-died")
        assert server.post("/api/analyze", content=LOG).status_code == 200


def in_a_thread(work: Coroutine[Any, Any, list[int]]) -> list[int]:
    """The event loop of a browser that other tests keep open must not be in the way."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def parent_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has just ended
        return 0


def memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="counts what /proc shows")
def test_fifty_pastes_at_once_are_all_answered_and_nothing_of_them_stays(tmp_path: Path) -> None:
    middle = LOG.splitlines(keepends=True)[40:200]  # the head and the end once, what a server prints all day in between
    paste = b"".join(LOG.splitlines(keepends=True)[:40] + middle * (MIB // len(b"".join(middle))))

    async def round_of_pastes(address: str, count: int) -> list[int]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits, trust_env=False) as client:
            big = [asyncio.ensure_future(client.post("/api/analyze", content=paste)) for _ in range(count)]
            times: dict[str, list[float]] = {"small paste": [], "healthz": []}
            while not all(b.done() for b in big):
                for name, request in (("healthz", client.get("/healthz")), ("small paste", client.post("/api/analyze", content=LOG))):
                    started = time.monotonic()
                    assert (await request).status_code == 200
                    times[name].append(time.monotonic() - started)
            for name, seen in times.items():
                print(f"\n{name} during {count} pastes of 1 MiB: p95 {statistics.quantiles(seen, n=20)[-1]:.3f} s of {len(seen)}")
            return [(await b).status_code for b in big]

    def held(pid: int) -> tuple[int, int, int]:
        children = [p for p in os.listdir("/proc") if p.isdigit() and parent_of(p) == pid]
        return len(os.listdir(f"/proc/{pid}/fd")), len(children), memory(pid)

    with command(environment={"TMPDIR": str(tmp_path)}) as (address, process):
        statuses = in_a_thread(round_of_pastes(address, 50))
        first = held(process.pid)
        again = in_a_thread(round_of_pastes(address, 10))
        time.sleep(0.5)
        second = held(process.pid)
    assert statuses + again == [200] * 60
    assert [fds - 2 * workers for fds, workers, _ in (first, second)] == [first[0] - 2 * first[1]] * 2  # a worker is two pipes
    assert max(first[1], second[1]) <= 3
    assert second[2] < first[2] + 40 * MIB
    assert list(tmp_path.iterdir()) == []
    assert [n for n in os.listdir(tempfile.gettempdir()) if n.startswith("vllm")] == []
