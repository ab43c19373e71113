"""What vLLM refuses before or while it starts, whatever the KV cache would hold. Each entry is a note's code with figures
(reports/plan_notes.py words them)."""

from __future__ import annotations

import math

from .defaults import limits_of, version_of
from .estimates import context
from .kv import pool_of
from .setup import Budget, Setup
from .support import LEAST_CAPABILITY, falls_back, first_release, lacking

Note = tuple[str, dict[str, float | str]]

REFUSALS = frozenset({
    "heads-split", "kv-heads-split", "mlp-split", "vocabulary-split", "stages", "context-parallel", "free-below-budget", "overcommitted",
    "batched-below-length", "batched-below-seqs", "model-limit", "old-card", "old-card-for-method", "old-version",
})  # fmt: skip
"""Codes of notes that say: it does not start."""

VOCABULARY_STEP = 64


def refusals(setup: Setup, budget: Budget) -> list[Note]:
    """Why vLLM would not start this set-up: sizes that do not divide, memory that is not free, limits that contradict each other. A KV cache
    that is too small is not among them (`Budget.starts`)."""
    return [*_support(setup), *_split(setup), *_memory(setup, budget), *_limits(setup)]


def _support(setup: Setup) -> list[Note]:
    """What this version cannot run on this card, or not at all (support.py)."""
    found: list[Note] = []
    own, lacks, first = setup.capability, lacking(setup), first_release(setup)
    if own is not None and own < LEAST_CAPABILITY:
        found.append(("old-card", {"card": setup.gpu.name if setup.gpu else "", "has": f"{own:.1f}", "needs": f"{LEAST_CAPABILITY:.1f}"}))
    elif lacks is not None:
        method, needs, has, later = lacks
        card = setup.gpu.name if setup.gpu else ""
        found.append(("old-card-for-method", {"method": method, "needs": f"{needs:.1f}", "card": card, "has": f"{has:.1f}", "later": later}))
    if first and not falls_back(setup):
        found.append(("old-version", {"version": str(setup.version), "architecture": setup.model.architecture, "first": first}))
    return found


def _split(setup: Setup) -> list[Note]:
    """vllm/config.py, verify_with_parallel_config, and the divisions asserted in the layers."""
    model, tp, pp, dcp = setup.model, setup.tensor_parallel_size, setup.pipeline_parallel_size, setup.decode_context_parallel_size
    heads, kv = model.num_attention_heads or 0, model.num_key_value_heads or 0
    found: list[Note] = []
    if heads and heads % tp:
        found.append(("heads-split", {"heads": heads, "tp": tp}))
    elif kv and not model.kv_lora_rank and kv % tp and tp % kv:
        found.append(("kv-heads-split", {"heads": kv, "tp": tp}))
    else:
        found += _widths(setup)
    if model.num_hidden_layers and pp > model.num_hidden_layers:
        found.append(("stages", {"layers": model.num_hidden_layers, "pp": pp}))
    most = tp if model.kv_lora_rank else tp // kv if kv else tp
    if dcp > 1 and (tp % dcp or dcp > most):
        found.append(("context-parallel", {"dcp": dcp, "tp": tp}))
    return found


def _widths(setup: Setup) -> list[Note]:
    """Widths that tensor parallelism divides without a remainder (vllm/distributed/utils.py, `divide`; fused_moe/layer.py). The vocabulary
    is padded to a multiple of 64 first (vocab_parallel_embedding.py)."""
    model, tp = setup.model, setup.tensor_parallel_size
    width = model.intermediate_size if not model.num_experts and model.kind in ("dense", "vlm", "embedding") else None
    if model.num_experts and not setup.enable_expert_parallel:
        width = model.moe_intermediate_size or model.intermediate_size
    if width and width % tp:
        return [("mlp-split", {"width": width, "tp": tp})]
    vocabulary = math.ceil((model.vocab_size or 0) / VOCABULARY_STEP) * VOCABULARY_STEP
    return [("vocabulary-split", {"vocabulary": vocabulary, "tp": tp})] if vocabulary % tp else []


def _memory(setup: Setup, budget: Budget) -> list[Note]:
    if setup.device == "cpu":
        return []
    found: list[Note] = []
    if limits_of(setup).engine == "V1" and version_of(setup).release >= (0, 9, 1):
        free = budget.total - setup.outside_bytes - context(setup).span[0]  # the context's low end: refuse only what is sure to be
        if free < budget.budget:
            found.append(("free-below-budget", {"free": max(free, 0), "budget": budget.budget}))
    own = context(setup)
    over: float = -budget.headroom - (own.bytes - own.span[0])  # its low end here as well
    if not budget.graphs_in_budget:
        over -= budget.graphs.bytes  # loosely estimated, and captured last: a note of its own
    if setup.num_gpu_blocks_override:
        over += setup.num_gpu_blocks_override * pool_of(setup, limits_of(setup)).block_bytes - budget.kv.bytes
    if over > 0 and (budget.kv.bytes > 0 or budget.cacheless) and not found:
        found.append(("overcommitted", {"missing": round(over)}))
    return found


def _limits(setup: Setup) -> list[Note]:
    """vllm/config.py, SchedulerConfig and _get_and_verify_max_len."""
    limits = limits_of(setup)
    found: list[Note] = []
    tokens, own = setup.max_num_batched_tokens, setup.model.max_position_embeddings
    if tokens and tokens < limits.max_model_len and not limits.chunked:
        found.append(("batched-below-length", {"batched": tokens, "length": limits.max_model_len}))
    if (tokens or limits.max_num_batched_tokens) < limits.max_num_seqs:
        found.append(("batched-below-seqs", {"batched": tokens or limits.max_num_batched_tokens, "seqs": limits.max_num_seqs}))
    if own and setup.max_model_len and setup.max_model_len > own:
        found.append(("model-limit", {"length": setup.max_model_len, "limit": own}))
    return found
