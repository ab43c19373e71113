"""The KV cache: bytes per token, pages and groups of layers, blocks, and the capacity that each version prints.

A *page* is one block of one layer. V1's hybrid manager (0.9.1 and later) splits layers into groups with one page size each; a block id
serves one group, and a request uses blocks for every group (vllm/v1/core/kv_cache_utils.py). Everything here is per GPU.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ..ruleset.schema import Model
from .defaults import Limits, version_of
from .setup import Setup

Kind = Literal["full", "sliding", "mamba"]

ELEMENT_BYTES: dict[str, float] = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0, "float": 4.0,
    "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp8_inc": 1.0, "int8": 1.0, "nvfp4": 0.5625,
}  # fmt: skip
"""Bytes per cached element. nvfp4: 4 bits and one 8-bit scale per 16 elements."""
SCALED = {"int8_per_token_head", "fp8_per_token_head"}
"""These keep one 4-byte scale per token and head besides one byte per element."""
INDEX_BYTES = 132
"""The index of DeepSeek's sparse attention, per layer and token on every GPU: a key of 128 FP8 values and its scale (97.8 KiB per token of GLM-5.1 in
all, 0.19.1; vllm/v1/attention/backends/mla/indexer.py)."""
DS_MLA_BYTES = 656
"""fp8_ds_mla: 512 bytes of latent, 16 of scales, 128 of rope part (DeepSeek V3.2 and later)."""


ENCODERS = ("Bert", "XLMRoberta", "Roberta", "NomicBert", "ModernBert", "New", "GteNew", "JinaBert", "DistilBert", "Deberta", "Electra")
"""How architectures begin that read a text once and keep nothing of it (vllm/model_executor/models/bert.py and its like)."""


class Group(Struct, frozen=True):
    """Layers of one kind. `token_bytes` are per layer and token (full, sliding), `state_bytes` per layer and request (mamba)."""

    kind: Kind
    layers: int
    token_bytes: float = 0.0
    state_bytes: int = 0
    window: int = 0


def element_bytes(kv_cache_dtype: str, dtype: str = "auto") -> float:
    """Bytes per cached element; `auto` takes the model's type."""
    if kv_cache_dtype == "auto":
        return ELEMENT_BYTES.get(dtype, 2.0)
    return ELEMENT_BYTES.get(kv_cache_dtype, 1.0 if "8" in kv_cache_dtype else 2.0)


def heads_per_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads on each GPU: divided, or one of each replicated where there are fewer heads than GPUs."""
    return max(1, kv_heads // tensor_parallel)


def uses_mla(model: Model, version: Version) -> bool:
    """Does the cache hold one latent per token? Before 0.7.1 vLLM cached full keys and values of DeepSeek models."""
    return bool(model.kv_lora_rank) and model.kv_bytes_full is None and version >= Version("0.7.1")


def layer_token_bytes(model: Model, setup: Setup) -> float:
    """Bytes per token and attention layer on one GPU."""
    if uses_mla(model, version_of(setup)):
        if setup.kv_cache_dtype == "fp8_ds_mla":
            return DS_MLA_BYTES
        return ((model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0)) * element_bytes(setup.kv_cache_dtype, setup.dtype)
    heads = heads_per_gpu(model.num_key_value_heads or model.num_attention_heads or 1, setup.tensor_parallel_size)
    size = model.head_dim or (model.hidden_size or 0) // (model.num_attention_heads or 1)
    if model.kv_lora_rank and model.kv_bytes_full is None:  # MLA without support: keys as wide as queries, values padded to them
        size = (model.qk_nope_head_dim or size) + (model.qk_rope_head_dim or 0)
        return heads * 2 * size * element_bytes(setup.kv_cache_dtype, setup.dtype)
    both = size + (model.v_head_dim or size)
    if setup.kv_cache_dtype in SCALED:
        return heads * (both + 2 * 4)
    return heads * both * element_bytes(setup.kv_cache_dtype, setup.dtype)


def groups_of(setup: Setup) -> list[Group]:
    """The layers that keep something per request, by kind, on the fullest pipeline stage."""
    model, stages = setup.model, setup.pipeline_parallel_size
    if model.kind == "embedding" and model.architecture.startswith(ENCODERS):
        return []
    total = model.num_hidden_layers or 0
    sliding, linear = model.attn_layers_sliding or 0, model.linear_layers or 0
    full = total - sliding - linear if model.attn_layers_full is None else model.attn_layers_full
    each = layer_token_bytes(model, setup)
    ratio = element_bytes(setup.kv_cache_dtype, setup.dtype) / 2 / _shards(setup)
    result = []
    if full or model.kv_bytes_full:
        own = each if model.kv_bytes_full is None else model.kv_bytes_full * ratio / max(full, 1)
        own += INDEX_BYTES * (model.indexer_layers or 0) / max(full, 1)
        result.append(Group("full", math.ceil(full / stages), own))
    if sliding:
        own = each if model.kv_bytes_sliding is None else model.kv_bytes_sliding * ratio / sliding
        result.append(Group("sliding", math.ceil(sliding / stages), own, window=model.sliding_window or 0))
    if linear:
        state = ((model.conv_state_bytes_per_seq or 0) + (model.ssm_state_bytes_per_seq or 0)) / linear / setup.tensor_parallel_size
        result.append(Group("mamba", math.ceil(linear / stages), state_bytes=math.ceil(state)))
    extra = draft_layers(setup)
    if extra:
        result.append(extra)
    return result


def _shards(setup: Setup) -> int:
    heads = setup.model.num_key_value_heads or 1
    return max(1, min(setup.tensor_parallel_size, heads))


def draft_layers(setup: Setup) -> Group | None:
    """KV layers of a draft model, or of EAGLE and MTP heads, which are built like the target's."""
    if setup.draft is not None:
        own = layer_token_bytes(setup.draft, setup)
        return Group("full", setup.draft.num_hidden_layers or 0, own)
    if setup.draft_layers:
        return Group("full", setup.draft_layers, layer_token_bytes(setup.model, setup))
    return None


def kv_bytes_per_token(
    model: Model,
    *,
    kv_cache_dtype: str = "auto",
    dtype: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    decode_context_parallel_size: int = 1,
    version: str | None = None,
) -> float:
    """Bytes of KV cache that one more token costs on each GPU, over all its layers (sliding ones included; states are not per token)."""
    setup = Setup(
        model=model, total_bytes=0, version=version, kv_cache_dtype=kv_cache_dtype, dtype=dtype, tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size, decode_context_parallel_size=decode_context_parallel_size,
    )  # fmt: skip
    return token_bytes(setup)


def token_bytes(setup: Setup) -> float:
    """`kv_bytes_per_token` of a set-up."""
    return sum(g.layers * g.token_bytes for g in groups_of(setup)) / setup.decode_context_parallel_size


def windows(setup: Setup, limits: Limits) -> tuple[int, int, int, float] | None:
    """Where some layers keep a window only, and the others all: (their layers, all layers, the window in tokens, bytes that one more token costs a
    request that is longer than it). None where no layer does, or this version keeps all tokens for each."""
    pool, groups = pool_of(setup, limits), groups_of(setup)
    sliding = [g for g in groups if g.kind == "sliding" and g.window]
    if not pool.grouped or not sliding:
        return None
    full = sum(count for group, count in pool.members if group.kind == "full")
    each = full * pool.block_bytes / pool.block_size / setup.decode_context_parallel_size
    return sum(g.layers for g in sliding), sum(g.layers for g in groups), max(g.window for g in sliding), each


class Pool(Struct, frozen=True):
    """How memory becomes blocks. `block_bytes` is what one block takes on the GPU; `members` are the groups with their counts: a request
    holds blocks of every one."""

    block_size: int
    block_bytes: float
    members: tuple[tuple[Group, int], ...]
    grouped: bool

    @property
    def group_count(self) -> int:
        return sum(n for _, n in self.members)


def pool_of(setup: Setup, limits: Limits) -> Pool:
    """The layout of the KV cache in this version."""
    groups, version = groups_of(setup), version_of(setup)
    grouped = limits.engine == "V1" and version >= Version("0.9.1") and not setup.disable_hybrid_kv_cache_manager
    states = [g for g in groups if g.kind == "mamba"]
    attention = [g for g in groups if g.kind != "mamba"]
    size = limits.block_size
    if states and attention and grouped:
        # attention blocks grow until their page holds a state; then the state's page is padded to them
        page = max(g.state_bytes for g in states)
        smallest = min(g.token_bytes for g in attention if g.token_bytes) or 1.0
        size = max(size, math.ceil(page / smallest / 16) * 16)
    kinds = {g.kind for g in groups}
    if not grouped or len(kinds) < 2:
        each: float = sum(g.layers * g.token_bytes for g in attention) * size
        if states and not attention:
            each = sum(g.layers * g.state_bytes for g in states)
        merged = Group("full", sum(g.layers for g in attention), each / size / max(sum(g.layers for g in attention), 1))
        only = groups[0] if len(groups) == 1 else merged
        return Pool(size, each, ((only, 1),), False)
    counts: dict[Kind, int] = {}
    for g in groups:
        counts[g.kind] = counts.get(g.kind, 0) + g.layers
    least, most = min(counts.values()), max(counts.values())
    per_group = most if most < 1.25 * least else least
    widest = max(max(g.token_bytes for g in attention if g.kind == kind) for kind in kinds if kind != "mamba")
    members = []
    for kind, layers in counts.items():
        first = next(g for g in groups if g.kind == kind)
        members.append((first, math.ceil(layers / per_group)))
    return Pool(size, widest * size * per_group, tuple(members), True)


def blocks_for(tokens: int, setup: Setup, limits: Limits, pool: Pool) -> int:
    """Blocks that one request of so many tokens holds."""
    spread = pool.block_size * setup.decode_context_parallel_size
    whole = math.ceil(tokens / spread)
    result = 0
    for group, count in pool.members:
        if group.kind == "mamba":
            result += count * (1 + (setup.speculative_tokens or 0))
        elif group.kind == "sliding" and pool.grouped and group.window:
            held = min(group.window - 1 + limits.max_num_batched_tokens, tokens)
            result += count * min(math.ceil(held / spread) + 1, whole)
        else:
            result += count * whole
    return result


def printed(blocks: int, setup: Setup, limits: Limits, pool: Pool) -> tuple[int, float]:
    """(tokens, concurrency) as this version prints them for so many blocks."""
    version, length = version_of(setup), limits.max_model_len
    spread = pool.block_size * setup.decode_context_parallel_size
    if limits.engine == "V0":
        return blocks * spread, blocks * spread / length
    tokens = blocks // pool.group_count * spread
    if version < Version("0.9.1"):
        return tokens, tokens / length
    concurrency = blocks / max(blocks_for(length, setup, limits, pool), 1)
    return (int(concurrency * length), concurrency) if version >= Version("0.20.2") else (tokens, concurrency)
