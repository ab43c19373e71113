"""A real server on loopback, in a thread of the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httpx

from vllm_doctor.web.app import State
from vllm_doctor.web.limits import Limits
from vllm_doctor.web.serving import server


class Running(NamedTuple):
    address: str
    port: int
    state: State

    def post(self, path: str, **options: object) -> httpx.Response:
        return httpx.post(self.address + path, timeout=120, trust_env=False, **options)  # type: ignore[arg-type]

    def get(self, path: str, **options: object) -> httpx.Response:
        return httpx.get(self.address + path, timeout=120, trust_env=False, **options)  # type: ignore[arg-type]


@contextmanager
def running(limits: Limits | None = None, base: str = "", hosts: tuple[str, ...] = ()) -> Iterator[Running]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        uvicorn = server(limits or Limits(), host="127.0.0.1", port=port, base=base, hosts=hosts)
        thread = threading.Thread(target=uvicorn.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not uvicorn.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Running(f"http://127.0.0.1:{port}", port, uvicorn.config.app.state.doctor)  # type: ignore[union-attr]
        finally:
            uvicorn.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@contextmanager
def command(*options: str, environment: dict[str, str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(address, process) of `vllm-doctor serve` as users start it. What it wrote is in the process's streams once it has ended."""
    code = "import sys; from vllm_doctor.cli import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "VLLM_DOCTOR_LANG": "en", **(environment or {})},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said.startswith("vllm-doctor is at http://"), said
        yield said.split()[3].rstrip("/"), process
    finally:
        process.terminate()
        process.wait(20)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
