"""What sizing a GPU's memory starts from (`Setup`) and what comes out (`Budget`). Bytes are per GPU unless a name says otherwise."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, structs

from ..model.report import Basis
from ..ruleset.schema import Gpu, Model

Part = Literal["weights", "activation", "non_torch", "graphs"]
PARTS: tuple[Part, ...] = ("weights", "activation", "non_torch", "graphs")
GIB = 2**30


class Amount(Struct, frozen=True):
    """A size in bytes. `low`..`high` is the range that measured rows stayed in; equal to `bytes` where it was measured."""

    bytes: int
    basis: Basis = "measured"
    low: int | None = None
    high: int | None = None

    @property
    def span(self) -> tuple[int, int]:
        return (self.bytes if self.low is None else self.low, self.bytes if self.high is None else self.high)


def capability_of(card: Gpu | None) -> float | None:
    """The compute capability of an NVIDIA card; None where it is not known, and for other makers."""
    if card is None or card.vendor != "NVIDIA":
        return None
    try:
        return float(card.compute_capability)
    except ValueError:
        return None


class Setup(Struct, frozen=True):
    """A server before it starts: model, card, version and the options that bear on memory. None: vLLM's default of that version.

    `spread_bytes` is what the card may have more than `total_bytes`: ECC is off or on, and nobody said which.
    `known` are parts known by measurement, per GPU; they replace estimates. `outside_bytes` is memory that other processes hold.
    `known_rest` is what peak activation and non-torch memory take together, where a start showed what the KV cache got.
    `quantization` is what --quantization or the checkpoint says (`awq`, `gptq`, `fp8`, `bitsandbytes`, `mxfp4`, ...), `quant_bits` its width."""

    model: Model
    total_bytes: int
    spread_bytes: int = 0
    gpu: Gpu | None = None
    device: str = "cuda"
    version: str | None = None
    engine_generation: Literal["V0", "V1"] | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    data_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str = "auto"
    quantization: str | None = None
    quant_bits: float | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    enforce_eager: bool = False
    enable_chunked_prefill: bool | None = None
    disable_hybrid_kv_cache_manager: bool = False
    offline: bool = False
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    cpu_offload_bytes: int = 0
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    estimate_graphs: bool | None = None
    draft: Model | None = None
    draft_layers: int = 0
    speculative_tokens: int = 0
    outside_bytes: int = 0
    context_bytes: int | None = None
    known: dict[Part, int] = field(default_factory=dict)
    known_rest: int | None = None
    known_kv_bytes: int | None = None

    @property
    def capability(self) -> float | None:
        return capability_of(self.gpu)


def reshaped(setup: Setup, **changes: Any) -> Setup:
    """The set-up with its weights in another form or split otherwise: what was measured of it holds for the old one only."""
    changed = structs.replace(setup, **changes)
    return setup if changed == setup else structs.replace(changed, known={}, known_rest=None)


class Limit(Struct, frozen=True):
    """What stops more requests from running at once. `requests` is where it binds."""

    name: str
    requests: float
    tokens_per_request: int


class Budget(Struct, frozen=True):
    """One GPU's memory as this vLLM would size it. The parts and the headroom sum to the total:
    total = outside + weights + activation + non_torch + graphs + kv + headroom.

    `outside` holds other processes and this process's CUDA context. `budget` is what vLLM may use. `graphs_in_budget` tells whether the
    graphs were subtracted before the KV cache was sized. `kv_tokens` is the capacity that this version prints.
    `cacheless`: an encoder, which keeps no KV cache."""

    generation: str
    total: int
    outside: Amount
    budget: int
    utilization: float
    weights: Amount
    activation: Amount
    non_torch: Amount
    graphs: Amount
    graphs_in_budget: bool
    kv: Amount
    headroom: int
    kv_bytes_per_token: float
    block_size: int
    blocks: int
    kv_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_concurrency: float
    tokens_range: tuple[int, int]
    starts: bool
    notes: tuple[str, ...] = ()
    cacheless: bool = False

    @property
    def parts(self) -> dict[Part, Amount]:
        return {"weights": self.weights, "activation": self.activation, "non_torch": self.non_torch, "graphs": self.graphs}
