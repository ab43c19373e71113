"""Bytes of a model's weights on one GPU: parameters by kind, quantisation, parallelism.

Quantisation touches the linear layers only; embeddings, the output head, norms and (usually) the vision tower stay at 16 bits. Tensor
parallelism divides linear layers, embeddings and the head; MLA's down-projections and the vision tower of many models are replicated.
"""

from __future__ import annotations

import math
import re

from msgspec import Struct, structs
from packaging.version import Version

from ..ruleset.schema import Model
from .generations import release_of
from .setup import Setup

FLOAT_BYTES = {"float32": 4.0, "float": 4.0}

QUANT_BITS: dict[str, float] = {
    "awq": 4.156, "awq_marlin": 4.156, "gptq": 4.156, "gptq_marlin": 4.156, "w4a16": 4.156, "int4": 4.156, "4bit": 4.156,
    "gptq-int8": 8.156, "w8a16": 8.156, "int8": 8.0, "w8a8": 8.0, "experts_int8": 8.0, "8bit": 8.156, "bitsandbytes-8bit": 8.0,
    "fp8": 8.0, "fbgemm_fp8": 8.0, "modelopt": 8.0, "deepspeedfp": 8.0,
    "bitsandbytes": 4.5, "bnb": 4.5,
    "mxfp4": 4.25, "nvfp4": 4.5, "modelopt_fp4": 4.5, "fp4": 4.5, "fp4-experts": 4.25, "int4-experts": 4.5,
    "gguf": 4.85, "q2_k": 2.96, "q3_k_m": 3.91, "q4_0": 4.55, "q4_k_s": 4.58, "q4_k_m": 4.85, "q5_k_m": 5.69, "q6_k": 6.57, "q8_0": 8.5,
    "iq1_s": 1.56, "iq1_m": 1.75, "iq2_xxs": 2.06, "iq2_xs": 2.31, "iq2_s": 2.5, "iq2_m": 2.7, "iq3_xxs": 3.06, "iq3_xs": 3.3, "iq3_s": 3.44,
    "iq3_m": 3.66, "iq4_xs": 4.25, "iq4_nl": 4.5, "q2_k_s": 2.8, "q3_k_s": 3.5, "q3_k_l": 4.27, "q4_1": 5.0, "q5_0": 5.5, "q5_1": 6.0, "q5_k_s": 5.54,
    "exl2": 4.5, "squeezellm": 4.2, "aqlm": 2.3, "marlin": 4.156, "hqq": 4.25, "quark": 8.0, "ptpc_fp8": 8.0,
}  # fmt: skip
"""Bits per quantised weight, scales and zero points included: groups of 128 cost 20/128 bit, NF4 blocks of 64 one fp32 scale, mxfp4
blocks of 32 and nvfp4 blocks of 16 one byte. GGUF: llama.cpp's own averages over whole models."""

EXPERTS_ONLY = {"mxfp4", "experts_int8", "int4-experts"}
"""Methods that leave everything but the routed experts at 16 bits."""
GATED_ATTENTION = ("Qwen3Next", "Qwen3_5")
"""Architectures whose query projection is twice as wide: its second half gates the output."""
EVERYTHING = {"gguf", *(name for name in QUANT_BITS if re.fullmatch(r"i?q\d_\w+", name))}

UNGATED = (
    "OPT",
    "GPT2",
    "GPTJ",
    "GPTNeo",
    "GPTBig",
    "FalconFor",
    "PhiFor",
    "Starcoder2",
    "Bloom",
    "MPT",
    "Bert",
    "Roberta",
    "XLMRoberta",
    "Nemotron",
    "Whisper",
)
"""Architectures (by their beginning) whose MLP has two matrices, not three; `PhiFor` is Phi-1 and 2, later ones are gated."""


class Parameters(Struct, frozen=True):
    """Counts of parameters by what parallelism and quantisation do to them."""

    embedding: float = 0.0
    head: float = 0.0
    attention: float = 0.0
    linear: float = 0.0
    mlp: float = 0.0
    experts: float = 0.0
    replicated: float = 0.0
    vision: float = 0.0

    @property
    def total(self) -> float:
        return self.embedding + self.head + self.attention + self.linear + self.mlp + self.experts + self.replicated + self.vision


def gated(model: Model) -> bool:
    """Has the MLP a gate projection?"""
    return not model.architecture.startswith(UNGATED)


def parameters(model: Model) -> Parameters:
    """Parameters by kind, from the shape; where the total is known, the part with the loosest formula takes up the difference."""
    h, layers, heads = model.hidden_size or 0, model.num_hidden_layers or 0, model.num_attention_heads or 0
    head_dim = model.head_dim or (h // heads if heads else 0)
    v_dim = model.v_head_dim or head_dim
    kv = model.num_key_value_heads or heads
    embedding = float((model.vocab_size or 0) * h)
    head = 0.0 if model.tie_word_embeddings or model.kind == "embedding" else embedding
    embedding += float((model.vocab_size or 0) * layers * (model.hidden_size_per_layer_input or 0))
    attention_layers = layers - (model.linear_layers or 0)
    replicated = 0.0
    if model.kv_lora_rank:
        q_dim = (model.qk_nope_head_dim or head_dim) + (model.qk_rope_head_dim or 0)
        down = h * (model.kv_lora_rank + (model.qk_rope_head_dim or 0)) + (h * model.q_lora_rank if model.q_lora_rank else 0)
        query = (model.q_lora_rank or h) * heads * q_dim
        each = query + model.kv_lora_rank * heads * ((model.qk_nope_head_dim or head_dim) + v_dim) + heads * v_dim * h
        replicated = float(down * attention_layers)
    else:
        queries = 2 if model.architecture.startswith(GATED_ATTENTION) else 1
        each = queries * h * heads * head_dim + h * kv * (head_dim + v_dim) + heads * v_dim * h
    attention = float(each * attention_layers)
    linear = float((model.linear_layers or 0) * linear_layer_parameters(model))
    matrices = 3 if gated(model) else 2
    experts_each = model.num_experts or 0
    dense_layers = layers if not experts_each or model.architecture.startswith("Gemma4") else (model.first_dense_layers or 0)
    mlp = float(matrices * h * (model.intermediate_size or 0) * dense_layers)
    expert_layers = layers - (model.first_dense_layers or 0) if experts_each else 0  # Gemma 4 has both in every layer
    size = model.moe_intermediate_size or model.intermediate_size or 0
    experts = float(expert_layers * experts_each * matrices * h * size)
    shared = (model.shared_experts or 0) * (model.shared_expert_intermediate_size or size)
    mlp += float(expert_layers * matrices * h * shared)
    vision = (model.vision_params_m or 0.0) * 1e6
    found = Parameters(embedding, head, attention, linear, mlp, experts, replicated, vision)
    total = (model.total_params_b or 0.0) * 1e9
    if not total:
        return found
    missing = total - found.total
    if experts and experts + missing > 0.3 * experts:  # Nemotron 3 has experts in 23 of 52 layers
        return structs.replace(found, experts=experts + missing)
    short = min(attention + missing, 0.0)  # below zero where not every layer has an MLP (Nemotron-H)
    return structs.replace(found, attention=max(attention + missing, 0.0), mlp=mlp + short)


def linear_layer_parameters(model: Model) -> int:
    """Parameters of one linear-attention or state-space layer's mixer, from the widths in `linear_state`; four square matrices where they are
    not known."""
    h = model.hidden_size or 0
    width = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", model.linear_state)}
    if {"nk", "nv", "dk", "dv"} <= width.keys():  # gated delta net: q, k, v and gate; beta and decay; output
        keys, values = width["nk"] * width["dk"], width["nv"] * width["dv"]
        return h * (2 * keys + 2 * values + 2 * width["nv"]) + values * h
    if model.linear_type == "kda" and {"nh", "hd"} <= width.keys():  # q, k, v and output; two low-rank gates
        inner = width["nh"] * width["hd"]
        return 4 * h * inner + 2 * width["hd"] * (h + inner) + h * width["nh"]
    if {"nh", "hd", "g", "n"} <= width.keys():  # Mamba 2
        inner = width["nh"] * width["hd"]
        return h * (2 * inner + 2 * width["g"] * width["n"] + width["nh"]) + inner * h
    if {"expand", "dt", "n"} <= width.keys():  # Mamba 1
        inner = width["expand"] * h
        return 3 * h * inner + inner * (2 * width["dt"] + 2 * width["n"])
    return 4 * h * h


def quant_of(name: str | None) -> tuple[str, float] | None:
    """(method, bits) of a quantisation as people and configs write it: `awq`, `compressed-tensors w8a8`, `GPTQ-Int8`, `Q4_K_M`, `modelopt nvfp4`."""
    if not name:
        return None
    text = name.strip().lower().replace(" ", "-")
    if text in ("none", "auto", "null", "bf16", "bfloat16", "fp16", "float16", "torch_dtype"):
        return None
    llama_cpp = re.search(r"(?<![a-z0-9])(i?q[1-8]_(?:[01]|k_[sml]|k|x{0,2}s|m|nl))(?![a-z0-9])", text)
    if llama_cpp and llama_cpp[1] in QUANT_BITS:
        return llama_cpp[1], QUANT_BITS[llama_cpp[1]]
    for pattern, key in _WRITTEN:
        if re.search(pattern, text):
            return key, QUANT_BITS[key]
    return (text, QUANT_BITS[text]) if text in QUANT_BITS else None


_WRITTEN: tuple[tuple[str, str], ...] = (
    (r"(?<!x)fp4-experts|deepseek_v4_fp8|fp4\+fp8", "fp4-experts"),
    (r"int4.*group-?32|int4-experts", "int4-experts"),
    (r"fbgemm_fp8", "fbgemm_fp8"),
    (r"modelopt.*fp4", "modelopt_fp4"),
    (r"nvfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"w8a8.*fp8|fp8|float-?8|f8e4m3", "fp8"),
    (r"w8a8|smoothquant|int8-?w8|quantized\.w8a8", "w8a8"),
    (r"experts_int8", "experts_int8"),
    (r"(gptq|marlin).*(int8|8bit|8-bit|w8)|w8a16", "gptq-int8"),
    (r"awq", "awq"),
    (r"w4a16|int4|4-?bit.*gptq|gptq", "gptq"),
    (r"bnb|bitsandbytes|nf4", "bitsandbytes"),
    (r"gguf", "gguf"),
    (r"modelopt", "modelopt"),
    (r"int8|8-?bit", "int8"),
    (r"4-?bit", "4bit"),
    (r"fp4", "fp4"),
)


class Recipe(Struct, frozen=True):
    """Bytes per weight in a checkpoint, by kind; `rest` is embedding and head."""

    attention: float
    states: float
    mlp: float
    experts: float
    rest: float


def recipe_of(setup: Setup, counts: Parameters) -> Recipe:
    """Which layers the checkpoint's recipe leaves at 16 bits, as far as publishers are known to agree."""
    model, full = setup.model, FLOAT_BYTES.get(setup.dtype, 2.0)
    method, bits = quantisation(setup)
    each = bits / 8 if method else full
    attention = states = mlp = each
    nvidia = method == "modelopt_fp4" and not model.architecture.startswith("Nemotron")
    if counts.experts and (method in EXPERTS_ONLY or nvidia or (method == "nvfp4" and model.kv_lora_rank)):
        # the last is NVIDIA's recipe for latent attention, whoever publishes it (106.69 GiB of GLM-5.2 on each of four)
        attention = states = mlp = full
    elif method == "fp4-experts":
        attention = states = mlp = 1.0  # DeepSeek V4: experts in FP4, all else in FP8
    elif method == "fbgemm_fp8" or (nvidia and model.architecture.startswith("Gemma")):
        attention = full  # 57.75 GiB of Llama-3.1-405B-FP8 on each of eight, 31.18 GiB of NVIDIA's Gemma-4-31B
    if "fp4" in method and method != "fp4-experts":
        states = full  # 21.86 GiB of Qwen3.6-35B-A3B from two publishers, 12.02 GiB of Qwen3.8-27B on each of two; others quantise them as well
    return Recipe(attention, states, mlp, each, each if method in EVERYTHING else full)


def weight_range(setup: Setup) -> tuple[int, int, int]:
    """(least, expected, most) bytes of weights per GPU. Padding and buffers make 3 %; publishers of four-bit checkpoints differ in what they
    leave at 16 bits besides embedding and head: all linear layers quantised to nothing but experts and dense MLPs."""
    counts, full = parameters(setup.model), FLOAT_BYTES.get(setup.dtype, 2.0)
    own = recipe_of(setup, counts)
    expected = _on_gpu(setup, counts, own)
    least, most = round(0.99 * expected), round(1.03 * expected) + 2**30 // 20
    method, bits = quantisation(setup)
    if method and bits < 8 and method not in EVERYTHING and not setup.model.loaded_gib and method != "fp4-experts":
        each = bits / 8
        least = min(least, _on_gpu(setup, counts, Recipe(each, each, each, each, own.rest)))
        if counts.experts or counts.linear or "fp4" in method:
            most = max(most, _on_gpu(setup, counts, Recipe(full, full, full if counts.experts else own.mlp, each, own.rest)))
    return least, expected, most


def weight_bytes(setup: Setup) -> int:
    """Weights per GPU as "Model loading took" counts them, on the fullest pipeline stage. CPU offload is subtracted."""
    counts = parameters(setup.model)
    return _on_gpu(setup, counts, recipe_of(setup, counts))


def _on_gpu(setup: Setup, counts: Parameters, recipe: Recipe) -> int:
    model, full = setup.model, FLOAT_BYTES.get(setup.dtype, 2.0)
    method, bits = quantisation(setup)
    tp, pp = setup.tensor_parallel_size, setup.pipeline_parallel_size
    expert_ways = tp * setup.data_parallel_size if setup.enable_expert_parallel else tp
    head_bytes, embedding_bytes = counts.head * recipe.rest / tp, counts.embedding * recipe.rest / tp
    if pp > 1 and not counts.head:
        head_bytes = embedding_bytes  # a tied head lies on the last stage as well
    layers = (counts.attention * recipe.attention + counts.mlp * recipe.mlp + counts.linear * recipe.states) / tp
    layers += counts.experts * recipe.experts / expert_ways
    layers += (counts.replicated + _replicated_kv(model, tp)) * recipe.attention + absorbed_bytes(setup, recipe.attention)
    stage = layers / pp if pp == 1 else layers * math.ceil((model.num_hidden_layers or pp) / pp) / (model.num_hidden_layers or pp)
    ends = head_bytes + embedding_bytes if pp == 1 else max(head_bytes, embedding_bytes)
    total = stage + ends + counts.vision * full / (tp if tp > 1 else 1) + _rotary(model)
    if not method and tp == 1 and pp == 1 and model.weights_gib and setup.dtype not in FLOAT_BYTES:
        total = model.weights_gib * 2**30 + _rotary(model)
    if model.loaded_gib and setup.quant_bits is None and (quant_of(setup.quantization) or (method, bits)) == (method, bits):
        total = model.loaded_gib * 2**30 / tp / pp
    return max(0, round(total) - setup.cpu_offload_bytes)


def absorbed_bytes(setup: Setup, linear: float) -> float:
    """What decoding with latent attention keeps besides the checkpoint's matrices, on one GPU: the products W_Q·W_UK and W_UV·W_O in 0.7.1
    to 0.7.3 (vllm/attention/backends/mla/utils.py), 16-bit copies of W_UK and W_UV since (pull request 14770). `linear` is bytes per weight."""
    model, version = setup.model, release_of(setup.version)
    if not model.kv_lora_rank or (version is not None and version < Version("0.7.1")):
        return 0.0
    heads = (model.num_attention_heads or 0) / setup.tensor_parallel_size
    layers = (model.num_hidden_layers or 0) - (model.linear_layers or 0)
    nope, value, latent, hidden = model.qk_nope_head_dim or 0, model.v_head_dim or model.head_dim or 0, model.kv_lora_rank, model.hidden_size or 0
    if version is not None and version < Version("0.8.0"):
        products = latent * ((model.q_lora_rank or hidden) + hidden) * linear
        return layers * heads * (products + (model.q_lora_rank or hidden) * (model.qk_rope_head_dim or 0) * 2.0)
    return layers * heads * latent * (nope + value) * 2.0


def quantisation(setup: Setup) -> tuple[str, float]:
    """(method, bits) in force: stated, or of a checkpoint that is published quantised only; ("", 16) for none."""
    if setup.quant_bits:
        return setup.quantization or "given", setup.quant_bits
    found = quant_of(setup.quantization)
    if found is None and setup.quantization is None:
        found = quant_of(setup.model.checkpoint_dtype if setup.model.checkpoint_dtype not in ("bf16", "fp16", "fp32") else None)
    return found or ("", 16.0)


def _replicated_kv(model: Model, tp: int) -> float:
    """Parameters of K and V projections that each GPU holds on top of its share, where there are fewer KV heads than GPUs."""
    kv = model.num_key_value_heads or 0
    if not kv or tp <= kv or model.kv_lora_rank:
        return 0.0
    size = (model.head_dim or 0) + (model.v_head_dim or model.head_dim or 0)
    layers = (model.num_hidden_layers or 0) - (model.linear_layers or 0)
    return layers * (model.hidden_size or 0) * size * (1 - kv / tp)


def _rotary(model: Model) -> float:
    """The cos/sin table: one row of head_dim 16-bit values per position. Llama-3.1-8B: 32 MiB, which is what its loading line adds."""
    if model.architecture.startswith(("OPT", "Bert", "Whisper", "GPT2")):
        return 0.0
    return float(2 * (model.qk_rope_head_dim or model.head_dim or 0) * min(model.max_position_embeddings or 0, 1_048_576))
