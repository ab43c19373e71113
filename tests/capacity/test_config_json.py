"""A config.json as it is found: of every family, with a byte-order mark, inside a forum post, with numbers in quotes, with nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_doctor.capacity.config_json import ConfigInvalid, model_from_config
from vllm_doctor.capacity.kv import kv_bytes_per_token
from vllm_doctor.capacity.weights import quant_of

CONFIG: dict[str, object] = {
    "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip
REAL = [json.loads(line) for line in (Path(__file__).parent / "configs.jsonl").read_text(encoding="utf-8").splitlines()]
"""The keys that matter of configurations as published, with the published number of parameters."""
BY_NAME = {row["name"]: row for row in REAL}


@pytest.mark.parametrize("row", REAL, ids=lambda row: row["name"])
def test_the_parameters_are_those_published(row: dict[str, Any]) -> None:
    model = model_from_config(json.dumps(row["config"]), row["name"])
    assert model.total_params_b == pytest.approx(row["published_params_b"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "full", "sliding", "linear", "bytes_per_token"),
    [
        ("meta-llama/Llama-2-7b-hf", 32, 0, 0, 524288),
        ("google/gemma-3-4b-it", 5, 29, 0, 34 * 4 * 256 * 2 * 2),
        ("google/gemma-4-26B-A4B", 5, 25, 0, 20480 + 25 * 8192),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 12, 36, 0, 196608),
        ("XiaomiMiMo/MiMo-V2-Flash", 9, 39, 0, 9 * 4 * 320 * 2 + 199680),
        ("openai/gpt-oss-20b", 12, 12, 0, 24 * 8 * 64 * 2 * 2),
        ("Qwen/Qwen3.5-27B", 16, 0, 48, 16 * 4 * 256 * 2 * 2),
        ("ai21labs/AI21-Jamba-1.5-Mini", 4, 0, 28, 4 * 8 * 128 * 2 * 2),
        ("ibm-ai-platform/Bamba-9B-v2", 3, 0, 29, 3 * 8 * 128 * 2 * 2),
        ("ibm-granite/granite-4.0-h-tiny", 4, 0, 36, 4 * 4 * 128 * 2 * 2),
        ("tiiuae/Falcon-H1-7B-Instruct", 44, 0, 44, 44 * 1024),
        ("nvidia/Nemotron-H-56B-Base-8K", 10, 0, 54, 10 * 8 * 128 * 2 * 2),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 6, 0, 23, 6 * 2 * 128 * 2 * 2),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49, 0, 0, 49 * 4096),
        ("moonshotai/Kimi-K3", 24, 0, 69, 24 * 576 * 2),
        ("MiniMaxAI/MiniMax-Text-01", 10, 0, 70, 10 * 4096),
        ("deepseek-ai/DeepSeek-V3", 61, 0, 0, 61 * 576 * 2),
        ("openbmb/MiniCPM3-4B", 62, 0, 0, 952320),
        ("tiiuae/falcon-7b", 32, 0, 0, 32 * 64 * 2 * 2),
    ],
)
def test_the_layers_that_keep_something_are_told_apart(name: str, full: int, sliding: int, linear: int, bytes_per_token: int) -> None:
    model = model_from_config(json.dumps(BY_NAME[name]["config"]))
    assert (model.attn_layers_full, model.attn_layers_sliding, model.linear_layers or 0) == (full, sliding, linear)
    assert kv_bytes_per_token(model) == bytes_per_token


@pytest.mark.parametrize(
    ("name", "conv", "ssm"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 847872, 48234496),
        ("ai21labs/AI21-Jamba-1.5-Mini", 1376256, 7340032),
        ("ibm-granite/granite-4.0-h-tiny", 718848, 28311552),
        ("Qwen/Qwen3.5-27B", 2949120, 150994944),
        ("moonshotai/Kimi-K3", 15261696, 434110464),
    ],
)
def test_states_are_counted_per_request(name: str, conv: int, ssm: int) -> None:
    model = model_from_config(json.dumps(BY_NAME[name]["config"]))
    assert (model.conv_state_bytes_per_seq, model.ssm_state_bytes_per_seq) == (conv, ssm)


@pytest.mark.parametrize(
    ("quantization_config", "method"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "gptq-int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {}}}, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4"}}}, "modelopt_fp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}}, "gptq"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {}}}},
            "gptq-int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}},
            },
            "w8a8",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}}, "fp8"),
        ({"quant_method": "auto-round", "bits": 4}, "gptq"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "gptq"),
        ({"quant_method": "aqlm", "nbits_per_codebook": 16}, "aqlm"),
        ({"quant_method": "gguf"}, "gguf"),
    ],
)
def test_each_quantisation_is_read(quantization_config: dict[str, object], method: str) -> None:
    model = model_from_config(json.dumps(CONFIG | {"quantization_config": quantization_config}))
    found = quant_of(model.checkpoint_dtype)
    assert found is not None
    assert found[0] == method


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({}, 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}, 32768),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 32768),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 65536),
        ({"seq_length": 8192}, 8192),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 32768),
    ],
)
def test_the_limit_is_what_vllm_derives(more: dict[str, object], limit: int) -> None:
    assert model_from_config(json.dumps(CONFIG | more)).max_position_embeddings == limit


def test_a_config_may_be_nested_twice() -> None:
    plain = model_from_config(json.dumps(CONFIG))
    nested = model_from_config(json.dumps({"architectures": ["Qwen2ForCausalLM"], "thinker_config": {"text_config": CONFIG}}))
    assert (nested.num_key_value_heads, nested.hidden_size, nested.kind) == (plain.num_key_value_heads, plain.hidden_size, "vlm")


def test_text_around_a_pasted_config_changes_nothing() -> None:
    post = "Here is my config:\n```json\n" + json.dumps(CONFIG, indent=2) + "\n```\nwhy OOM? {help}"
    assert model_from_config(post) == model_from_config(json.dumps(CONFIG))


def test_a_byte_order_mark_and_numbers_as_strings_change_nothing() -> None:
    quoted = {k: str(v) if isinstance(v, int) else v for k, v in CONFIG.items()}
    assert model_from_config("\ufeff" + json.dumps(quoted)) == model_from_config(json.dumps(CONFIG))


@pytest.mark.parametrize("value", [28.5, "28.5"])
def test_a_fraction_of_a_head_is_refused(value: object) -> None:
    with pytest.raises(ConfigInvalid, match=r"num_attention_heads is 28\.5, which is no whole number"):
        model_from_config(json.dumps(CONFIG | {"num_attention_heads": value}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON object"),
        ("no braces", "not a JSON object"),
        ('{"num_hidden_layers": 28,', "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"hidden_size": NaN, "num_hidden_layers": 2, "num_attention_heads": 2}', "it lacks hidden_size"),
        ('{"hidden_size": 1e300, "num_hidden_layers": 2, "num_attention_heads": 2}', "it lacks hidden_size"),
        ('{"hidden_size": 64, "num_hidden_layers": 900000, "num_attention_heads": 2}', "none that a model has"),
        ('{"hidden_size": null, "num_hidden_layers": [], "num_attention_heads": {}}', "it lacks num_hidden_layers, hidden_size, num_attention_heads"),
    ],
)
def test_what_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        model_from_config(text)
