"""A server as the memory model sizes it, and what each option changes in it.

`capacity.Setup` says how vLLM lays out a GPU's memory. What it has no word for is added here: weights of a draft, LoRA's adapter slots, a
modality that is switched off, memory kept for the front end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from ..capacity.defaults import limits_of
from ..capacity.generations import generation_of
from ..capacity.observed import gib_bytes, option, positive, ratio, setup_of, truth, whole
from ..capacity.refusals import refusals
from ..capacity.setup import PARTS, Budget, Part, Setup
from ..capacity.size import graphs_counted, size
from ..capacity.weights import FLOAT_BYTES, gated, parameters, weight_bytes
from ..model.case import Case, Run
from ..ruleset.schema import Knowledge, Model
from ..versions import generation
from .moves import Move
from .options import ENGINE_SPANS, switched_on

MOST_ADAPTERS, LARGEST_RANK = 1024, 512
"""More than anybody has: a figure in a log that is larger is none."""
Ends = tuple[float, float, float]
"""(low, expected, high)."""


class Server(Struct, frozen=True):
    """`setup`, and what it leaves out. `loras` is 0 without --enable-lora."""

    setup: Setup
    loras: int = 0
    rank: int = 16
    text_only: bool = False
    frontend_bytes: int = 0


class Sized(Struct, frozen=True):
    """What a server needs on one GPU, in bytes: each part with its range. `charged` are the parts that are taken from the budget."""

    setup: Setup
    budget: Budget
    parts: dict[Part, Ends]
    charged: frozenset[str]


def servers_of(run: Run, case: Case, knowledge: Knowledge, model: Model | None) -> tuple[Server, ...]:
    """The server of a run, with nothing taken as measured: one where the version is known, else one for each end of the versions that it
    can have. None where the model's shape or the device's size is not known."""
    setup = setup_of(run, case, knowledge, model)
    if setup is None:
        return ()
    setup = _as_given(structs.replace(setup, known={}, known_kv_bytes=None), run)
    loras = (positive(option(run, "max-loras")) or 1) if truth(option(run, "enable-lora")) else 0
    server = Server(
        setup,
        min(loras, MOST_ADAPTERS),
        min(positive(option(run, "max-lora-rank")) or 16, LARGEST_RANK),
        _text_only(option(run, "limit-mm-per-prompt")),
        gib_bytes(ratio(option(run, "mm-ipc-gpu-memory-gb"))),
    )
    if setup.version is not None:
        return (server,)
    ends = ENGINE_SPANS[generation(run) or ""]
    return tuple(structs.replace(server, setup=structs.replace(setup, version=v)) for v in ends)


def _as_given(setup: Setup, run: Run) -> Setup:
    """A limit that the server filled in by itself is left open, so that it follows what it depends on."""
    for name, key in (("max_num_batched_tokens", "max-num-batched-tokens"), ("max_num_seqs", "max-num-seqs")):
        open_ = structs.replace(setup, **{name: None})
        if key not in run.flags() and getattr(setup, name) in (None, getattr(limits_of(open_), name)):
            setup = open_
    return setup


def sized(server: Server) -> Sized:
    """Sizes of one GPU of the server."""
    setup = server.setup
    budget = size(structs.replace(setup, cpu_offload_bytes=0))
    parts: dict[Part, Ends] = {}
    for part in PARTS:
        amount = budget.parts[part]
        parts[part] = (float(amount.span[0]), float(amount.bytes), float(amount.span[1]))
    if server.text_only and setup.model.vision_params_m:
        amount = size(structs.replace(setup, model=structs.replace(setup.model, vision_params_m=None))).activation
        parts["activation"] = (float(amount.span[0]), float(amount.bytes), float(amount.span[1]))
    extra = draft_bytes(setup) + lora_bytes(server) - setup.cpu_offload_bytes
    parts["weights"] = tuple(max(0.0, e + extra) for e in parts["weights"])  # type: ignore[assignment]
    counted = graphs_counted(setup, generation_of(setup.version, limits_of(setup).engine))
    return Sized(setup, budget, parts, frozenset(p for p in PARTS if p != "graphs" or counted))


def starts(server: Server) -> bool:
    """Would vLLM start this server, as far as the expected sizes say? The KV cache must hold one request of max-model-len."""
    if refusals(server.setup, size(server.setup)):
        return False
    extra = draft_bytes(server.setup) + lora_bytes(server)
    weights = weight_bytes(server.setup) + extra
    return size(structs.replace(server.setup, known={"weights": round(weights)})).starts


def draft_bytes(setup: Setup) -> float:
    """Weights of a draft model on one GPU; of EAGLE and MTP heads, one decoder layer of the target each (heuristic)."""
    if setup.draft is not None:
        return float(weight_bytes(structs.replace(setup, model=setup.draft, draft=None, draft_layers=0, quantization=None, quant_bits=None)))
    if not setup.draft_layers:
        return 0.0
    counts = parameters(setup.model)
    layer = (counts.attention + counts.mlp + counts.experts) / (setup.model.num_hidden_layers or 1)
    return setup.draft_layers * layer * FLOAT_BYTES.get(setup.dtype, 2.0) / setup.tensor_parallel_size


def lora_bytes(server: Server) -> float:
    """Adapter slots: A and B of every projection of attention and a dense MLP, in 16 bits (vllm/lora/layers, 0.8.5: A of a column-parallel
    layer and B of a row-parallel one are whole on every GPU). Experts have none here."""
    setup, model = server.setup, server.setup.model
    hidden, heads = model.hidden_size or 0, model.num_attention_heads or 0
    each = model.head_dim or (hidden // heads if heads else 0)
    query, kv, tp = heads * each, (model.num_key_value_heads or heads) * each, setup.tensor_parallel_size
    columns, rows = 3 * hidden + (query + 2 * kv) / tp, query / tp + hidden
    if not model.num_experts:
        inner, ups = (model.intermediate_size or 0) / tp, 2 if gated(model) else 1
        columns, rows = columns + ups * (hidden + inner), rows + inner + hidden
    layers = math.ceil((model.num_hidden_layers or 0) / setup.pipeline_parallel_size)
    return 2.0 * server.loras * server.rank * layers * (columns + rows)


# -- what each option changes


def _count(field: str) -> Callable[[Server, Move], Server | None]:
    def change(s: Server, m: Move) -> Server | None:
        to = None if m.remove else whole(m.to)
        if not m.remove and (to is None or to <= 0):
            return None
        if m.remove and field.endswith("parallel_size"):
            to = 1
        return structs.replace(s, setup=structs.replace(s.setup, **{field: to}))

    return change


def _switch(field: str) -> Callable[[Server, Move], Server | None]:
    def change(s: Server, m: Move) -> Server | None:
        on = not m.remove and switched_on(m.to)
        return structs.replace(s, setup=structs.replace(s.setup, **{field: on}))

    return change


def _utilization(s: Server, m: Move) -> Server | None:
    to = None if m.remove else m.number
    return None if to is not None and not 0 < to <= 1 else _set(s, gpu_memory_utilization=to)


def _set(s: Server, **fields: object) -> Server:
    return structs.replace(s, setup=structs.replace(s.setup, **fields))


def _kv_dtype(s: Server, m: Move) -> Server | None:
    return _set(s, kv_cache_dtype="auto" if m.remove else str(m.to))


def _offload(s: Server, m: Move) -> Server | None:
    to = 0.0 if m.remove else m.number
    return None if to is None or to < 0 else _set(s, cpu_offload_bytes=gib_bytes(to))


def _cpu_space(s: Server, m: Move) -> Server | None:
    to = m.number
    return _set(s, kv_cache_memory_bytes=gib_bytes(to)) if to and to > 0 and s.setup.device == "cpu" else None


def _largest_graph(s: Server, m: Move) -> Server | None:
    to = whole(m.to)
    return None if to is None or to < 0 else _set(s, cudagraph_capture_sizes=capture_sizes(to))


def capture_sizes(largest: int) -> tuple[int, ...]:
    """The batch sizes that vLLM captures up to a largest one (vllm/config/vllm.py, 0.32.0): 1, 2, 4, then by 8, from 256 by 16."""
    return tuple(n for n in (1, 2, 4, *range(8, 256, 8), *range(256, max(largest, 256) + 1, 16)) if n <= largest)


def _no_draft(s: Server, m: Move) -> Server | None:
    return _set(s, draft=None, draft_layers=0, speculative_tokens=0) if m.remove else None


def _quantization(s: Server, m: Move) -> Server | None:
    return _set(s, quantization=str(m.to), quant_bits=None, model=structs.replace(s.setup.model, loaded_gib=None)) if m.to else None


def _slots_of_adapters(s: Server, m: Move) -> Server | None:
    to = 1 if m.remove else whole(m.to)
    return structs.replace(s, loras=min(to, MOST_ADAPTERS)) if to and to > 0 and s.loras else None


def _rank(s: Server, m: Move) -> Server | None:
    to = 16 if m.remove else whole(m.to)
    return structs.replace(s, rank=min(to, LARGEST_RANK)) if to and to > 0 else None


def _no_adapters(s: Server, m: Move) -> Server | None:
    return structs.replace(s, loras=0) if m.remove or not switched_on(m.to) else None


def _media(s: Server, m: Move) -> Server | None:
    return structs.replace(s, text_only=not m.remove and _text_only(m.to))


def _text_only(value: object) -> bool:
    """Are all limits of --limit-mm-per-prompt zero, and both images and videos named?"""
    try:
        given = json.loads(str(value))
    except ValueError:
        return False
    return isinstance(given, dict) and {"image", "video"} <= set(given) and all(v == 0 for v in given.values())


def _frontend(s: Server, m: Move) -> Server | None:
    to = 0.0 if m.remove else m.number
    return None if to is None else structs.replace(s, frontend_bytes=gib_bytes(to))


OPTIONS: dict[str, Callable[[Server, Move], Server | None]] = {
    "--gpu-memory-utilization": _utilization,
    "--kv-cache-memory-bytes": _count("kv_cache_memory_bytes"),
    "--num-gpu-blocks-override": _count("num_gpu_blocks_override"),
    "--kv-cache-dtype": _kv_dtype,
    "--block-size": _count("block_size"),
    "--max-model-len": _count("max_model_len"),
    "--max-num-seqs": _count("max_num_seqs"),
    "--max-num-batched-tokens": _count("max_num_batched_tokens"),
    "--enable-chunked-prefill": _switch("enable_chunked_prefill"),
    "--tensor-parallel-size": _count("tensor_parallel_size"),
    "--pipeline-parallel-size": _count("pipeline_parallel_size"),
    "--decode-context-parallel-size": _count("decode_context_parallel_size"),
    "--enable-expert-parallel": _switch("enable_expert_parallel"),
    "--enforce-eager": _switch("enforce_eager"),
    "--max-cudagraph-capture-size": _largest_graph,
    "--cuda-graph-sizes": _largest_graph,
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": _switch("estimate_graphs"),
    "--cpu-offload-gb": _offload,
    "--speculative-config": _no_draft,
    "--disable-hybrid-kv-cache-manager": _switch("disable_hybrid_kv_cache_manager"),
    "--enable-lora": _no_adapters,
    "--max-loras": _slots_of_adapters,
    "--max-lora-rank": _rank,
    "--limit-mm-per-prompt": _media,
    "--mm-ipc-gpu-memory-gb": _frontend,
    "VLLM_CPU_KVCACHE_SPACE": _cpu_space,
    "quantization": _quantization,
}
"""What each option changes in a server; None where the value says nothing to the model. `quantization` is another checkpoint."""


def after(server: Server, moves: Sequence[Move]) -> Server:
    """The server after all changes that the model has a word for."""
    for move in moves:
        change = OPTIONS.get(move.lever)
        if change is not None and (move.remove or move.to is not None):
            server = change(server, move) or server
    return server
