"""`plan --log`: what a log fills in, and when it is of another set-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_doctor.cli import run

V0 = """\
INFO 03-25 09:10:00 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.1) with config: model='Qwen/Qwen2.5-7B-Instruct', dtype=torch.bfloat16, max_seq_len=6600, tensor_parallel_size=1, pipeline_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto,  device_config=cuda,
INFO 03-25 09:10:09 [worker.py:267] the current vLLM instance can use total_gpu_memory (21.99GiB) x gpu_memory_utilization (0.90) = 19.79GiB
INFO 03-25 09:10:09 [worker.py:267] model weights take 14.25GiB; non_torch_memory takes 0.06GiB; PyTorch activation peak memory takes 1.43GiB; the rest of the memory reserved for KV Cache is 4.05GiB.
INFO 03-25 09:10:30 [model_runner.py:1563] Graph capturing finished in 20 secs, took 0.76 GiB
"""  # noqa: E501  lines of a log


def answer_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    log = tmp_path / "server.log"
    log.write_text(V0)
    assert run(["plan", "--model", "Qwen2.5-7B", "--log", str(log), "--format", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["plan"]  # type: ignore[no-any-return]


def test_a_log_fills_in_version_engine_length_total_and_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(tmp_path, capsys, "--gpu", "A10G")
    per_gpu = answer["per_gpu"]
    assert (answer["basis"], answer["vllm_version"], answer["engine_generation"]) == ("measured", "0.8.1", "V0-c")
    assert (answer["settings"]["max_model_len"], answer["settings"]["gpu_memory_utilization"]) == (6600, 0.9)
    assert [round(per_gpu[f"{n}_bytes"] / 2**30, 2) for n in ("total", "weights", "activation", "graphs")] == [21.99, 14.25, 1.43, 0.76]
    assert answer["kv_tokens"] == pytest.approx(75856, rel=0.003)
    assert answer["command"] == "VLLM_USE_V1=0 vllm serve Qwen2.5-7B --gpu-memory-utilization 0.9 --max-model-len 6600"
    assert [n["code"] for n in answer["notes"]] == []


@pytest.mark.parametrize(
    ("arguments", "differs"),
    [
        (("--gpu", "A100 80GB"), "22.0 / 79.2 GiB"),
        (("--gpu", "A10G", "--vllm-version", "0.20.0"), "vLLM 0.8.1 (V0-c) / 0.20.0 (V1-d), --max-num-batched-tokens 6600 / 2048"),
        (("--gpu", "A10G", "--max-model-len", "16384"), "--max-num-batched-tokens 6600 / 16384"),
        (("--gpu", "A10G", "--enforce-eager"), "--enforce-eager False / True"),
    ],
)
def test_a_log_of_another_set_up_lends_its_weights_only(
    arguments: tuple[str, ...], differs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = answer_of(tmp_path, capsys, *arguments)
    assert (answer["basis"], answer["part_basis"]["weights"], answer["part_basis"]["activation"]) == ("model", "measured", "model")
    assert {"code": "log-differs", "what": differs} in answer["notes"]


V1 = """\
(APIServer pid=1) INFO 01-28 09:14:05 [api_server.py:1272] vLLM API server version 0.14.1
(APIServer pid=1) INFO 01-28 09:14:05 [utils.py:263] non-default args: {'model_tag': 'Qwen/Qwen2.5-7B-Instruct', 'model': 'Qwen/Qwen2.5-7B-Instruct', 'max_model_len': 8192, 'gpu_memory_utilization': 0.9, 'max_num_batched_tokens': 8192, 'max_num_seqs': 128}
(EngineCore_DP0 pid=102) INFO 01-28 09:14:26 [gpu_model_runner.py:3807] Model loading took 14.25 GiB memory and 5.112233 seconds
(EngineCore_DP0 pid=102) INFO 01-28 09:14:48 [gpu_worker.py:358] Available KV cache memory: 5.61 GiB
(EngineCore_DP0 pid=102) INFO 01-28 09:14:48 [kv_cache_utils.py:1305] GPU KV cache size: 105,040 tokens
(EngineCore_DP0 pid=102) INFO 01-28 09:14:48 [kv_cache_utils.py:1310] Maximum concurrency for 8,192 tokens per request: 12.82x
"""  # noqa: E501  lines of a log
UNSTATED = """\
INFO 12-25 09:10:08 worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.90) = 7.20GiB
INFO 12-25 09:10:08 worker.py:267] model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak memory takes 1.42GiB; the rest of the memory reserved for KV Cache is 0.55GiB.
INFO 12-25 09:10:08 executor_base.py:111] # cuda blocks: 643, # CPU blocks: 4681
INFO 12-25 09:10:08 executor_base.py:116] Maximum concurrency for 4096 tokens per request: 2.51x
"""  # noqa: E501  lines of a log


def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *arguments: str) -> dict[str, Any]:
    log = tmp_path / "server.log"
    log.write_text(text)
    assert run(["plan", "--log", str(log), "--format", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["plan"]  # type: ignore[no-any-return]


QWEN = ("--model", "Qwen2.5-7B-Instruct", "--gpu", "RTX 4090")


def test_the_kv_cache_that_a_log_prints_is_taken_as_it_is_though_its_peak_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = planned(tmp_path, capsys, V1, *QWEN)
    assert answer["kv_tokens"] == 105_040
    assert answer["max_concurrency"] == 12.82
    assert round(answer["per_gpu"]["kv_bytes"] / 2**30, 2) == 5.61
    assert (answer["basis"], answer["vllm_version"], answer["error_band"]["kv_tokens"]) == ("measured", "0.14.1", [105_040, 105_040])
    assert answer["flags"] == {
        "--gpu-memory-utilization": "0.9", "--max-model-len": "8192", "--max-num-seqs": "128", "--max-num-batched-tokens": "8192",
    }  # fmt: skip
    assert answer["part_basis"] == {"weights": "measured", "activation": "model", "non_torch": "rule-of-thumb", "graphs": "rule-of-thumb"}
    assert answer["notes"] == []


def test_tokens_alone_give_the_kv_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unsized = "\n".join(line for line in V1.splitlines() if "Available KV" not in line)
    answer = planned(tmp_path, capsys, unsized, *QWEN)
    assert (answer["kv_tokens"], answer["per_gpu"]["kv_bytes"]) == (105_040, 105_040 * 57344)


def test_another_utilisation_moves_a_measured_kv_cache_by_its_share_of_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, here = (planned(tmp_path, capsys, V1, *QWEN, "--gpu-memory-utilization", share)["per_gpu"] for share in ("0.9", "0.85"))
    assert there["kv_bytes"] - here["kv_bytes"] == pytest.approx(0.05 * there["total_bytes"], abs=2)
    assert there["activation_bytes"] == here["activation_bytes"]


def test_a_log_with_other_limits_lends_its_weights_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = planned(tmp_path, capsys, V1, *QWEN, "--max-num-seqs", "256")
    assert {"code": "log-differs", "what": "--max-num-seqs 128 / 256"} in answer["notes"]
    assert (answer["basis"], answer["part_basis"]["weights"]) == ("model", "measured")


def test_what_a_log_does_not_state_contradicts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "Qwen2.5-7B-Instruct-AWQ", "--gpu", "8")
    answer = planned(tmp_path, capsys, UNSTATED, *arguments, "--vllm-version", "0.7.3")
    assert (answer["engine_generation"], answer["basis"], answer["kv_tokens"]) == ("V0-c", "measured", 643 * 16)
    assert "log-differs" not in [n["code"] for n in answer["notes"]]
    assert (answer["settings"]["max_model_len"], answer["part_basis"]["activation"]) == (4096, "measured")
    supposed = planned(tmp_path, capsys, UNSTATED, *arguments)
    assert (supposed["vllm_version"], supposed["basis"], supposed["notes"][-1]) == (
        "0.10.2",
        "measured",
        {"code": "log-version", "version": "0.10.2"},
    )


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "The KV cache is that of a real start; its peak and what lies outside PyTorch"),
        ("en", "It starts: 12 requests of 8,192 tokens fit at once."),
        ("zh", "KV 缓存取自真实启动；激活峰值与 PyTorch 之外"),
        ("zh", "可以启动：可同时容纳 12 个请求，每个 8,192 个 token。"),
    ],
)
def test_the_basis_says_what_was_measured_together(language: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.log").write_text(V1)
    assert run(["plan", *QWEN, "--log", str(tmp_path / "server.log"), "--lang", language]) == 0
    assert said.replace(" ", "") in "".join(capsys.readouterr().out.split())


def test_measured_weights_are_not_those_of_more_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ways = planned(tmp_path, capsys, V1, *QWEN, "--concurrency", "40")["ways"]
    wider = next(w for w in ways if w["kind"] == "tp")
    fresh = ("--vllm-version", "0.14.1", "--max-model-len", "8192", "--max-num-seqs", "128", "--max-num-batched-tokens", "8192", "--tp", "2")
    assert run(["plan", *QWEN, *fresh, "--gpu-memory-utilization", "0.9", "--format", "json"]) == 0
    assert wider["kv_tokens"] == json.loads(capsys.readouterr().out)["plan"]["error_band"]["kv_tokens"][0]
