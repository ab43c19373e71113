"""Cutting a source into segments: encodings, pastes of several things, nothing lost."""

from __future__ import annotations

import pytest

from vllm_doctor.parsing.framing import Segment, segments, sniff

LOG = "INFO 11-30 13:00:01 [core.py:77] something\n"
METRICS = '# HELP vllm:num_requests_running Number\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3.0\n'
SMI = """\
Mon Nov 30 17:03:12 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 560.35.03              Driver Version: 560.35.03      CUDA Version: 12.6     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             70W /  700W |   78000MiB /  81559MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
LAUNCH = "$ vllm serve Qwen/Qwen3-8B \\\n    --max-model-len 8192 \\\n    --gpu-memory-utilization 0.95\n"
PROSE = "Hello all, since yesterday my server dies.\nWhat can I do?\n"


def kinds(text: str) -> list[tuple[str, int]]:
    return [(s.kind, s.first_line) for s in segments("paste", text.encode())]


def test_a_paste_of_everything_is_cut_where_the_kinds_change() -> None:
    text = PROSE + LAUNCH + "\n" + LOG * 2 + SMI + METRICS
    assert kinds(text) == [("prose", 1), ("launch", 3), ("server_log", 7), ("gpu", 9), ("metrics", 16)]
    assert b"".join(s.data for s in segments("paste", text.encode())) == text.encode()


def test_plain_lines_after_a_log_line_belong_to_the_log() -> None:
    assert kinds(LOG + "Processed prompts: 1\nTriton is installed\n" + LOG) == [("server_log", 1)]


def test_a_compose_file_is_a_launch() -> None:
    text = "services:\n  vllm:\n    image: vllm/vllm-openai:v0.11.0\n    command:\n      - --model\n      - Qwen/Qwen3-8B\n      - --max-model-len\n"
    assert kinds(text) == [("launch", 1)]


def test_kernel_lines_are_a_segment_of_their_own() -> None:
    kernel = "[ 4821.310442] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    assert kinds(kernel + LOG) == [("kernel", 1), ("server_log", 2)]


def test_words_alone_are_prose() -> None:
    assert kinds(PROSE) == [("prose", 1)]


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", b"\xef\xbb\xbf\n"])
def test_an_empty_source_is_said_to_be_empty(data: bytes) -> None:
    assert [s.kind for s in segments("s", data)] == ["empty"]


def test_a_binary_is_not_read() -> None:
    data = bytes(range(256)) * 40
    assert segments("s", data) == [Segment("binary", "s", 1, data)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_other_encodings_become_utf8(encoding: str) -> None:
    assert segments("s", LOG.encode(encoding)) == [Segment("server_log", "s", 1, LOG.encode())]


def test_invisible_characters_go_and_no_break_spaces_are_blanks() -> None:
    assert segments("s", LOG.replace(" ", "\u00a0", 2).replace("core", "co\u200bre").encode()) == [Segment("server_log", "s", 1, LOG.encode())]


def test_the_head_of_a_large_source_tells_its_kind() -> None:
    assert (sniff(METRICS.encode()), sniff(LOG.encode()), sniff(SMI.encode()), sniff(b"words"), sniff(b"")) == (
        "metrics",
        "server_log",
        "gpu",
        "server_log",
        "empty",
    )
