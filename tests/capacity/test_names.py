"""Models and cards under the names people use. Ambiguity is said, never guessed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.weights import parameters, quant_of
from vllm_doctor.ruleset.load import load_knowledge
from vllm_doctor.ruleset.schema import Gpu, Model

KNOWLEDGE = load_knowledge()


@pytest.mark.parametrize(
    ("written", "name", "quantization"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", None),
        ("/data/models/Qwen2.5-7B-Instruct/", "Qwen/Qwen2.5-7B-Instruct", None),
        ("qwen2.5_7b instruct", "Qwen/Qwen2.5-7B-Instruct", None),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct", "AWQ"),
        ("Qwen1.5-14B-Chat-GPTQ-Int4", "Qwen/Qwen1.5-14B-Chat", "GPTQ Int4"),
        ("Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen/Qwen3-30B-A3B-Instruct-2507", "FP8"),
        ("llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", None),
        ("Meta-Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", None),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct", "FP8"),
        (
            "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f249a16976",
            "meta-llama/Llama-3.1-8B-Instruct",
            None,
        ),
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", "mistralai/Mistral-7B-Instruct-v0.2", "GPTQ"),
        ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "Qwen/Qwen3-14B", "unsloth bnb 4bit"),
        ("bartowski/Llama-3.3-70B-Instruct-GGUF", "meta-llama/Llama-3.3-70B-Instruct", "GGUF"),
        ("C:\\models\\Qwen2.5-7B-Instruct-Q4_K_M.gguf", "Qwen/Qwen2.5-7B-Instruct", "Q4_K_M"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1", None),
        ("DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", None),
        ("openai/gpt-oss-20b", "openai/gpt-oss-20b", None),
        ("/srv/checkpoints/my-qwen2.5-7b-lora-merged/checkpoint-1200", "Qwen/Qwen2.5-7B-Instruct", None),
    ],
)
def test_a_model_is_found_under_the_names_people_use(written: str, name: str, quantization: str | None) -> None:
    found = find_model(written, KNOWLEDGE)
    assert (found.model.name if found.model else found.candidates, found.quantization) == (name, quantization)


WRITTEN = [tuple(row) for row in csv.reader((Path(__file__).parent / "names.csv").open(encoding="utf-8"))][1:]
"""Names as they stand in launch commands, Ollama tags, file names and forum posts: the model (`several` is asked back, `none` is not
known), and the method of quantisation that the name states."""


@pytest.mark.parametrize(("written", "model", "method"), WRITTEN, ids=[row[0] for row in WRITTEN])
def test_a_name_from_the_wild_means_one_model_or_is_asked_back(written: str, model: str, method: str) -> None:
    found = find_model(written, KNOWLEDGE)
    quantisation = quant_of(found.quantization)
    assert (found.model.name if found.model else "several" if found.candidates else "none") == model
    assert (quantisation[0] if quantisation else "") == method


def test_a_size_in_the_name_is_never_contradicted() -> None:
    """DeepSeek-R1 is in `deepseek-r1:7b`, but no model of 671 thousand million parameters is meant."""
    assert find_model("someone/deepseek-r1-9b-finetune", KNOWLEDGE).model is None


@pytest.mark.parametrize("written", ["llama", "Qwen3", "tiny", "", "/", "./models/mid", "my-finetune"])
def test_a_name_that_says_too_little_finds_nothing(written: str) -> None:
    assert find_model(written, KNOWLEDGE).model is None


@pytest.mark.parametrize(
    ("written", "name", "gib"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB", 79.175),
        ("A100 40G", "A100 SXM4 40GB", 39.47),
        ("RTX 4090", "RTX 4090 24GB", 23.585),
        ("4090", "RTX 4090 24GB", 23.585),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop 16GB", 15.8),
        ("4x H100 80GB HBM3", "H100 SXM5 80GB", 79.145),
        ("Tesla T4", "T4 16GB", 14.655),
        ("T4 14.56GiB", "T4 16GB", 14.56),
        ("RX 7900 XTX", "Radeon RX 7900 XTX 24GB", 23.98),
        ("MI300X", "MI300X 192GB", 191.715),
        ("2x4090", "RTX 4090 24GB", 23.585),
        ("双卡3090Ti", "RTX 3090 24GB", 23.63),
        ("4090魔改48G", "RTX 4090 48GB (modified)", 47.68),
        ("2080ti 22g", "RTX 2080 Ti 22GB (modified)", 21.585),
        ("RTX4070Ti Super", "RTX 4070 Ti SUPER 16GB", 15.78),
        ("3060 Ti", "RTX 3060 Ti 8GB", 7.7),
        ("Quadro RTX 6000", "Quadro RTX 6000 24GB", 23.6),
        ("RTX 4500 Ada", "RTX 4500 Ada 24GB", 23.5),
        ("H20 141G", "H20 141GB", 139.75),
        ("H100 PCIe", "H100 PCIe 80GB", 79.15),
        ("昇腾910B", "Ascend 910B 64GB", 61.13),
        ("Strix Halo", "Radeon 8060S (Strix Halo) unified", 126.08),
    ],
)
def test_a_card_is_found_with_what_cuda_reports(written: str, name: str, gib: float) -> None:
    found = find_gpu(written, KNOWLEDGE)
    assert (found.gpu.name if found.gpu else None, found.total_gib) == (name, gib)


@pytest.mark.parametrize(("written", "gib"), [("24", 24.0), ("23.6GiB", 23.6), ("24GB", 23.5), ("80 GB", 79.175)])
def test_a_size_is_taken_as_reported_or_as_sold(written: str, gib: float) -> None:
    found = find_gpu(written, KNOWLEDGE)
    assert (found.gpu, found.total_gib) == (None, gib)


def test_a_card_of_several_sizes_is_not_guessed() -> None:
    found = find_gpu("V100", KNOWLEDGE)
    assert (found.gpu, found.total_gib, found.candidates) == (None, None, ("V100 SXM2/PCIe 16GB", "V100 SXM2/PCIe 32GB"))


def test_a_size_that_no_such_card_has_counts_for_itself() -> None:
    """A 3090 of 48 GB is none that is known: its size is taken, and nothing else is said of it."""
    found = find_gpu("RTX 3090 48GB", KNOWLEDGE)
    assert found.gpu is None
    assert found.total_gib == pytest.approx(47, abs=3)


@pytest.mark.parametrize("gpu", KNOWLEDGE.gpus, ids=lambda g: g.name)
def test_every_card_is_found_by_its_names(gpu: Gpu) -> None:
    for name in (gpu.name, *gpu.aliases):
        found = find_gpu(name, KNOWLEDGE)
        assert gpu.name in (found.gpu.name if found.gpu else "", *found.candidates), name


@pytest.mark.parametrize("model", KNOWLEDGE.models, ids=lambda m: m.name)
def test_every_model_is_found_by_its_names(model: Model) -> None:
    for name in (model.name, *model.aliases):
        found = find_model(name, KNOWLEDGE)
        assert model.name in (found.model.name if found.model else "", *found.candidates), name


@pytest.mark.parametrize("written", ["", "fast card", "RTX 9999", "GPU"])
def test_an_unknown_card_is_not_guessed(written: str) -> None:
    assert find_gpu(written, KNOWLEDGE) == (find_gpu("no such thing", KNOWLEDGE))


@pytest.mark.parametrize("model", [m for m in KNOWLEDGE.models if m.kind in ("dense", "moe", "mla")], ids=lambda m: m.name)
def test_the_parameters_of_a_shape_are_its_total(model: object) -> None:
    """Parts are filled up to the stated total, and no part is negative: a wrong shape shows here."""
    counts = parameters(model)  # type: ignore[arg-type]
    assert min(counts.embedding, counts.head, counts.attention, counts.mlp, counts.experts, counts.replicated) >= 0
    total = model.total_params_b  # type: ignore[attr-defined]
    assert total is None or counts.total == pytest.approx(total * 1e9, rel=0.02)


def test_every_model_and_card_says_where_it_is_from() -> None:
    assert [e.name for e in (*KNOWLEDGE.models, *KNOWLEDGE.gpus) if not e.source] == []
    assert [m.name for m in KNOWLEDGE.models if not m.confidence] == []
    assert [g.name for g in KNOWLEDGE.gpus if not g.visible_gib or g.visible_gib[-1] > g.marketed_gb] == []


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B-Thinking-2507", "Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B-Instruct-2507"])
def test_models_of_july_2025_have_their_own_limit(name: str) -> None:
    found = find_model(name, KNOWLEDGE).model
    assert found is not None
    assert found.max_position_embeddings == 262144


@pytest.mark.parametrize("written", ["RTX 4090,A100 80GB", "H100,A100 80GB", "4090,3090", "H100 + T4"])
def test_cards_that_differ_are_not_taken_for_one(written: str) -> None:
    found = find_gpu(written, KNOWLEDGE)
    assert (found.gpu, found.total_gib) == (None, None)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", "fbgemm_fp8"),
        ("/models/Llama-3.1-405B-Instruct-FP8", "fbgemm_fp8"),
        ("Llama-3.1-405B-Instruct-FP8", "fbgemm_fp8"),
        ("neuralmagic/Meta-Llama-3.1-405B-Instruct-FP8", "FP8"),
    ],
)
def test_metas_own_fp8_is_told_from_others(name: str, recipe: str) -> None:
    assert find_model(name, KNOWLEDGE).quantization == recipe
