"""Sources that are folded in blocks: what comes out must not depend on where they are cut, nor on who folds them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.bench.generate import write_log
from vllm_doctor import large
from vllm_doctor.model.observations import Clock, Issue
from vllm_doctor.parsing import blocks, log
from vllm_doctor.ruleset.load import load
from vllm_doctor.sources import Source

FORMATS = load().formats
SIZE = 1_500_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("large") / "server.log"
    write_log(found, SIZE)
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte must do as a large file."""
    for name, value in (("BLOCK", 200_000), ("REACH", 20_000), ("WINDOW", 20_000)):
        monkeypatch.setattr(blocks, name, value)
    monkeypatch.setattr(large, "SHARE", 400_000)
    monkeypatch.setattr(large, "PARALLEL_FROM", SIZE * 2)


def source(path: Path, **more: str) -> Source:
    return Source(name="server.log", path=str(path), size=path.stat().st_size, **more)  # type: ignore[arg-type]


def folded(given: Source) -> large.Folded:
    issues: list[Issue] = []
    found = large.read(given, None, FORMATS, issues)
    assert issues == []
    return found


@pytest.mark.usefixtures("small_blocks")
def test_a_file_in_blocks_gives_what_one_fold_gives(path: Path) -> None:
    data = path.read_bytes()
    found = folded(source(path))
    assert found == large.Folded("server_log", {"": log.fold(data, "server.log", Clock(1970), FORMATS)}, {}, data.count(b"\n"), len(data))


@pytest.mark.usefixtures("small_blocks")
def test_worker_processes_give_what_one_process_gives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = folded(source(path))
    monkeypatch.setattr(large, "PARALLEL_FROM", 0)
    monkeypatch.setattr(large, "_cores", lambda: 2)
    monkeypatch.setattr(large, "_context", lambda: "fork")
    joined: list[large.Folded] = []
    join = large._join
    monkeypatch.setattr(large, "_join", lambda result, share: (joined.append(share), join(result, share)))
    assert folded(source(path)) == alone
    assert len(joined) > 2


@pytest.mark.usefixtures("small_blocks")
def test_lines_of_a_wrapped_log_keep_their_numbers_in_workers(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = tmp_path / "server.log"
    lines = path.read_bytes().splitlines(keepends=True)
    wrapped.write_bytes(b"".join(b"2026-03-01T%02d:%02d:%02dZ stdout F %s" % (n // 3600, n // 60 % 60, n % 60, line) for n, line in enumerate(lines)))
    alone = folded(source(wrapped))
    monkeypatch.setattr(large, "PARALLEL_FROM", 0)
    monkeypatch.setattr(large, "_cores", lambda: 2)
    monkeypatch.setattr(large, "_context", lambda: "fork")
    assert folded(source(wrapped)) == alone
    series = [part.series["requests.running", 0] for part in alone.tallies[""].parts if part.series]
    numbers = [point.ref.line for one in series for point in one.points()]
    assert numbers == [at for at, line in enumerate(lines, 1) if b"Avg prompt throughput" in line]


@pytest.mark.usefixtures("small_blocks")
def test_where_no_process_can_be_started_this_one_does_the_work(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = folded(source(path))
    monkeypatch.setattr(large, "PARALLEL_FROM", 0)
    monkeypatch.setattr(large, "_cores", lambda: 2)
    monkeypatch.setattr(large, "_context", lambda: "fork")

    def refuse(*args: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    assert folded(source(path)) == alone


@pytest.mark.usefixtures("small_blocks")
def test_a_packed_log_gives_the_same_as_the_plain_one(path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    assert folded(source(packed, packing="gzip")).tallies == folded(source(path)).tallies


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_vanishes_is_an_issue(tmp_path: Path) -> None:
    issues: list[Issue] = []
    found = large.read(Source(name="gone.log", path=str(tmp_path / "gone.log"), size=SIZE), None, FORMATS, issues)
    assert (found.lines, [i.code for i in issues]) == (0, ["source.damaged"])


def test_a_log_over_new_year_whose_first_block_ends_in_december_goes_on_in_the_next_year(tmp_path: Path) -> None:
    stats = (
        "INFO {} [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
        "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%\n"
    )
    path = tmp_path / "server.log"
    path.write_text(stats.format("12-31 23:59:55") + "x\n" * 400_000 + stats.format("01-01 00:00:05"), encoding="utf-8")
    found = large.read(source(path), 1798761700.0, FORMATS, [])  # 2027-01-01 00:01:40
    [part] = found.tallies[""].parts
    assert [p.time for p in part.series["requests.running", 0].points()] == [1798761595.0, 1798761605.0]
