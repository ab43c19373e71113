"""A model's shape from a Hugging Face `config.json`, as a file's text or pasted. Multi-modal configs keep the language model in
`text_config`, `llm_config` or `language_config`; each family's own spelling of the same number is listed below."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import structs

from ..ruleset.schema import Model
from .config_layers import Layers, layers_of, number_in, plain, total_of, towers, with_layers
from .weights import quant_of

SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "hidden_dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads", "encoder_attention_heads"),
    "num_key_value_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "v_head_dim": ("v_head_dim",),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "hidden_size_per_layer_input": ("hidden_size_per_layer_input",),
    "max_position_embeddings": ("max_position_embeddings", "seq_length", "n_positions", "max_seq_len", "max_sequence_length", "max_target_positions"),
    "sliding_window": ("sliding_window", "attention_chunk_size"),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
    "experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token", "moe_top_k", "moe_k", "top_k_experts"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim",
    ),
    "first_dense_layers": ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
}  # fmt: skip
LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length", "max_seq_length", "seq_len",
    "max_target_positions",
)  # fmt: skip
"""vLLM takes the smallest of those that are there (vllm/config.py, _get_and_verify_max_len)."""
NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model")
DEFAULTS: dict[str, dict[str, int | bool]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32000, "max_position_embeddings": 131072,
    },
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "max_position_embeddings": 131072,
        "sliding_window": 4096, "sliding_window_pattern": 6,
    },
    "gemma2": {"vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192},
}  # fmt: skip
"""What a nested `text_config` leaves out, by its model_type, as the configuration classes of transformers fill it in. LLaVA and Gemma 3 do."""
TIED = ("Gemma", "Cohere", "GPT2", "GPTBigCode", "Bloom", "OPT", "Falcon", "MPT", "Starcoder2", "Whisper")
"""Architectures whose head is the embedding where config.json does not say."""
_WHOLE = {name for names in SPELLINGS.values() for name in names}


class ConfigInvalid(ValueError):
    """The text is no config.json of a language model; the message says what is missing."""


def model_from_config(text: str, name: str = "config.json") -> Model:
    """The shape that a config.json states; it may stand inside other text, as in a forum post. Raises ConfigInvalid."""
    document = _document(text)
    config = _flattened(document)
    architectures = document.get("architectures") or config.get("architectures") or [""]
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    config = plain(config, architecture)
    found = {field: value for field, names in SPELLINGS.items() if (value := number(config, names)) is not None}
    missing = [f for f in ("num_hidden_layers", "hidden_size", "num_attention_heads") if not found.get(f)]
    if missing:
        raise ConfigInvalid(f"it lacks {', '.join(missing)}: is it the config.json of a language model?")
    heads, hidden = found["num_attention_heads"], found["hidden_size"]
    if max(found["num_hidden_layers"], heads) > MOST or not heads <= hidden <= MOST * MOST:
        raise ConfigInvalid("its numbers of layers, heads or its width are none that a model has")
    found.setdefault("num_key_value_heads", heads)
    found.setdefault("head_dim", hidden // heads)
    length = _length(config)
    if length:
        found["max_position_embeddings"] = length
    if found.get("kv_lora_rank"):
        found["head_dim"] = found.get("qk_nope_head_dim", 0) + found.get("qk_rope_head_dim", 0) or found["head_dim"]
    else:
        found.pop("qk_rope_head_dim", None)
    if found.get("num_experts"):
        found.setdefault("moe_intermediate_size", found.get("intermediate_size", 0))
    if found.get("shared_expert_intermediate_size") and not found.get("shared_experts"):
        found["shared_experts"] = 1
    tied = config.get("tie_word_embeddings", document.get("tie_word_embeddings", architecture.startswith(TIED)))
    model = msgspec.convert({**found} | {"name": "", "source": "", "confidence": ""}, Model)
    model = structs.replace(
        model,
        name=str(document.get("_name_or_path") or name) or name,
        source="config.json as given",
        confidence="config",
        architecture=architecture,
        tie_word_embeddings=bool(tied),
        checkpoint_dtype=quantisation_of(document, config),
        vision_params_m=towers(document, hidden),
    )
    if config.get("index_head_dim") and found.get("kv_lora_rank"):
        own = config.get("indexer_types")  # GLM 5.2: most layers share the index of another
        count = sum(t == "full" for t in own) if isinstance(own, list) and own else found["num_hidden_layers"]
        model = structs.replace(model, indexer_layers=count)
    layers = layers_of(config, model)
    model = with_layers(structs.replace(model, kind=_kind(document, config, found, layers)), layers, config)
    return structs.replace(model, total_params_b=round(total_of(model, layers, config) / 1e9, 4))


def number(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these keys that holds a positive number. Raises ConfigInvalid for a fraction of a layer, a head or the like."""
    for name in names:
        value = number_in(config.get(name))
        if value is not None:
            if value != int(value) and name in _WHOLE:
                raise ConfigInvalid(f"{name} is {value:g}, which is no whole number")
            return int(value)
    return None


MOST = 4096
"""Layers and heads that no model comes near."""


def _document(text: str) -> dict[str, Any]:
    """The first JSON object in a text."""
    start = text.find("{")
    if start < 0:
        raise ConfigInvalid("not a JSON object")
    try:
        document, _end = json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigInvalid("not a JSON object")
    return document


def _flattened(document: dict[str, Any]) -> dict[str, Any]:
    """The keys of the language model: those of nested configurations before the outer ones."""
    config, inner = document, document
    for _level in range(3):
        nested = next((inner[k] for k in NESTED if isinstance(inner.get(k), dict)), None)
        if nested is None:
            break
        inner = nested
        config = {**config, **DEFAULTS.get(str(inner.get("model_type")), {}), **{k: v for k, v in inner.items() if v is not None}}
    return config


def _length(config: dict[str, Any]) -> int | None:
    """Tokens that the model takes: the smallest of the stated limits, times the factor of its rope scaling where vLLM multiplies."""
    stated = [n for name in LENGTHS if (n := number(config, (name,)))]
    if not stated:
        return None
    length = min(stated)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict) or str(config.get("model_type")).startswith("gemma3"):
        return length
    kind = str(scaling.get("rope_type") or scaling.get("type"))
    factor = scaling.get("factor")
    if kind in ("su", "longrope", "llama3", "default", "None") or isinstance(factor, bool) or not isinstance(factor, int | float):
        return length
    if kind == "yarn":
        original = number(scaling, ("original_max_position_embeddings",))
        length = original or length
        factor = factor if original else 1
    return int(length * factor) if 0 < factor < 1e4 else length


def quantisation_of(document: dict[str, Any], config: dict[str, Any]) -> str:
    """What `quantization_config` says, in a form that `weights.quant_of` reads; else the type of the checkpoint."""
    quant = document.get("quantization_config") or config.get("quantization_config") or config.get("compression_config")
    if isinstance(quant, dict) and (method := _method(quant, str(config.get("expert_dtype")))):
        return method
    kind = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(kind, kind)


def _method(quant: dict[str, Any], expert_dtype: str) -> str:
    method, algorithm = str(quant.get("quant_method") or ""), str(quant.get("quant_algo") or "")
    bits = next((quant[k] for k in ("bits", "w_bit", "weight_bits", "nbits") if isinstance(quant.get(k), int)), None)
    if expert_dtype == "fp4":
        return "fp4 experts + fp8"
    if "FP4" in algorithm or quant.get("moe_quant_algo") == "NVFP4":
        return "modelopt_fp4"
    if method == "compressed-tensors" or (quant.get("config_groups") and not algorithm):
        return _compressed(quant)
    if method == "modelopt" or algorithm:
        text = str(quant.get("quantized_layers"))
        return "modelopt_fp4" if "FP4" in text else "w4a16" if "W4A16" in algorithm or "AWQ" in algorithm else "fp8"
    if method == "bitsandbytes":
        return "int8" if quant.get("load_in_8bit") else "bitsandbytes"
    if method == "quark":
        return "mxfp4" if "fp4" in str(quant.get("global_quant_config")) else "fp8" if "fp8" in str(quant.get("global_quant_config")) else "int8"
    if method == "torchao":
        return "w4a16" if "int4" in str(quant.get("quant_type")).lower() else "fp8" if "float8" in str(quant.get("quant_type")).lower() else "int8"
    if method == "hqq" or quant_of(method) is None:
        return {4: "w4a16", 8: "w8a16"}.get(bits or 0, method)
    return "gptq-int8" if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "gptqmodel") and bits == 8 else method


def _compressed(quant: dict[str, Any]) -> str:
    groups = quant.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") if isinstance(first, dict) else None
    inputs = first.get("input_activations") if isinstance(first, dict) else None
    form = str(quant.get("format")) + str(first.get("format") if isinstance(first, dict) else "")
    if "mxfp4" in form:
        return "mxfp4"
    if not isinstance(weights, dict):
        return "fp8" if "float" in form else "w8a8"
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float":
        return "nvfp4" if bits == 4 else "fp8"
    if bits == 4:
        return "w4a16"
    return "w8a8" if inputs else "w8a16"


def _kind(document: dict[str, Any], config: dict[str, Any], found: dict[str, int], layers: Layers) -> Any:
    if config.get("is_encoder_decoder"):
        return "encoder-decoder"
    if layers.linear:
        return "hybrid"
    if (found.get("kv_lora_rank") and "MiniCPM3" not in str(document.get("architectures"))) or "DeepseekV4" in str(document.get("architectures")):
        return "mla"
    if any(isinstance(document.get(k), dict) for k in ("vision_config", "audio_config", "vision_tower_config", "thinker_config")):
        return "vlm"
    return "moe" if found.get("num_experts", 0) > 1 else "dense"
