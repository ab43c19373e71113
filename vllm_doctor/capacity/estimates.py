"""Sizes that only a run can measure: peak activation, non-torch memory, CUDA graphs, the CUDA context. Structure from vLLM's profile
run, constants from measured starts (docs/memory-model.md names them, with n). Every result is a range.

The profile run is one forward pass of max_num_batched_tokens tokens, then the sampler with max_num_seqs rows; its peak is the larger of

    forward   tokens × (3·intermediate + 4·hidden) × bytes / TP for the intermediate part       (MoE: top-k times the experts' buffers)
    sampler   seqs × vocabulary × c   + tokens × hidden × bytes

where c is the number of bytes per logit that this version's sampler touches at once.
"""

from __future__ import annotations

import math

from msgspec import Struct
from packaging.version import Version

from .defaults import Limits, version_of
from .generations import Generation, uses_v2_runner
from .setup import GIB, Amount, Setup
from .weights import FLOAT_BYTES, gated, quantisation

SORTED, MASKED, UNSAMPLED, PASSING = 38.3, 14.8, 6.2, 4.3
"""Bytes per logit. Sorting in PyTorch: fp32 logits, sorted copy, int64 indices, probabilities, their sum, masks: 38.3 (13 starts, 37.9 to
39.2). Top-k/top-p without a sort (FlashInfer, or the Triton kernel from 0.17.0): 14.8 (24 starts of 0.17 to 0.19, 14.3 to 15.2). The
second model runner profiles the logits alone: 6.2 (3 starts). From 0.27 what stays allocated after the profile run is not counted as
peak: 4.3, the fp32 logits (2 starts of the first runner)."""


class Constants(Struct, frozen=True):
    """What is added outside PyTorch, in GiB, from the release `since` on: on one GPU; on one of several with tensor parallelism, as
    (base, for each GPU), over NVLink and over PCIe; for kernels of gated delta nets on Hopper and newer and on older cards. `n` starts are
    behind it."""

    since: str
    single: float
    fabric: tuple[float, float]
    bus: tuple[float, float]
    linear: tuple[float, float]
    n: int


NON_TORCH: tuple[Constants, ...] = (
    Constants("0.2.7", 0.28, (0.6, 0.0), (0.24, 0.0), (0.3, 0.3), 8),
    Constants("0.6.6", 0.09, (0.7, 0.17), (0.15, 0.02), (0.4, 0.4), 34),
    Constants("0.11.0", 0.11, (0.55, 0.0), (0.12, 0.0), (0.4, 0.4), 14),
    Constants("0.18.0", 0.25, (2.0, 0.04), (0.25, 0.0), (3.7, 0.2), 54),
    Constants("0.20.0", 0.22, (0.6, 0.0), (0.5, 0.0), (0.6, 0.3), 20),
)
"""NCCL came into the budget with its buffers for every peer until 0.10.2; from 0.18 to 0.19 the workspace of FlashInfer's all-reduce did, on
cards with NVLink."""
ROCM_SINGLE, ROCM_EACH = 0.55, 0.65
"""AMD, in GiB: one GPU (0.46 to 0.73 in 6 starts), and for each of several (RCCL: 5.1 and 5.5 on eight MI300X)."""


def forward_bytes(setup: Setup, limits: Limits) -> float:
    """Peak of the forward pass over max_num_batched_tokens tokens, on one GPU."""
    model, tp, tokens = setup.model, setup.tensor_parallel_size, limits.max_num_batched_tokens
    size = FLOAT_BYTES.get(setup.dtype, 2.0)
    hidden = model.hidden_size or 0
    intermediate = (model.intermediate_size or 0) if not model.num_experts else 0
    matrices = 3 if gated(model) else 2
    per_token = matrices * intermediate / tp + 4 * hidden
    result = tokens * per_token * size
    if model.num_experts:
        result += expert_bytes(setup, limits)
    if model.linear_type in ("gdn", "kda"):
        result = max(result, linear_bytes(setup, limits))  # a layer mixes tokens before its MLP begins
    if model.architecture.startswith("Gemma") and limits.engine == "V0":
        result += tokens * hidden * 8  # its norms compute in fp32, and V0 compiles nothing
    if quantisation(setup)[0] == "bitsandbytes":
        result += 2 * hidden * (model.intermediate_size or 0) * size / tp  # one layer's gate and up projection, dequantised
    return result


def expert_bytes(setup: Setup, limits: Limits) -> float:
    """Buffers of the fused experts: gate-and-up output, its activation, and the output, for each token and chosen expert."""
    model = setup.model
    ways = 1 if setup.enable_expert_parallel else setup.tensor_parallel_size
    inner = (model.moe_intermediate_size or model.intermediate_size or 0) / ways
    tokens = limits.max_num_batched_tokens
    if quantisation(setup)[0] in ("", "fp8"):
        tokens = min(tokens, 32768)  # the Triton kernel cuts larger steps into chunks, Marlin's does not
    each = (model.experts_per_tok or 1) * (max(2 * inner, model.hidden_size or 0) + inner)
    return tokens * each * FLOAT_BYTES.get(setup.dtype, 2.0)


def linear_bytes(setup: Setup, limits: Limits) -> float:
    """Buffers of gated delta nets: about twelve of the width of the values for every token (projections, their convolved copies, gates, the
    chunks' matrices and states, output), with heads of 128 and states of 16 bits. The models read keep 32-bit states, which count double here:
    the figure was fitted so."""
    model = setup.model
    heads = (model.ssm_state_bytes_per_seq or 0) / max(model.linear_layers or 1, 1) / (128 * 128 * 2)
    return limits.max_num_batched_tokens * heads / setup.tensor_parallel_size * 12 * 128 * 2


def logit_bytes(setup: Setup, limits: Limits, generation: Generation) -> tuple[float, float, float]:
    """Bytes per logit in the sampler's peak: expected, lowest, highest. 0 where the profile runs no sampler."""
    version = version_of(setup)
    if limits.engine == "V0":
        # with chunks V0 0.7 sampled nothing (0.19 and 0.22 GiB, 2 starts); 0.6.4 and 0.8 did (1.17 to 1.45 GiB, 4 starts)
        silent = limits.chunked and Version("0.7.0") <= version < Version("0.8.0")
        return (UNSAMPLED, 0.0, SORTED) if silent else (SORTED, SORTED, SORTED)
    if version < Version("0.8.0"):
        return UNSAMPLED, UNSAMPLED, UNSAMPLED
    if uses_v2_runner(setup):
        return UNSAMPLED, UNSAMPLED, MASKED
    if generation.driver_measured:
        return PASSING, PASSING, MASKED
    if version >= Version("0.17.0"):
        return MASKED, MASKED, MASKED
    if Version("0.10.0") <= version < Version("0.10.2"):
        return MASKED, MASKED, SORTED  # FlashInfer's sampler where it is installed, as in the container images (2 starts)
    return SORTED, MASKED, SORTED


def activation(setup: Setup, limits: Limits, generation: Generation) -> Amount:
    """Peak activation of the profile run."""
    model, size = setup.model, FLOAT_BYTES.get(setup.dtype, 2.0)
    forward = forward_bytes(setup, limits)
    rows = limits.max_num_seqs
    if limits.engine == "V0" and model.kind == "vlm":
        rows = min(rows, max(limits.max_num_batched_tokens // 1024, 1))  # V0 profiles as many requests as whole images fit
    logits = float(rows * (model.vocab_size or 0))
    kept = limits.max_num_batched_tokens * (model.hidden_size or 0) * size
    if model.num_experts and version_of(setup) >= Version("0.17.0"):
        kept += expert_bytes(setup, limits)  # from here the experts' buffers stay allocated
    if limits.engine == "V0":
        kept += limits.max_num_seqs * v0_request_bytes(setup)
        forward += limits.max_num_seqs * v0_request_bytes(setup)
    forward = max(forward, encoder_bytes(setup, limits))
    c, low, high = logit_bytes(setup, limits, generation)
    peak = max(forward, logits * c + kept, first_start_bytes(setup, generation))
    reserved = 1.1 if generation.reserved_peak else 1.0
    wide = 1.25 if model.kind in ("dense", "moe", "mla", "embedding") else 1.8
    return Amount(
        round(peak * reserved), "model",
        low=round(0.88 * max(0.85 * forward, logits * low + kept)), high=round(wide * reserved * max(peak, logits * high + kept)),
    )  # fmt: skip


def first_start_bytes(setup: Setup, generation: Generation) -> float:
    """What a start whose torch.compile cache is empty, as in a fresh container, holds for a moment where the peak counts from the process'
    beginning: a copy of the embedding (7 starts of 0.27.1 to 0.30, within 0.03 GiB). With a warm cache, and without compilation, the forward
    pass and the sampler alone make the peak (4 starts)."""
    if not generation.driver_measured or setup.enforce_eager or not uses_v2_runner(setup):
        return 0.0
    return (setup.model.vocab_size or 0) * (setup.model.hidden_size or 0) * 2.0 / setup.tensor_parallel_size


PATCHES_PER_TOKEN: tuple[tuple[str, int], ...] = (("Gemma3", 16), ("Gemma4", 9), ("Llava", 1))
"""Patches that the encoder turns into one token, by the architecture's beginning; 4 for the others (two by two are merged)."""


def encoder_bytes(setup: Setup, limits: Limits) -> float:
    """Peak of V1's multi-modal encoder at its budget: for every patch about thirteen widths of buffers, half of them on every GPU (two starts of
    0.9 on one and two L4; a third of 0.20 agrees), and the embeddings that are kept. Qwen's towers take images of up to 16,384 tokens, whatever
    the budget. Rule of thumb: width from the tower's parameters at 32 layers."""
    model = setup.model
    if limits.engine == "V0" or not model.vision_params_m:
        return 0.0
    native = model.architecture.startswith(("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3_5"))
    tokens = max(limits.max_num_batched_tokens, 16384) if native else limits.max_num_batched_tokens
    patches = next((n for name, n in PATCHES_PER_TOKEN if model.architecture.startswith(name)), 4)
    width = math.sqrt(model.vision_params_m * 1e6 / (12 * 32))
    return 2.0 * tokens * (patches * width * 6.3 * (1 + 1 / setup.tensor_parallel_size) + (model.hidden_size or 0))


def v0_request_bytes(setup: Setup) -> float:
    """What V0 keeps per possible request outside the KV cache: states of linear layers, for Whisper the encoder's buffers over 1500 frames,
    for mllama the profiled images (0.42 GiB each, from one start of 0.6.3)."""
    model = setup.model
    if model.architecture.startswith("Whisper"):
        return 1500 * (4 * (model.hidden_size or 0) + 2 * (model.intermediate_size or 0)) * 2.0
    states = (model.conv_state_bytes_per_seq or 0) + (model.ssm_state_bytes_per_seq or 0)
    return (0.42 * GIB if model.architecture.startswith("Mllama") else 0.0) + states / setup.tensor_parallel_size


def non_torch(setup: Setup, generation: Generation) -> Amount:
    """NCCL, workspaces of cuBLAS and of kernels, and what else the driver holds and PyTorch does not, as far as the budget is charged."""
    row = next(c for c in reversed(NON_TORCH) if Version(c.since) <= version_of(setup) or c is NON_TORCH[0])
    ways, family = setup.tensor_parallel_size, int(setup.capability or 0)
    if setup.device == "rocm":
        value = ROCM_EACH * ways if ways > 1 else ROCM_SINGLE
    elif ways > 1:
        base, each = row.fabric if has_nvlink(setup) else row.bus
        value = base + each * ways
    elif setup.pipeline_parallel_size > 1:
        value = 0.07
    else:
        value = row.single * (0.6 if setup.total_bytes < 60 * GIB else 1.0)  # fewer multiprocessors, smaller workspaces
    if setup.model.linear_type == "gdn":
        value += row.linear[0 if family in (9, 10, 12) else 1]
    if generation.charges_outside:
        value += context(setup).bytes / GIB
    low = 0.5 * value
    if family == 12 and setup.device == "cuda":
        value += first_start_bytes(setup, generation) / GIB  # on these cards that copy stays with the allocator (3 starts)
    return Amount(round(value * GIB), "rule-of-thumb", low=round(low * GIB), high=round((2.0 * value + 0.1) * GIB))


def has_nvlink(setup: Setup) -> bool:
    """Are the GPUs joined by NVLink? Where the card is not known, the large ones."""
    joined = setup.gpu.interconnect.startswith("NVLink") and int(setup.capability or 0) != 7 if setup.gpu else True
    return joined and setup.total_bytes >= (30 if setup.gpu else 60) * GIB


def context(setup: Setup) -> Amount:
    """The process's CUDA context: it exists before vLLM's first snapshot. 0.2 GiB and 0.4 % of the device (7 start-up lines, ±0.2 GiB)."""
    if setup.context_bytes is not None:
        return Amount(setup.context_bytes)
    if setup.device == "cpu":
        return Amount(0)
    value = round(0.2 * GIB + 0.004 * setup.total_bytes)
    return Amount(value, "rule-of-thumb", low=value // 2, high=2 * value)


SPARSE_MLA = ("GlmMoeDsa", "DeepseekV32", "DeepseekV4")
"""Architectures whose attention keeps an index of tokens."""


def graphs(setup: Setup, limits: Limits) -> Amount:
    """CUDA graphs: about 12 MiB per layer and 0.2 GiB, less with fewer capture sizes (n = 12 starts, 0.07 to 2 GiB). vLLM's own estimate,
    which the budget is charged from 0.20, is larger for gated delta nets (21 MiB per layer, 8 starts) and four times that of other models for
    attention with an index (3 starts); it extrapolates from two graphs (vLLM issue 45178)."""
    if setup.enforce_eager or setup.device == "cpu":
        return Amount(0, "model")
    model = setup.model
    largest = min(2 * limits.max_num_seqs, 512)
    sizes = len(setup.cudagraph_capture_sizes or ()) or 3 + largest // (8 if largest <= 256 else 10)
    share = 0.4 + 0.6 * min(sizes / 51, 1.0)
    layers = (model.num_hidden_layers or 32) / setup.pipeline_parallel_size
    value = (0.2 + (0.021 if model.linear_type == "gdn" else 0.012) * layers) * share * (0.6 if uses_v2_runner(setup) else 1.0)
    if model.architecture.startswith(SPARSE_MLA):
        value *= 4.2
    if setup.speculative_tokens:
        value *= 2
    return Amount(round(value * GIB), "rule-of-thumb", low=round(0.4 * value * GIB), high=round(2.5 * value * GIB))
