"""A set-up with what the log of such a server states: options that were left open, parts and the KV cache that were measured. Pure."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct, structs

from ..model.case import Case, Run
from ..ruleset.schema import Knowledge
from ..versions import generation
from .defaults import limits_of
from .generations import generation_of
from .kv import pool_of, printed
from .ledger import pool_tokens
from .observed import known_parts, least, option, positive, setup_of
from .setup import GIB, Part, Setup
from .size import size
from .weights import quantisation

OPEN = (
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "block_size", "quantization",
    "kv_cache_memory_bytes", "num_gpu_blocks_override", "estimate_graphs", "draft", "pipeline_parallel_size", "decode_context_parallel_size",
    "data_parallel_size", "enable_expert_parallel", "kv_cache_dtype", "enforce_eager", "disable_hybrid_kv_cache_manager", "cpu_offload_bytes",
    "draft_layers", "speculative_tokens",
)  # fmt: skip
"""What a log fills in where it was left at its default."""
DEFAULTS = {f.name: f.default for f in structs.fields(Setup)}
HALF = 0.005 * GIB
"""KV memory is printed to 0.01 GiB."""


class Logged(Struct, frozen=True):
    """The set-up with what a log states. `differs` says in what the log's is another one: only the weights are used then. `version` is a version
    that had to be supposed, `speculation` the option of that name as the log has it, where it was taken over."""

    setup: Setup
    differs: str = ""
    version: str = ""
    speculation: str = ""


LAST_V0 = "0.10.2"
"""What stands for a V0 log that states no version."""


def states_memory(run: Run) -> bool:
    """Does a run say what its memory went to?"""
    return bool(known_parts(run)) or least(run, "memory.kv_cache") is not None or pool_tokens(run)[0] is not None


def logged(setup: Setup, run: Run, case: Case, knowledge: Knowledge) -> Logged:
    """The set-up of a user, completed by a run of the same model and split. What the log does not state contradicts nothing."""
    parts = known_parts(run)
    graphs = least(run, "memory.graphs")
    if graphs is not None:
        parts.setdefault("graphs", int(graphs))
    engine = _engine(run)
    log = setup_of(run, case, knowledge, setup.model, setup.total_bytes) or setup
    supposed = LAST_V0 if engine == "V0" and run.version is None and setup.version is None else ""
    log = structs.replace(
        log, version=run.version or setup.version or supposed or None, engine_generation=engine or setup.engine_generation, known=parts,
        known_kv_bytes=None, gpu=log.gpu or setup.gpu, device=setup.device, kv_cache_dtype=_cache_type(log.kv_cache_dtype), offline=setup.offline,
    )  # fmt: skip
    if log.max_model_len is None:
        log = structs.replace(log, max_model_len=positive(least(run, "kv_cache.concurrency_length")))
    if not _states_options(run):
        log = structs.replace(log, **{name: getattr(setup, name) for name in OPEN if getattr(log, name) == DEFAULTS[name]})
    elif (log.quantization is None and run.fact("config.quantization") is None) or quantisation(log) == quantisation(setup):
        log = structs.replace(log, quantization=setup.quantization, quant_bits=setup.quant_bits)
    bare = structs.replace(log, enable_chunked_prefill=None)
    if limits_of(bare) == limits_of(log):
        log = bare  # printed because it is in force, not because somebody asked for it
    apart = _size(setup, log)
    full = structs.replace(
        setup,
        total_bytes=setup.total_bytes if apart else log.total_bytes,
        spread_bytes=setup.spread_bytes if log.total_bytes == setup.total_bytes else 0,
        version=setup.version or log.version,
        engine_generation=setup.engine_generation or (engine if setup.version in (None, log.version) else None),
        **{name: getattr(log, name) for name in OPEN if getattr(setup, name) == DEFAULTS[name]},
    )
    differs = [*apart, *_differences(log, full)]
    if differs:
        weights: dict[Part, int] = {name: size for name, size in parts.items() if name == "weights"}
        return Logged(structs.replace(full, known={**weights, **setup.known}), ", ".join(differs), supposed)
    rest = None if full.known_rest is not None or setup.known else _rest(log, run)
    spoken = str(option(run, "speculative-config")) if full.speculative_tokens and not setup.speculative_tokens else ""
    return Logged(structs.replace(full, known={**parts, **setup.known}, known_rest=rest), "", supposed, spoken)


def _engine(run: Run) -> Literal["V0", "V1"] | None:
    """The engine: V0 alone counts blocks of the host."""
    own = generation(run)
    if own == "V0" or (own is None and run.fact("kv_cache.cpu_blocks") is not None):
        return "V0"
    return "V1" if own == "V1" else None


def _states_options(run: Run) -> bool:
    """Does the log state the server's options? Where it does, what it leaves out was at its default."""
    return bool(run.launch and run.launch.flags) or any(f.name.startswith(("config.", "flag.")) for f in run.facts)


def _cache_type(text: str) -> str:
    """vLLM prints `auto` or the type; `torch.` before it is Python's."""
    return "auto" if text in ("None", "") else text.removeprefix("torch.")


def _size(setup: Setup, log: Setup) -> list[str]:
    if 0.97 * setup.total_bytes <= log.total_bytes <= 1.03 * (setup.total_bytes + setup.spread_bytes):
        return []
    return [f"{log.total_bytes / GIB:.1f} / {setup.total_bytes / GIB:.1f} GiB"]


def _differences(log: Setup, full: Setup) -> list[str]:
    """In what the two differ that decides the parts: theirs / ours."""
    mine, its = limits_of(full), limits_of(log)
    formulas = [generation_of(s.version, i.engine).name for s, i in ((log, its), (full, mine))]
    differs = [] if formulas[0] == formulas[1] else [f"vLLM {log.version or '?'} ({formulas[0]}) / {full.version or '?'} ({formulas[1]})"]
    for name, theirs, own in (
        ("--max-num-batched-tokens", its.max_num_batched_tokens, mine.max_num_batched_tokens),
        ("--max-num-seqs", its.max_num_seqs, mine.max_num_seqs),
        ("--enforce-eager", log.enforce_eager, full.enforce_eager),
        ("--pipeline-parallel-size", log.pipeline_parallel_size, full.pipeline_parallel_size),
        ("--enable-expert-parallel", log.enable_expert_parallel, full.enable_expert_parallel),
        ("--quantization", *("/".join(map(str, quantisation(s))) for s in (log, full))),
        ("--cpu-offload-gb", log.cpu_offload_bytes / GIB, full.cpu_offload_bytes / GIB),
        ("--num-speculative-tokens", log.speculative_tokens, full.speculative_tokens),
    ):
        if theirs != own:
            differs.append(f"{name} {theirs} / {own}")
    return differs


def _rest(log: Setup, run: Run) -> int | None:
    """Bytes that the profile run left between the weights and the KV cache that the log prints (see `Setup.known_rest`)."""
    kv = kv_bytes(log, run)
    if kv is None or log.kv_cache_memory_bytes is not None:
        return None
    budget = size(log)
    return budget.budget - budget.weights.bytes - (budget.graphs.bytes if budget.graphs_in_budget else 0) - kv


def kv_bytes(log: Setup, run: Run) -> int | None:
    """The KV cache as the log prints it. The size is printed to 0.01 GiB: whole blocks make it exact where the tokens are printed as well; where
    these alone are, they give it."""
    stated, tokens = least(run, "memory.kv_cache"), pool_tokens(run)[0]
    if tokens is None or log.num_gpu_blocks_override:
        return None if stated is None else int(stated)
    limits = limits_of(log)
    pool = pool_of(log, limits)
    if pool.block_bytes <= 0:
        return None if stated is None else int(stated)
    low, high = 0, 2 * tokens + 2  # a block holds one token at least, but groups may need several for it
    while printed(high, log, limits, pool)[0] < tokens and high < 2**40:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if printed(middle, log, limits, pool)[0] >= tokens else (middle + 1, high)
    exact = math.ceil(low * pool.block_bytes)
    if stated is not None and abs(exact - stated) > HALF + pool.block_bytes * max(pool.group_count, 1):
        return int(stated)
    return exact
