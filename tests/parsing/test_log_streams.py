"""Wrappers around log lines: peeled by vote, with their times, origins and line numbers; vLLM's own tags stay."""

from __future__ import annotations

import json
import math

import pytest

from vllm_doctor.parsing.framing import Segment
from vllm_doctor.parsing.streams import Stream, streams

LINES = [
    "INFO 11-12 10:04:31 [core.py:77] one",
    "(EngineCore_DP0 pid=3) INFO 11-12 10:04:32 [core.py:78] two",
    'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    "INFO 11-12 10:04:34 [core.py:80] four",
]
TEN = 1762941870.0  # 2025-11-12 10:04:30


def of(rows: list[str]) -> list[Stream]:
    return streams(Segment("server_log", "s", 1, "".join(f"{row}\n" for row in rows).encode()))


def only(rows: list[str]) -> Stream:
    [stream] = of(rows)
    return stream


def iso(second: int, tail: str = "Z") -> str:
    return f"2025-11-12T10:04:{30 + second}.500000000{tail}"


WRAPPED = {
    "json": [json.dumps({"log": line + "\n", "stream": "stdout", "time": iso(i)}) for i, line in enumerate(LINES)],
    "cri": [f"{iso(i)} stdout F {line}" for i, line in enumerate(LINES)],
    "stamp": [f"{iso(i)} {line}" for i, line in enumerate(LINES)],
    "journald-iso": [f"2025-11-12T10:04:{30 + i}.500+00:00 node7 vllm[20]: {line}" for i, line in enumerate(LINES)],
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapper_with_a_zone_gives_clean_lines_and_times(name: str) -> None:
    stream = only(WRAPPED[name])
    assert stream.data.decode().splitlines() == LINES
    assert stream.wrappers == (name,)
    assert stream.lines is not None
    assert list(stream.lines) == [1, 2, 3, 4]
    assert stream.stamps is not None
    assert list(stream.stamps) == [TEN + i + 0.5 for i in range(4)]
    assert stream.utc_offset == 0.0


def test_unwrapped_lines_are_passed_on_as_they_are() -> None:
    data = "\n".join(LINES).encode()
    assert streams(Segment("server_log", "s", 5, data)) == [Stream(data)]


def test_an_offset_stays_the_local_clock_of_the_stream() -> None:
    stream = only([f"{iso(i, '+01:00')} {line}" for i, line in enumerate(LINES)])
    assert stream.stamps is not None
    assert (stream.stamps[0], stream.utc_offset) == (TEN + 0.5, 3600.0)


def test_interleaved_containers_are_separated_with_their_line_numbers() -> None:
    rows = [f"{name}  | {line}" for line in LINES for name in ("vllm-1", "prox-1")]
    found = of(rows)
    assert [(s.origin, list(s.lines or ())) for s in found] == [("vllm-1", [1, 3, 5, 7]), ("prox-1", [2, 4, 6, 8])]
    assert [s.data.decode().splitlines() for s in found] == [LINES, LINES]


def test_pods_and_stamps_are_peeled_one_after_the_other() -> None:
    stream = only([f"[pod/vllm-0/vllm] {iso(i)} {line}" for i, line in enumerate(LINES)])
    assert (stream.wrappers, stream.origin, stream.data.decode().splitlines()) == (("kubectl-prefix", "stamp"), "vllm-0/vllm", LINES)


def test_a_line_that_docker_split_is_joined() -> None:
    halves = [LINES[0][:10], LINES[0][10:] + "\n", LINES[3] + "\n"]
    stream = only([json.dumps({"log": part, "stream": "stdout", "time": iso(0)}) for part in halves])
    assert stream.data.decode().splitlines() == [LINES[0], LINES[3]]
    assert list(stream.lines or ()) == [1, 3]


def test_a_line_without_the_wrapper_keeps_the_time_of_the_one_before() -> None:
    stream = only([*(f"{iso(i)} {line}" for i, line in enumerate(LINES)), "  continued"])
    assert stream.data.decode().splitlines() == [*LINES, "  continued"]
    assert stream.stamps is not None
    assert stream.stamps[4] == stream.stamps[3]


def test_syslog_has_no_year_and_its_program_is_the_origin() -> None:
    stream = only([f"Nov 12 10:04:3{i} node7 vllm[20410]: {line}" for i, line in enumerate(LINES)])
    assert (stream.origin, stream.utc_offset, stream.data.decode().splitlines()) == ("vllm", None, LINES)
    assert stream.stamps is not None
    assert not math.isnan(stream.stamps[0])


def test_json_logging_of_vllm_reads_like_its_text_logging() -> None:
    record = {
        "asctime": "2026-11-30 14:13:08,184",
        "levelname": "INFO",
        "filename": "a.py",
        "lineno": 7,
        "message": "x\ny",
        "vllm_process_name": "APIServer",
    }
    stream = only([json.dumps(record), "plain from a child", json.dumps(record)])
    assert stream.data.decode().splitlines()[:3] == [
        "(APIServer pid=0) INFO 11-30 14:13:08 [a.py:7] x",
        "(APIServer pid=0) INFO 11-30 14:13:08 [a.py:7] y",
        "plain from a child",
    ]
    assert list(stream.lines or ()) == [1, 1, 2, 3, 3]


def test_an_export_of_a_log_store_is_read_oldest_first() -> None:
    values = [[str(int((TEN + i) * 1e9)), line] for i, line in reversed(list(enumerate(LINES)))]
    document = json.dumps({"data": {"result": [{"stream": {"pod": "vllm-0"}, "values": values}]}}, indent=1)
    [stream] = streams(Segment("server_log", "s", 1, document.encode()))
    assert stream.data.decode().splitlines() == LINES
    assert stream.stamps is not None
    assert list(stream.stamps) == pytest.approx([TEN + i for i in range(4)])


@pytest.mark.parametrize(
    "row",
    [
        "(EngineCore pid=3) INFO 11-12 10:04:32 [core.py:78] x",
        "[rank0]: Traceback (most recent call last):",
        'INFO:     1.2.3.4:5 - "GET /health HTTP/1.1" 200 OK',
        "2024-12-23 18:28:10 - vllm.engine.metrics - INFO - Avg prompt throughput: 0.0 tokens/s",
        "2024-12-23 18:28:10,123 INFO vllm.engine.metrics: x",
        "| sequential (reference) | 4.72 GiB | 2.82 GiB |",
    ],
)
def test_what_is_vllms_own_or_a_table_is_not_peeled(row: str) -> None:
    data = f"{row}\n".encode() * 6
    assert streams(Segment("server_log", "s", 1, data)) == [Stream(data)]
