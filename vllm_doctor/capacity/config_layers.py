"""How a config.json lays out a model's layers: which attend fully, through a window or keep a state, which have an MLP or experts; and what
that makes in parameters. Families spell it in their own ways: patterns, lists of types, intervals, lists of indices."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, structs

from ..ruleset.schema import Model
from .weights import linear_layer_parameters, parameters

SLIDING = frozenset(("sliding_attention", "chunked_attention", "local", "local_attention", "swa"))
LINEAR = frozenset(("linear_attention", "mamba", "mamba2", "recurrent", "kda", "conv", "ssm"))
NEITHER = frozenset(("mlp", "moe", "ffn", "none"))
PATTERN = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
"""The letters of `hybrid_override_pattern` (Nemotron-H)."""
KINDS = ("layer_types", "layers_block_type")


class Layers(Struct, frozen=True):
    """Counts of layers. A layer of a parallel hybrid (Falcon-H1) is both `full` and `linear`. `shared_*`: of those, how many use another
    layer's cache. `dense` have a plain MLP, `moe` experts."""

    total: int
    full: int
    sliding: int
    linear: int
    dense: int
    moe: int
    shared_full: int = 0
    shared_sliding: int = 0


def number_in(value: Any) -> float | None:
    """A positive number below a thousand million, also in quotes; of a list of whole numbers the largest (OpenELM: the safe side)."""
    if isinstance(value, list) and value and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        value = max(value)
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,12}(?:\.\d{1,12})?\s*", value, re.ASCII):
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
        return float(value)
    return None


def _count(config: dict[str, Any], *names: str) -> int:
    for name in names:
        value = number_in(config.get(name))
        if value is not None and value == int(value):
            return int(value)
    return 0


def plain(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The config with each family's own way of saying something turned into the usual one."""
    config = dict(config)
    hidden, heads = _count(config, "hidden_size", "n_embd", "n_embed", "d_model"), _count(config, "num_attention_heads", "n_head", "n_heads")
    for key, names in (("attn_config", {"kv_n_heads": "num_key_value_heads"}), ("ffn_config", {
        "ffn_hidden_size": "intermediate_size", "moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok",
    })):  # fmt: skip
        inner = config.get(key)
        if isinstance(inner, dict):  # DBRX, MPT
            config.update({own: inner[name] for name, own in names.items() if number_in(inner.get(name))})
    if architecture.startswith("QWenLM"):
        config["intermediate_size"] = _count(config, "intermediate_size") // 2  # both halves of the gated MLP
    if architecture.startswith(("Falcon", "RWForCausalLM")) and "mamba_d_ssm" not in config:
        grouped = config.get("new_decoder_architecture")
        config["num_key_value_heads"] = _count(config, "num_kv_heads", "n_head_kv") or heads if grouped else 1 if config.get("multi_query") else heads
    elif config.get("multi_query") is True and not _count(config, "num_key_value_heads"):
        config["num_key_value_heads"] = 1
    if config.get("multi_query_attention") is False:
        config["num_key_value_heads"] = heads
    if architecture.startswith(("GPT", "Bloom", "Falcon", "MPT", "Starcoder")) and not _count(
        config, "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"
    ):
        config["intermediate_size"] = 4 * hidden
    if _count(config, "intermediate_size_mlp"):  # Llama 4: `intermediate_size` is an expert's, also of the shared one
        config.update(
            moe_intermediate_size=config.get("intermediate_size"), shared_expert_intermediate_size=config.get("intermediate_size"),
            intermediate_size=config["intermediate_size_mlp"],
        )  # fmt: skip
    if _count(config, "dense_intermediate_size"):
        config["moe_intermediate_size"] = config.get("moe_intermediate_size") or config.get("intermediate_size")
        config["intermediate_size"] = config["dense_intermediate_size"]
    blocks = config.get("block_configs")
    if isinstance(blocks, list) and blocks:
        config.update(_of_blocks([b for b in blocks if isinstance(b, dict)], hidden, heads))
    kinds = _kinds(config)
    if kinds and not _count(config, "num_hidden_layers", "num_layers", "n_layer"):
        config["num_hidden_layers"] = len(kinds)
    return config


def _of_blocks(blocks: list[dict[str, Any]], hidden: int, heads: int) -> dict[str, Any]:
    """Nemotron models made by a search: each layer has its own attention, or none, and its own width."""
    attention = [b.get("attention") for b in blocks]
    groups = [g for a in attention if isinstance(a, dict) and isinstance(g := a.get("n_heads_in_group"), int) and g > 0]
    widths = [f.get("ffn_mult") for b in blocks if isinstance(f := b.get("ffn"), dict)]
    wide = [-(-int(2 * m * hidden / 3) // 256) * 256 for m in widths if isinstance(m, int | float) and not isinstance(m, bool) and 0 < m < 100]
    if not groups or not any(wide):
        return {}
    kinds = ["full_attention"] * len(groups) + ["none"] * (len(blocks) - len(groups))
    heads_per_group = max(heads // min(groups), 1)
    return {"num_key_value_heads": heads_per_group, "intermediate_size": max(wide), "layer_types": kinds, "mlp_layers": sum(wide) / max(wide)}


def _kinds(config: dict[str, Any]) -> list[str]:
    """The type of every layer where the config lists them."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [PATTERN.get(c, "full_attention") for c in pattern if c != "|"]
    for key in KINDS:
        types = config.get(key)
        if isinstance(types, list) and types and all(isinstance(t, str) for t in types):
            return types
    linear = config.get("attn_type_list")
    if isinstance(linear, list) and linear:  # MiniMax: 1 is softmax attention
        return ["full_attention" if t == 1 else "linear_attention" for t in linear]
    windowed = config.get("hybrid_layer_pattern")
    if isinstance(windowed, list) and windowed:  # MiMo: 1 is a window
        return ["sliding_attention" if t == 1 else "full_attention" for t in windowed]
    return []


def _listed(config: dict[str, Any], total: int) -> list[str]:
    """The type of every layer, from whatever says it; empty where nothing does."""
    kinds = _kinds(config)
    if len(kinds) >= total:
        return kinds[:total]
    own = config.get("linear_attn_config")
    if isinstance(own, dict) and isinstance(own.get("kda_layers"), list):  # Kimi Linear counts from 1
        return ["kda" if i in own["kda_layers"] else "full_attention" for i in range(1, total + 1)]
    chosen = config.get("attn_layer_indices")
    if isinstance(chosen, list) and chosen:  # Bamba
        return ["full_attention" if i in chosen else "mamba" for i in range(total)]
    period, offset = _count(config, "attn_layer_period"), _count(config, "attn_layer_offset")
    if period > 1:  # Jamba
        return ["full_attention" if i % period == offset % period else "mamba" for i in range(total)]
    interval = _count(config, "full_attention_interval")
    if interval > 1:
        return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(total)]
    return []


def _windowed(config: dict[str, Any], model: Model, total: int) -> int:
    """Layers with a window where none is listed."""
    if not model.sliding_window or config.get("use_sliding_window") is False:
        return 0
    architecture = model.architecture
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):  # EXAONE 4: LLLG
        return sum(pattern[i % len(pattern)] == "L" for i in range(total))
    if isinstance(pattern, int) and pattern > 1:
        return total - total // pattern
    if _count(config, "attention_chunk_size") and "Llama4" in architecture:
        return total - total // 4
    if architecture.startswith("Gemma2"):
        return total - total // 2
    if architecture.startswith(("Qwen2", "Qwen3", "DeepseekV4", "Gemma3")):
        return 0
    return total


def layers_of(config: dict[str, Any], model: Model) -> Layers:
    """The layers of a config in the usual spelling (`plain`)."""
    total = model.num_hidden_layers or 0
    kinds = _listed(config, total)
    if not kinds:
        sliding = _windowed(config, model, total)
        kinds = ["sliding_attention"] * sliding + ["full_attention"] * (total - sliding)
    else:
        kinds = [k if k not in SLIDING or model.sliding_window else "full_attention" for k in kinds]
    sliding, linear, neither = (sum(k in names for k in kinds) for names in (SLIDING, LINEAR, NEITHER))
    full = total - sliding - linear - neither
    cached = kinds[: max(total - _count(config, "num_kv_shared_layers"), 0)]
    shared = kinds[len(cached) :]
    if _count(config, "mamba_d_ssm"):
        linear = full = total  # Falcon-H1: both in every layer
    separate = any(k in ("mlp", "moe") for k in kinds)  # Nemotron-H: a layer is one thing
    moe = kinds.count("moe") if separate else _expert_layers(config, model, total)
    dense = kinds.count("mlp") if separate else total - moe
    return Layers(
        total, full, sliding, linear, dense, moe, sum(k not in SLIDING | LINEAR | NEITHER for k in shared), sum(k in SLIDING for k in shared)
    )


def _expert_layers(config: dict[str, Any], model: Model, total: int) -> int:
    if (model.num_experts or 0) <= 1:
        return 0
    listed = config.get("moe_layer_freq")
    if isinstance(listed, list):
        return min(sum(bool(v) for v in listed), total)
    only = config.get("mlp_only_layers")
    without = len(only) if isinstance(only, list) else 0
    step = max(_count(config, "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval", "expert_layer_period", "moe_layer_freq"), 1)
    return max((total - (model.first_dense_layers or 0)) // step - without, 0)


def with_layers(model: Model, layers: Layers, config: dict[str, Any]) -> Model:
    """The model with its layers, states, and what their caches take where it does not follow from heads and head size."""
    state, conv, ssm = _states(config, layers.linear)
    linear_type = ""
    if layers.linear:
        linear_type = next((n for n, key in _LINEAR_TYPES if config.get(key)), "mamba2" if "nh=" in state else "mamba1" if state else "")
    heads, size = model.num_key_value_heads or 1, model.head_dim or 0
    v_size = model.v_head_dim or size
    full, sliding = None, None
    wide, wide_heads = _count(config, "global_head_dim"), _count(config, "num_global_key_value_heads") or heads
    if wide and layers.full:  # Gemma 4
        full = (layers.full - layers.shared_full) * wide_heads * 2 * wide * 2
    if layers.shared_full or layers.shared_sliding:  # Gemma 3n
        full = full or (layers.full - layers.shared_full) * heads * (size + v_size) * 2
        sliding = (layers.sliding - layers.shared_sliding) * heads * (size + v_size) * 2
    if _count(config, "swa_num_key_value_heads") and layers.sliding:  # MiMo
        own, own_v = _count(config, "swa_head_dim") or size, _count(config, "swa_v_head_dim") or v_size
        sliding = layers.sliding * _count(config, "swa_num_key_value_heads") * (own + own_v) * 2
    if model.architecture.startswith("MiniCPM3"):  # vLLM caches its keys and values in full, padded to the keys
        full = layers.full * heads * 2 * size * 2
    return structs.replace(
        model,
        attn_layers_full=layers.full,
        attn_layers_sliding=layers.sliding,
        linear_layers=layers.linear or None,
        sliding_window=model.sliding_window if layers.sliding else None,
        first_dense_layers=(layers.total - layers.moe) or None if layers.moe and layers.dense else model.first_dense_layers if layers.moe else None,
        conv_state_bytes_per_seq=conv,
        ssm_state_bytes_per_seq=ssm,
        linear_state=state,
        linear_type=linear_type,
        kv_bytes_full=full,
        kv_bytes_sliding=sliding,
    )


_LINEAR_TYPES = (("gdn", "linear_num_value_heads"), ("kda", "linear_attn_config"), ("lightning", "attn_type_list"), ("conv", "conv_L_cache"))


def _states(config: dict[str, Any], layers: int) -> tuple[str, int | None, int | None]:
    """(widths, bytes per request over all linear layers of convolutions and of recurrent states). Convolutions are kept at 16 bits, states at
    what the config says, else at 16."""
    if not layers:
        return "", None, None
    wide = 4 if "32" in str(config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")) else 2
    before = (_count(config, "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel") or 4) - 1
    keys, values, k, v = (_count(config, f"linear_{name}") for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    if keys and values and k and v:  # gated delta nets
        return f"nk={keys}; nv={values}; dk={k}; dv={v}", (2 * keys * k + values * v) * before * 2 * layers, values * k * v * wide * layers
    own = config.get("linear_attn_config")
    if isinstance(own, dict) and _count(own, "num_heads") and _count(own, "head_dim"):  # Kimi: three convolutions, states at 32 bits
        heads, size = _count(own, "num_heads"), _count(own, "head_dim")
        return f"nh={heads}; hd={size}", 3 * heads * size * before * 2 * layers, heads * size * size * 4 * layers
    hidden, heads, size = (_count(config, n) for n in ("hidden_size", "num_attention_heads", "head_dim"))
    if isinstance(config.get("attn_type_list"), list) and heads:  # MiniMax
        return "", 0, heads * (size or hidden // heads) ** 2 * 2 * layers
    if _count(config, "conv_L_cache"):  # LFM2
        return "", (_count(config, "conv_dim") or hidden) * (_count(config, "conv_L_cache") - 1) * 2 * layers, 0
    state = _count(config, "mamba_d_state", "ssm_state_size", "state_size")
    heads, size = (
        _count(config, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads"),
        _count(config, "mamba_d_head", "mamba_head_dim", "mamba_headdim"),
    )
    inner = _count(config, "mamba_d_ssm") or heads * size or (_count(config, "mamba_expand", "expand") or 2) * hidden
    if not state or not inner:
        return "", None, None
    if heads and size:
        groups = _count(config, "mamba_n_groups", "n_groups", "mamba_ngroups") or 1
        return f"g={groups}; nh={heads}; hd={size}; n={state}", (inner + 2 * groups * state) * before * 2 * layers, inner * state * wide * layers
    rank = _count(config, "mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
    return f"expand={inner // max(hidden, 1)}; dt={rank}; n={state}", inner * before * 2 * layers, inner * state * wide * layers


def total_of(model: Model, layers: Layers, config: dict[str, Any]) -> float:
    """Parameters in all, each kind of layer counted as often as it is there."""
    bare = structs.replace(
        model, num_hidden_layers=1, linear_layers=None, num_experts=None, intermediate_size=0, vocab_size=0, total_params_b=None,
        vision_params_m=None, hidden_size_per_layer_input=None,
    )  # fmt: skip
    ends = parameters(structs.replace(bare, num_hidden_layers=0, vocab_size=model.vocab_size)).total
    heads, size = _count(config, "swa_num_key_value_heads") or model.num_key_value_heads, model.head_dim
    wide = _count(config, "global_head_dim")
    full = structs.replace(
        bare, head_dim=wide or size, num_key_value_heads=(_count(config, "num_global_key_value_heads") if wide else 0) or model.num_key_value_heads
    )
    attention = layers.full * parameters(full).total + layers.sliding * parameters(structs.replace(bare, num_key_value_heads=heads)).total
    bare = structs.replace(bare, num_attention_heads=0, num_key_value_heads=0, head_dim=0, kv_lora_rank=None, q_lora_rank=None)
    dense = parameters(structs.replace(bare, intermediate_size=model.intermediate_size)).total
    stated = config.get("mlp_layers")
    dense_layers = stated if isinstance(stated, float) and 0 < stated <= layers.total else layers.dense
    moe = 0.0
    if layers.moe:
        hidden, width = model.hidden_size or 0, model.moe_intermediate_size or 0
        latent = _count(config, "moe_latent_size", "routed_expert_hidden_size") or hidden
        each = parameters(structs.replace(bare, intermediate_size=width)).total / max(hidden, 1) * latent
        shared = (model.shared_experts or 0) * (model.shared_expert_intermediate_size or width)
        moe = (model.num_experts or 0) * (each + hidden) + parameters(structs.replace(bare, intermediate_size=shared)).total
        moe += 2 * hidden * latent if latent != hidden else 0
        if config.get("enable_moe_block"):
            moe += dense  # Gemma 4: beside the experts
    each = float(linear_layer_parameters(model))
    if model.linear_type == "lightning":  # query, key, value, gate and output
        each = 5.0 * (model.hidden_size or 0) * (model.num_attention_heads or 0) * (size or 0)
    mixers = layers.linear * each
    vision = (model.vision_params_m or 0.0) * 1e6
    return ends + attention + mixers + dense * dense_layers + moe * layers.moe + vision


def towers(document: dict[str, Any], hidden: int) -> float | None:
    """Millions of parameters of vision and audio towers and their way into the language model."""
    inner = document.get("thinker_config")
    document = inner if isinstance(inner, dict) else document
    found = 0.0
    vision = document.get("vision_config")
    if isinstance(vision, dict):
        depth = _count(vision, "depth", "num_hidden_layers", "n_layers", "layers")
        width = _count(vision, "embed_dim", "width", "hidden_size")
        inner_width = _count(vision, "intermediate_size") or int(width * (number_in(vision.get("mlp_ratio")) or 4))
        gated = str(vision.get("hidden_act")) == "silu"
        found += depth * width * (4 * width + (3 if gated else 2) * inner_width)
        merged = width * (_count(vision, "spatial_merge_size") or 1) ** 2
        if merged > width and depth:
            deep = vision.get("deepstack_visual_indexes")
            found += (1 + (len(deep) if isinstance(deep, list) else 0)) * merged * (merged + hidden)
        elif depth and width:
            found += hidden * (width + hidden)
    audio = document.get("audio_config")
    if isinstance(audio, dict):
        width = _count(audio, "d_model", "hidden_size")
        found += (
            _count(audio, "encoder_layers", "num_hidden_layers") * width * (4 * width + 2 * _count(audio, "encoder_ffn_dim", "intermediate_size"))
        )
    return round(found / 1e6, 1) or None
