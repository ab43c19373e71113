"""`vllm-doctor serve` as a command: what it refuses to start with, and how it ends."""

from __future__ import annotations

import signal
import socket

import httpx
import pytest

from tests.web.running import command
from vllm_doctor.cli import run


@pytest.mark.parametrize(
    "options", [["--base-path", "doctor"], ["--base-path", "/a b"], ["--base-path", "/../x?y"], ["--port", "70000"], ["--max-mib", "0"]], ids=str
)
def test_options_that_make_no_sense_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *options]) == 2
    assert "Invalid value" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err == f"vllm-doctor: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_told_to_and_takes_its_workers_along(end: signal.Signals) -> None:
    with command() as (address, process):
        assert httpx.get(address + "/sample", timeout=60, trust_env=False).status_code == 200
        process.send_signal(end)
        process.wait(20)
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""


def test_the_help_says_what_happens_to_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    assert "Nothing is stored and nothing is sent anywhere." in " ".join(capsys.readouterr().out.split())


def test_listening_for_other_machines_is_warned_of_and_the_link_can_be_used() -> None:
    with command("--host", "0.0.0.0") as (address, process):
        assert address.startswith("http://127.0.0.1:")
        assert httpx.get(address + "/healthz", timeout=60, trust_env=False).json()["status"] == "ok"
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.stderr is not None
        assert process.stderr.read().startswith("Warning: on 0.0.0.0 this can be reached from other machines")
