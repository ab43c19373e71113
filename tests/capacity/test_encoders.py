"""Encoders keep no KV cache: they start where their weights and peak fit, and memory does not limit their requests."""

from __future__ import annotations

import pytest
from msgspec import structs

from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.plan import Plan, Wish, plan
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.reports.plan import as_json, as_text
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()


def setup(model: str, card: str, version: str | None = None) -> Setup:
    found, gpu = find_model(model, KNOWLEDGE), find_gpu(card, KNOWLEDGE)
    assert found.model is not None
    return Setup(model=found.model, gpu=gpu.gpu, total_bytes=round((gpu.total_gib or 0) * GIB), version=version)


def codes(answer: Plan) -> list[str]:
    return [code for code, _ in answer.notes]


@pytest.mark.parametrize("version", [None, "0.6.3", "0.8.5", "0.10.2"])
@pytest.mark.parametrize("model", ["bge-m3", "BAAI/bge-large-zh-v1.5", "BAAI/bge-reranker-v2-m3", "nomic-ai/nomic-embed-text-v1.5"])
def test_an_encoder_starts_without_a_cache(model: str, version: str | None) -> None:
    answer = plan(setup(model, "T4", version))
    budget = answer.budget
    assert answer.starts
    assert answer.command_starts
    assert (budget.cacheless, budget.kv.bytes, budget.kv_bytes_per_token) == (True, 0, 0)
    assert sum(a.bytes for a in budget.parts.values()) + budget.outside.bytes + budget.headroom == budget.total
    assert codes(answer)[0] == "no-cache"
    assert [b.name for b in answer.limits] == ["max_num_seqs"]
    assert answer.fits["max_model_len"].requests == budget.max_num_seqs


def test_a_decoder_that_embeds_keeps_one() -> None:
    answer = plan(setup("Qwen3-Embedding-0.6B", "T4"))
    assert not answer.budget.cacheless
    assert answer.budget.kv.bytes > 0


def test_an_encoder_that_is_larger_than_the_card_does_not_start() -> None:
    answer = plan(structs.replace(setup("bge-m3", "T4"), total_bytes=GIB))
    assert not answer.starts
    assert not answer.command_starts
    assert "no-kv" not in codes(answer)


def test_requests_of_an_encoder_are_limited_by_its_slots() -> None:
    answer = plan(setup("bge-m3", "T4"), Wish(300))
    assert codes(answer)[:2] == ["no-cache", "seqs"]
    assert answer.flags["--max-num-seqs"] == "300"


@pytest.mark.parametrize(("language", "said"), [("en", "the model keeps no KV cache"), ("zh", "该模型不保留 KV 缓存")])
def test_it_is_said_in_the_first_line(language: str, said: str) -> None:
    answer = plan(setup("bge-m3", "T4"))
    text = as_text([("T4", answer)], "bge-m3", Wish(), language=language)
    assert said in text.splitlines()[0]
    assert "does not start" not in text
    assert '"starts": true' in as_json([("T4", answer)], "bge-m3", Wish())
