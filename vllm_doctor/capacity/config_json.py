"""A model's shape from a Hugging Face `config.json`, as a file's text or pasted. Multi-modal configs keep the language model in
`text_config`, `llm_config` or `language_config`; each family's own spelling of the same number is listed below."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import structs

from ..ruleset.schema import Model
from .weights import parameters

SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "model_dim"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "hidden_dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "v_head_dim": ("v_head_dim",),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "seq_length", "n_positions", "max_seq_len", "max_sequence_length", "max_target_positions"),
    "sliding_window": ("sliding_window", "attention_chunk_size"),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token", "moe_top_k"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size", "intermediate_size_mlp"),
    "first_dense_layers": ("first_k_dense_replace",),
}
SLIDING, LINEAR = ("sliding_attention", "chunked_attention", "local"), ("linear_attention", "mamba", "recurrent", "kda")


_WHOLE = {name for names in SPELLINGS.values() for name in names}


class ConfigInvalid(ValueError):
    """The text is no config.json of a language model; the message says what is missing."""


def model_from_config(text: str, name: str = "config.json") -> Model:
    """The shape that a config.json states. Raises ConfigInvalid."""
    try:
        document = json.loads(text.lstrip("\ufeff"))  # Windows editors begin a file with a byte-order mark
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigInvalid("not a JSON object")
    inner = next((document[k] for k in ("text_config", "llm_config", "language_config", "thinker_config") if isinstance(document.get(k), dict)), None)
    if isinstance(inner, dict) and isinstance(inner.get("text_config"), dict):
        inner = inner["text_config"]
    config: dict[str, Any] = {**document, **inner} if inner else document
    found = {field: value for field, names in SPELLINGS.items() if (value := _number(config, names)) is not None}
    missing = [f for f in ("num_hidden_layers", "hidden_size", "num_attention_heads") if not found.get(f)]
    if missing:
        raise ConfigInvalid(f"it lacks {', '.join(missing)}: is it the config.json of a language model?")
    heads, hidden = found["num_attention_heads"], found["hidden_size"]
    if config.get("multi_query") is True and "num_key_value_heads" not in found:
        found["num_key_value_heads"] = 1
    found.setdefault("num_key_value_heads", heads)
    found.setdefault("head_dim", hidden // heads)
    if not found.get("kv_lora_rank"):
        found.pop("qk_rope_head_dim", None)
    shared = found.get("shared_expert_intermediate_size")
    if shared and not found.get("shared_experts"):
        found["shared_experts"] = 1
    architectures = document.get("architectures") or config.get("architectures") or [""]
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    model = msgspec.convert({**found} | {"name": "", "source": "", "confidence": ""}, Model)
    model = structs.replace(
        model,
        name=str(document.get("_name_or_path") or name) or name,
        source="config.json as given",
        confidence="config",
        kind=_kind(document, config, found),
        architecture=architecture,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", document.get("tie_word_embeddings", False))),
        checkpoint_dtype=quantisation_of(document, config),
        vision_params_m=_vision(document),
    )
    model = _layers(model, config)
    return structs.replace(model, total_params_b=round(parameters(model).total / 1e9, 4))


def quantisation_of(document: dict[str, Any], config: dict[str, Any]) -> str:
    """What `quantization_config` says, in a form that `weights.quant_of` reads; else the type of the checkpoint."""
    quant = document.get("quantization_config") or config.get("quantization_config") or config.get("compression_config")
    if isinstance(quant, dict):
        method = str(quant.get("quant_method") or quant.get("quant_algo") or "")
        bits = quant.get("bits") or quant.get("w_bit")
        if method == "bitsandbytes":
            return "int8" if quant.get("load_in_8bit") else "bitsandbytes"
        if method == "compressed-tensors":
            return _compressed(quant)
        if method == "modelopt":
            return "nvfp4" if "FP4" in str(quant.get("quant_algo")) else "fp8"
        if method in ("gptq", "awq") and bits == 8:
            return "gptq-int8"
        return method
    kind = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(kind, kind)


def _compressed(quant: dict[str, Any]) -> str:
    groups = quant.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") if isinstance(first, dict) else None
    inputs = first.get("input_activations") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return "fp8" if "float" in str(quant.get("format")) else "w8a8"
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float":
        return "nvfp4" if bits == 4 else "fp8"
    if bits == 4:
        return "w4a16"
    return "w8a8" if inputs else "w8a16"


def _number(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(isinstance(v, int) for v in value):
            value = max(value)  # per-layer lists (OpenELM and the like): the largest is the safe side
        if isinstance(value, str) and re.fullmatch(r"\s*\d{1,12}(?:\.\d{1,12})?\s*", value, re.ASCII):
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
            if value != int(value) and name in _WHOLE:
                raise ConfigInvalid(f"{name} is {value:g}, which is no whole number")
            return int(value)
    return None


def _kind(document: dict[str, Any], config: dict[str, Any], found: dict[str, int]) -> Any:
    if config.get("is_encoder_decoder"):
        return "encoder-decoder"
    types = config.get("layer_types") or config.get("layers_block_type")
    if (isinstance(types, list) and any(t in LINEAR for t in types)) or config.get("linear_num_value_heads") or config.get("mamba_d_state"):
        return "hybrid"
    if found.get("kv_lora_rank"):
        return "mla"
    if any(isinstance(document.get(k), dict) for k in ("vision_config", "audio_config", "vision_tower_config")):
        return "vlm"
    return "moe" if found.get("num_experts", 0) > 1 else "dense"


def _vision(document: dict[str, Any]) -> float | None:
    """Millions of parameters of a vision tower: 12 × depth × width² (attention and a fourfold MLP)."""
    tower = document.get("vision_config")
    if not isinstance(tower, dict):
        return None
    depth = _number(tower, ("depth", "num_hidden_layers", "n_layers", "layers"))
    width = _number(tower, ("embed_dim", "width", "hidden_size"))
    return round(12 * depth * width * width / 1e6, 1) if depth and width else None


def _layers(model: Model, config: dict[str, Any]) -> Model:
    """How many layers attend fully, how many through a window, how many keep a state instead."""
    total = model.num_hidden_layers or 0
    types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(types, list) and len(types) >= total:
        sliding, linear = sum(t in SLIDING for t in types[:total]), sum(t in LINEAR for t in types[:total])
    else:
        sliding = linear = 0
        pattern = config.get("sliding_window_pattern")
        interval = config.get("full_attention_interval") or config.get("attn_layer_period")
        if isinstance(pattern, int) and pattern > 1 and model.sliding_window:
            sliding = total - total // pattern
        elif isinstance(interval, int) and interval > 1:
            linear = total - total // interval
        elif model.architecture.startswith("Gemma2") and model.sliding_window:
            sliding = total - total // 2
        elif model.sliding_window and config.get("use_sliding_window") is not False and not model.architecture.startswith(("Qwen2", "Qwen3")):
            sliding = total
    conv, ssm = _states(config, linear)
    return structs.replace(
        model,
        attn_layers_full=total - sliding - linear,
        attn_layers_sliding=sliding,
        linear_layers=linear or None,
        sliding_window=model.sliding_window if sliding else None,
        conv_state_bytes_per_seq=conv,
        ssm_state_bytes_per_seq=ssm,
        linear_type=("gdn" if config.get("linear_num_value_heads") else "mamba2") if linear else "",
    )


def _states(config: dict[str, Any], layers: int) -> tuple[int | None, int | None]:
    """Bytes per request over all linear layers at 16 bits: convolution and recurrent state."""
    if not layers:
        return None, None
    keys, values, k_dim, v_dim = (_number(config, (f"linear_{k}",)) for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    kernel = _number(config, ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel")) or 4
    if keys and values and k_dim and v_dim:
        return (2 * keys * k_dim + values * v_dim) * (kernel - 1) * 2 * layers, values * k_dim * v_dim * 2 * layers
    state, expand = _number(config, ("mamba_d_state", "ssm_state_size")), _number(config, ("mamba_expand", "expand")) or 2
    hidden = _number(config, ("hidden_size",))
    if state and hidden:
        return expand * hidden * (kernel - 1) * 2 * layers, expand * hidden * state * 2 * layers
    return None, None
