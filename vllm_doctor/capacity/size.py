"""`size`: one GPU's memory as vLLM would lay it out, from a set-up alone or with the parts that are known. Pure arithmetic."""

from __future__ import annotations

import math

from .defaults import Limits, limits_of, version_of
from .estimates import activation, context, graphs, non_torch
from .generations import Generation, generation_of, uses_v2_runner
from .kv import Pool, blocks_for, pool_of, printed, token_bytes
from .setup import PARTS, Amount, Budget, Part, Setup
from .weights import weight_range

V2_COUNTS_GRAPHS = (0, 31)
"""The second model runner subtracts no estimate in 0.26 to 0.30 (7 starts whose parts sum up without one); one start of 0.31 has it."""


def size(setup: Setup) -> Budget:
    """The budget of one GPU of the set-up (of the fullest pipeline stage). Never raises: what cannot fit shows as `starts` False, with KV
    bytes at zero or below and no blocks."""
    limits = limits_of(setup)
    generation = generation_of(setup.version, limits.engine)
    counted = graphs_counted(setup, generation)
    parts = _divided({p: _part(p, setup, limits, generation) for p in PARTS}, setup)
    budget = budget_bytes(setup, limits, generation)
    spent = sum(parts[p].bytes for p in PARTS if p != "graphs" or counted)
    low_spent = sum(parts[p].span[0] for p in PARTS if p != "graphs" or counted)
    high_spent = sum(parts[p].span[1] for p in PARTS if p != "graphs" or counted)
    charged_outside = generation.charges_outside and "non_torch" not in setup.known and setup.known_rest is None
    foreign = setup.outside_bytes if charged_outside else 0
    pool = pool_of(setup, limits)
    cacheless = pool.block_bytes <= 0
    if cacheless:
        kv = Amount(0, "model")
    elif setup.kv_cache_memory_bytes is not None:
        kv = Amount(setup.kv_cache_memory_bytes)
    elif setup.known_kv_bytes is not None:
        kv = Amount(setup.known_kv_bytes)
    elif setup.known_rest is not None:
        kv = Amount(budget - parts["weights"].bytes - setup.known_rest - (parts["graphs"].bytes if counted else 0))
    else:
        measured = all(p in setup.known for p in PARTS if p != "graphs" or counted)
        rest, larger = budget - spent - foreign, round(setup.spread_bytes * limits.utilization)
        kv = Amount(rest, "measured" if measured else "model", low=budget - high_spent - foreign, high=budget - low_spent - foreign + larger)
    blocks = _blocks(kv.bytes, setup, pool)
    tokens, concurrency = printed(blocks, setup, limits, pool)
    ends = tuple(printed(_blocks(b, setup, pool), setup, limits, pool)[0] for b in kv.span)
    own = context(setup)
    charged = own.bytes if generation.charges_outside and "non_torch" not in setup.known else 0
    outside = Amount(setup.outside_bytes + own.bytes, "rule-of-thumb" if setup.context_bytes is None else "measured")
    # a context that the formula charges is in the non-torch part already: the ledger shows it once, outside
    shown = parts["non_torch"]
    if charged:
        low, high = shown.span
        shown = Amount(
            shown.bytes - charged, shown.basis, max(0, min(low - charged, shown.bytes - charged)), max(high - charged, shown.bytes - charged)
        )
    headroom = setup.total_bytes - outside.bytes - parts["weights"].bytes - parts["activation"].bytes - shown.bytes - parts["graphs"].bytes - kv.bytes
    fits = headroom >= 0 and (limits.engine == "V1" or budget >= spent + foreign)  # V1 asks for no room where nothing is kept
    return Budget(
        generation=generation.name if setup.kv_cache_memory_bytes is None else "manual",
        total=setup.total_bytes,
        outside=outside,
        budget=budget,
        utilization=limits.utilization,
        weights=parts["weights"],
        activation=parts["activation"],
        non_torch=shown,
        graphs=parts["graphs"],
        graphs_in_budget=counted,
        kv=kv,
        headroom=headroom,
        kv_bytes_per_token=token_bytes(setup),
        block_size=pool.block_size,
        blocks=blocks,
        kv_tokens=tokens,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_concurrency=concurrency,
        tokens_range=(min(ends), max(ends)),
        starts=fits if cacheless else blocks > 0 and blocks >= blocks_for(limits.max_model_len, setup, limits, pool),
        cacheless=cacheless,
    )


def _divided(parts: dict[Part, Amount], setup: Setup) -> dict[Part, Amount]:
    """The parts, where peak activation and non-torch memory are known together only: the estimate of the second divides them."""
    rest = setup.known_rest
    if rest is None or {"activation", "non_torch"} <= set(setup.known):
        return parts
    if "activation" in setup.known:
        return {**parts, "non_torch": Amount(rest - parts["activation"].bytes)}
    if "non_torch" in setup.known:
        return {**parts, "activation": Amount(rest - parts["non_torch"].bytes)}
    other = min(parts["non_torch"].bytes, max(rest, 0))
    low, high = (min(max(end, 0), max(rest, 0)) for end in parts["non_torch"].span)
    outside = Amount(other, "rule-of-thumb", low=min(low, other), high=max(high, other))
    peak = rest - other
    return {**parts, "activation": Amount(peak, "model", low=min(rest - max(high, other), peak), high=rest - min(low, other)), "non_torch": outside}


def _part(part: Part, setup: Setup, limits: Limits, generation: Generation) -> Amount:
    if part in setup.known:
        return Amount(setup.known[part])
    if part == "weights":
        least, value, most = weight_range(setup)
        return Amount(value, "model", low=least, high=most)
    if part == "activation":
        return activation(setup, limits, generation)
    return non_torch(setup, generation) if part == "non_torch" else graphs(setup, limits)


def budget_bytes(setup: Setup, limits: Limits, generation: Generation) -> int:
    """What vLLM may use: total × utilisation, rounded up from 0.14."""
    product = setup.total_bytes * limits.utilization
    return math.ceil(product) if generation.engine == "V1" and version_of(setup).release >= (0, 14) else int(product)


def graphs_counted(setup: Setup, generation: Generation) -> bool:
    """Are CUDA graphs subtracted before the KV cache is sized?"""
    if setup.enforce_eager or setup.device not in ("cuda", "rocm"):
        return False
    if setup.estimate_graphs is not None:
        return setup.estimate_graphs and generation.name in ("V1-c", "V1-d", "V1-e")
    if not generation.graphs_in_budget:
        return False
    if setup.device == "rocm" and version_of(setup).release < (0, 26):
        return False
    return version_of(setup).release >= V2_COUNTS_GRAPHS or not uses_v2_runner(setup)


def _blocks(kv: int, setup: Setup, pool: Pool) -> int:
    if setup.num_gpu_blocks_override:
        return setup.num_gpu_blocks_override
    if kv <= 0 or pool.block_bytes <= 0:
        return 0
    return math.floor(kv / pool.block_bytes)


def whole_requests(pool_tokens: float, tokens_per_request: float, block: float | None) -> float:
    """Requests of a length in a pool of uniform blocks (`block` tokens each; None: not known): each takes whole blocks. Below 1 the share of
    one that fits. Both lengths above zero."""
    if not block or block <= 0:
        return pool_tokens / tokens_per_request
    return math.floor(pool_tokens / block) / math.ceil(tokens_per_request / block)


def requests_that_fit(budget: Budget, setup: Setup, tokens_per_request: float) -> float:
    """How many requests of this many tokens (prompt and output together) the KV cache holds at once; below 1 the share of one that fits.

    Without a KV cache only the slots bind. Whole blocks, every group of layers, V1's null block not counted (it is never given out)."""
    if tokens_per_request <= 0:
        return math.inf
    limits = limits_of(setup)
    pool = pool_of(setup, limits)
    if budget.cacheless:
        return limits.max_num_seqs if budget.starts else 0
    usable = budget.blocks - (1 if limits.engine == "V1" and budget.blocks else 0)
    needed = blocks_for(math.ceil(tokens_per_request), setup, limits, pool)
    return usable / needed if needed else math.inf
