"""On every CPU capture the predicted blocks, tokens and concurrency are the log's own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from vllm_doctor.capacity import size
from vllm_doctor.capacity.ledger import pool_tokens
from vllm_doctor.capacity.observed import option, whole
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.model.case import Run
from vllm_doctor.pipeline import read_case
from vllm_doctor.ruleset.load import load
from vllm_doctor.ruleset.schema import Model
from vllm_doctor.sources import read

ROOT = Path(__file__).resolve().parent.parent.parent
OUTSIDE = os.environ.get("VLLM_DOCTOR_CASES")
FOLDERS = [*(ROOT / "fixtures").iterdir(), *(Path(OUTSIDE).glob("captures/*/*") if OUTSIDE else ())]
LOGS = sorted(p for f in FOLDERS if (p := f / "server.log").is_file() and b"device_config=cpu" in p.read_bytes())

PER_TOKEN = {"tiny": 2048, "longctx": 2048, "mid": 8192}
"""Bytes of KV cache per token of the captures' models: 4 layers of 2 heads of 64, and 8 layers of 4 heads of 64, at 16 bits."""


def captured_model(name: str) -> Model:
    layers, heads = (8, 4) if PER_TOKEN[name] == 8192 else (4, 2)
    return Model(
        name=name, source="captures", confidence="known", num_hidden_layers=layers, hidden_size=768, num_attention_heads=12,
        num_key_value_heads=heads, head_dim=64, vocab_size=32000, architecture="Qwen2ForCausalLM", max_position_embeddings=2_000_000,
    )  # fmt: skip


def run_of(log: Path) -> Run:
    sources, _ = read((str(log),), None)
    return read_case(sources, load(None)).runs[0]


def predicted(run: Run, log: Path) -> Setup:
    name = Path(str(run.text("model.name"))).name
    command = log.with_name("cmd.txt")
    space = re.search(r"VLLM_CPU_KVCACHE_SPACE=(\d+)", command.read_text()) if command.is_file() else None
    return Setup(
        model=captured_model(name),
        total_bytes=0,
        device="cpu",
        version=run.version,
        kv_cache_memory_bytes=(int(space[1]) if space else 1) * GIB,
        block_size=whole(option(run, "block-size")),
        num_gpu_blocks_override=whole(option(run, "num-gpu-blocks-override")),
        max_model_len=whole(option(run, "max-model-len")),
        max_num_seqs=whole(option(run, "max-num-seqs")),
        max_num_batched_tokens=whole(option(run, "max-num-batched-tokens")),
    )


@pytest.mark.parametrize("log", LOGS, ids=lambda p: p.parent.name)
def test_predicted_blocks_and_tokens_are_the_logs(log: Path) -> None:
    run = run_of(log)
    tokens, _ = pool_tokens(run)
    budget = size(predicted(run, log))
    blocks = run.fact("kv_cache.blocks")
    printed = run.fact("kv_cache.max_concurrency")
    assert tokens in (None, budget.kv_tokens)
    assert blocks is None or int(float(blocks.value)) == budget.blocks
    assert printed is None or f"{budget.max_concurrency:.2f}" == f"{float(printed.value):.2f}"
    if run.event_count("startup.kv_below_max_len"):
        assert not budget.starts


def test_there_are_captures_that_print_their_pool() -> None:
    assert sum(pool_tokens(run_of(log))[0] is not None for log in LOGS) >= 20
