"""What a version cannot run on a card, or at all: nothing is said to start there, and no advice goes there."""

from __future__ import annotations

import pytest
from packaging.version import Version

from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.plan import Plan, plan
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.capacity.solving import Wish
from vllm_doctor.capacity.support import lacking, needed
from vllm_doctor.capacity.ways import smaller
from vllm_doctor.reports.plan import as_text
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()


def setup(model: str, card: str, version: str | None = None, quantization: str | None = None) -> Setup:
    found, gpu = find_model(model, KNOWLEDGE), find_gpu(card, KNOWLEDGE)
    assert found.model is not None
    assert gpu.gpu is not None
    assert gpu.total_gib is not None
    return Setup(
        model=found.model, gpu=gpu.gpu, total_bytes=round(gpu.total_gib * GIB), version=version, max_model_len=4096,
        quantization=quantization or found.quantization,
    )  # fmt: skip


def refused(answer: Plan) -> dict[str, dict[str, float | str]]:
    return {code: values for code, values in answer.notes if code.startswith("old-")}


@pytest.mark.parametrize(("card", "has"), [("P40", "6.1"), ("K80", "3.7"), ("GTX 1080 Ti", "6.1"), ("P100", "6.0"), ("M40", "5.2")])
def test_a_card_before_volta_starts_nothing_and_gets_no_command(card: str, has: str) -> None:
    answer = plan(setup("Qwen2.5-0.5B-Instruct", card))
    assert [(v["needs"], v["has"]) for v in refused(answer).values()] == [("7.0", has)]
    assert not answer.starts
    assert not answer.command_starts
    assert answer.ways == ()
    text = as_text([(card, answer)], "Qwen2.5-0.5B-Instruct", Wish())
    assert "compute capability 7.0 or higher" in text
    assert "vllm serve" not in text


@pytest.mark.parametrize(
    ("model", "card", "version", "needs", "later"),
    [
        ("Qwen2.5-7B-Instruct-AWQ", "V100 32GB", "0.10.2", "7.5", ""),
        ("Qwen3-8B-FP8", "V100 32GB", None, "7.5", ""),
        ("Qwen3-8B-FP8", "T4", "0.10.2", "8.0", "0.13.0"),
        ("Qwen2.5-7B-Instruct-FP8", "A100 80GB", "0.5.0", "8.9", "0.5.1"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "A100 80GB", "0.8.5", "10.0", "0.9.0"),
        ("gpt-oss-20b", "T4", "0.10.2", "8.0", ""),
        ("Qwen2.5-7B-Instruct-quantized.w4a16", "V100 32GB", "0.10.2", "8.0", ""),
    ],
)
def test_a_quantisation_that_the_card_cannot_compute_is_refused(model: str, card: str, version: str | None, needs: str, later: str) -> None:
    answer = plan(setup(model, card, version))
    assert {code: (v["needs"], v["later"]) for code, v in refused(answer).items()} == {"old-card-for-method": (needs, later)}
    assert not answer.starts
    assert not answer.command_starts


@pytest.mark.parametrize(
    ("model", "card", "version"),
    [
        ("Qwen2.5-7B-Instruct-AWQ", "T4", "0.10.2"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", "V100 32GB", "0.10.2"),
        ("Qwen3-8B-FP8", "A100 80GB", "0.10.2"),
        ("Qwen3-8B-FP8", "T4", "0.14.1"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "A100 80GB", "0.10.2"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "RTX 5090", "0.8.5"),
        ("gpt-oss-20b", "A100 80GB", "0.10.1"),
        ("Qwen3-8B-FP8", "MI300X", "0.10.2"),
    ],
)
def test_a_quantisation_that_the_card_computes_is_not(model: str, card: str, version: str) -> None:
    assert refused(plan(setup(model, card, version))) == {}


def test_advice_on_a_card_that_cannot_compute_awq_names_gptq() -> None:
    assert smaller(setup("Qwen2.5-14B-Instruct", "V100 32GB", "0.8.5")) == ["gptq"]
    assert smaller(setup("Qwen2.5-14B-Instruct", "T4", "0.8.5")) == ["awq"]
    assert [w.checkpoint for w in plan(setup("Qwen2.5-7B-Instruct-AWQ", "V100 32GB", "0.10.2")).ways] == ["gptq"]


def test_a_model_that_is_published_quantised_only_gets_no_other_form() -> None:
    assert smaller(setup("gpt-oss-20b", "T4", "0.10.2")) == []


@pytest.mark.parametrize(
    ("model", "version", "first"),
    [
        ("Qwen3-8B", "0.6.3", "0.8.4"),
        ("gpt-oss-20b", "0.8.5", "0.10.1"),
        ("Qwen2.5-7B-Instruct", "0.2.7", "0.3.0"),
        ("gemma-3-27b-it", "0.7.3", "0.8.0"),
    ],
)
def test_a_release_that_does_not_know_the_model_starts_nothing(model: str, version: str, first: str) -> None:
    answer = plan(setup(model, "H100", version))
    assert refused(answer)["old-version"]["first"] == first
    assert not answer.command_starts
    assert refused(plan(setup(model, "H100", first))) == {}
    assert refused(plan(setup(model, "H100"))) == {}


def test_a_dense_model_may_run_through_transformers_and_that_is_said() -> None:
    answer = plan(setup("Qwen3-8B", "H100", "0.8.3"))
    assert answer.starts
    assert [values["first"] for code, values in answer.notes if code == "perhaps-old-version"] == ["0.8.4"]


def test_a_build_of_a_release_counts_as_the_release() -> None:
    assert refused(plan(setup("gpt-oss-20b", "H100", "0.10.1+gptoss"))) == {}


def test_methods_state_releases_in_order() -> None:
    for method in KNOWLEDGE.methods:
        releases = [Version(v) for v in method.needs]
        assert releases == sorted(releases), method.name
        assert needed(method, Version("0.0.1")) is None


def test_a_card_that_is_only_a_size_is_not_judged() -> None:
    from msgspec import structs

    assert lacking(structs.replace(setup("Qwen3-8B-FP8", "V100 32GB"), gpu=None)) is None
