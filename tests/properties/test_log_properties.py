"""What holds for every log: cutting and merging changes nothing, and no bytes whatever raise."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_doctor.model.observations import Bucket, Clock, Point, Ref, Series, StreamTally
from vllm_doctor.parsing import blocks, framing, log, streams
from vllm_doctor.ruleset.load import load

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
FORMATS = load().formats
CLOCK = Clock(year=2026, year_known=True)
LOGS = {path.parent.name: path.read_bytes() for path in sorted(FIXTURES.glob("*/server.log")) if path.stat().st_size < 120_000}
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PIECES = [
    b'INFO:     127.0.0.1:51514 - "POST /v1/completions HTTP/1.1" 200 OK\n',
    b'INFO:     127.0.0.1:51514 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n',
    b'INFO:     127.0.0.1:51514 - "GET /metrics HTTP/1.0" 500 Internal Server Error\n',
    b"(APIServer pid=7) INFO 11-30 13:00:01 [loggers.py:123] Engine 000: Avg prompt throughput: 0.1 tokens/s, Avg generation throughput: 0.7 "
    b"tokens/s, Running: 3 reqs, Waiting: 9 reqs, GPU KV cache usage: 97.3%, Prefix cache hit rate: 1.1%\n",
    b"(APIServer pid=7) INFO 11-30 13:00:11 [loggers.py:123] Engine 001: Avg prompt throughput: 0.2 tokens/s, Avg generation throughput: 0.3 "
    b"tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.3%, Prefix cache hit rate: 1.1%\n",
    b"INFO 11-30 12:59:59 [logger.py:39] Received request cmpl-1: prompt: 'CUDA out of memory. Tried to allocate', params: SamplingParams(n=1)\n",
    b"(EngineCore_DP1 pid=9) INFO 11-30 13:00:00 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='m', max_seq_len=2048\n",
    b"(APIServer pid=7) INFO 11-30 12:58:00 [api_server.py:1896] vLLM API server version 0.10.2\n",
    b"(EngineCore_DP1 pid=9) ERROR 11-30 13:00:02 [core.py:700] EngineCore encountered a fatal error.\n"
    b"(EngineCore_DP1 pid=9) ERROR 11-30 13:00:02 [core.py:700] Traceback (most recent call last):\n"
    b'INFO:     127.0.0.1:51514 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    b'(EngineCore_DP1 pid=9) ERROR 11-30 13:00:02 [core.py:700]   File "/x/vllm/v1/worker/gpu_model_runner.py", line 2, in execute_model\n'
    b"(EngineCore_DP1 pid=9) ERROR 11-30 13:00:02 [core.py:700]     return f(x)\n"
    b"(EngineCore_DP1 pid=9) ERROR 11-30 13:00:02 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. "
    b"GPU 0 has a total capacity of 44.53 GiB of which 448.00 KiB is free.\n",
    b"Process EngineCore:\nTraceback (most recent call last):\n"
    b'  File "/x/vllm/v1/engine/core.py", line 2, in run_busy_loop\n    f()\nValueError: no\n',
    b"ValueError: The model's max seq len (30000) is larger than the maximum number of tokens that can be stored in KV cache (\n3984). Try\n",
    b"INFO:     Application startup complete.\n",
    b"\n",
    b"plain words, nothing else\n",
    b"pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, no. [type=value_error]\n",
]


@pytest.mark.parametrize("name", LOGS)
def test_folding_the_parts_of_a_recorded_log_and_merging_gives_the_fold_of_the_whole(name: str) -> None:
    data = LOGS[name]
    whole = log.fold(data, "s", CLOCK, FORMATS)
    places = random.Random(name)
    for _ in range(6):
        at = blocks.boundary(data, places.randrange(len(data)))
        assert log.fold(data[:at], "s", CLOCK, FORMATS).merge(log.fold(data[at:], "s", CLOCK, FORMATS)) == whole


@QUICK
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=60), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_merging_is_the_same_for_any_cuts_in_any_grouping(pieces: list[bytes], cuts: list[float]) -> None:
    data = b"".join(pieces)
    offsets = sorted({0, len(data), *(blocks.boundary(data, int(c * len(data))) for c in cuts)})
    tallies = [log.fold(data[a:b], "s", CLOCK, FORMATS) for a, b in pairwise(offsets)]
    left = StreamTally()
    for tally in tallies:
        left = left.merge(tally)
    right = StreamTally()
    for tally in reversed(tallies):
        right = tally.merge(right)
    assert left == log.fold(data, "s", CLOCK, FORMATS)
    assert right == left


@QUICK
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 200_000)), min_size=1, max_size=60), st.integers(0, 60))
def test_a_series_does_not_depend_on_where_it_was_cut(samples: list[tuple[float, int]], cut: int) -> None:
    points = [Point(value, float(time), Ref("s", line, "")) for line, (value, time) in enumerate(samples, 1)]
    assert Series.of(points[:cut]).merge(Series.of(points[cut:])) == Series.of(points)


@QUICK
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 9_000)), min_size=1, max_size=60), st.booleans())
def test_columns_give_the_series_of_their_points_and_survive_a_pickle(samples: list[tuple[float, int]], ordered: bool) -> None:
    times = [float(time) for _, time in samples]
    times = sorted(times) if ordered else times
    values = [value for value, _ in samples]
    points = [Point(value, time, Ref("s", line, "")) for line, (value, time) in enumerate(zip(values, times, strict=True))]
    found = Series.of_columns(times, {"a": values}, lambda line: Ref("s", line, ""))["a"]
    assert found == Series.of(points)
    assert found.points() == Series.of(points).points()
    assert pickle.loads(pickle.dumps(found)) == found


def test_equal_extremes_of_a_bucket_are_told_apart_by_time_and_line() -> None:
    early, late = Point(1.0, 5.0, Ref("s", 9, "")), Point(1.0, 6.0, Ref("s", 2, ""))
    assert Bucket.of(late).merge(Bucket.of(early)) == Bucket.of(early).merge(Bucket.of(late))
    assert Bucket.of(late).merge(Bucket.of(early)).min == early


@QUICK
@given(st.binary(max_size=3000))
def test_no_bytes_raise(data: bytes) -> None:
    for segment in framing.segments("s", data):
        for stream in streams.streams(segment):
            tally = log.fold(stream.data, "s", log.clock_of(stream.data, 2026), FORMATS, stream.lines, stream.stamps)
            assert tally.lines == stream.data.count(b"\n") + (not stream.data.endswith(b"\n") and bool(stream.data))


@QUICK
@given(st.data())
def test_mutated_and_truncated_logs_do_not_raise_and_lose_no_line(data: st.DataObject) -> None:
    text = bytearray(LOGS[data.draw(st.sampled_from(sorted(LOGS)))][:20_000])
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(0, 255)), max_size=40)):
        text[at] = value
    cut = bytes(text[: data.draw(st.integers(0, len(text)))])
    found = framing.segments("s", cut)
    assert sum(s.data.count(b"\n") for s in found) in (cut.count(b"\n"), 0 if cut.count(b"\0") else cut.count(b"\n"))
    for segment in found:
        for stream in streams.streams(segment):
            log.fold(stream.data, "s", log.clock_of(stream.data, None), FORMATS, stream.lines, stream.stamps)


@pytest.mark.parametrize("filler", [b"x", b"\0", b"\xff", b"(", b'File "', b"Error: ", b"INFO 11-30 13:00:00 [a.py:1] "])
def test_a_line_of_a_mebibyte_is_one_line(filler: bytes) -> None:
    stats = PIECES[3]
    data = stats + filler * (2**20 // len(filler)) + b"\n" + stats
    tally = log.fold(data, "s", CLOCK, FORMATS)
    assert tally.lines == 3
    assert tally.parts[0].series["requests.waiting", 0].count == 2


@QUICK
@given(st.lists(st.sampled_from(PIECES), max_size=80), st.integers(1, 4000), st.integers(200, 3000))
def test_blocks_of_a_stream_are_the_stream(pieces: list[bytes], chunk: int, size: int) -> None:
    data = b"".join(pieces)
    chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
    assert b"".join(blocks.blocks(chunks, size)) == data
