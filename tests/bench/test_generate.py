"""The benchmark's log must stay what the figures were measured on."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tests.bench.generate import lines_of_a_log, write_log


def test_the_log_has_the_mix_of_the_recorded_ones() -> None:
    lines = list(islice(lines_of_a_log(), 100_000))
    share = {
        name: sum(token in line for line in lines) / len(lines)
        for name, token in (("access", ' HTTP/1.1" '), ("statistics", "Avg prompt throughput"), ("traceback", "[serving.py:417]"))
    }
    assert {name: round(value, 2) for name, value in share.items()} == {"access": 0.70, "statistics": 0.01, "traceback": 0.08}


def test_the_log_tells_of_several_runs_that_end_in_a_crash() -> None:
    lines = list(islice(lines_of_a_log(), 100_000))
    assert sum("version 0.32.0" in line for line in lines) == 3
    assert sum("MPClient: engine core exited unexpectedly" in line for line in lines) == 2


def test_the_same_size_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_log(tmp_path / name, 300_000)
    first, second = ((tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second
    assert 300_000 <= len(first) < 310_000
    assert first.endswith(b"\n")
