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
