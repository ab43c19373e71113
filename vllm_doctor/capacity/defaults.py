"""The options that a set-up leaves open, as each version fills them in (knowledge/flags.yaml says the same in words).

Sources: vllm/engine/arg_utils.py and vllm/config.py of the releases named.
"""

from __future__ import annotations

from msgspec import Struct
from packaging.version import Version

from ..versions import NEWEST
from .generations import Engine, engine_of, release_of
from .setup import GIB, Setup

LONG_CONTEXT = 32768
"""Above this length V0 0.5.5 to 0.10.2 switched chunked prefill on by itself."""


class Limits(Struct, frozen=True):
    """What is in force. Lengths and budgets in tokens."""

    engine: Engine
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool
    block_size: int


def limits_of(setup: Setup) -> Limits:
    """Given options, and the version's defaults for the others."""
    engine, version = engine_of(setup), version_of(setup)
    length = setup.max_model_len or setup.model.max_position_embeddings or 8192
    large = large_gpu(setup, engine, version)
    seqs = setup.max_num_seqs or _seqs(setup, engine, version, large)
    chunked = _chunked(setup, engine, version, length)
    tokens = setup.max_num_batched_tokens or _tokens(setup, engine, version, large, chunked, length)
    if setup.max_num_batched_tokens is None and engine == "V1" and version >= Version("0.11.1"):
        tokens = max(min(tokens, seqs * length), 1)
    if setup.max_num_seqs is None and engine == "V1" and version >= Version("0.10.1"):
        seqs = min(seqs, tokens)
    if not chunked:
        tokens = max(tokens, length)
    utilization = setup.gpu_memory_utilization
    if utilization is None:
        utilization = 0.92 if version >= Version("0.20") else 0.9
    return Limits(engine, utilization, length, seqs, tokens, chunked, setup.block_size or 16)


def version_of(setup: Setup) -> Version:
    """The version as a value; the newest one read where it is unknown."""
    known = release_of(setup.version)
    return NEWEST if known is None else Version(known.base_version)


UNIFIED = ("gb10", "thor", "orin", "jetson")
"""GPUs that share the host's memory: NVML reports none for them, which vLLM takes for a small card (starts of 0.10.2, 0.13 and 0.27.1 with 2,048
tokens a step and full graphs up to 256; from 0.33.0 the GB10 is named in vllm/engine/arg_utils.py)."""


def large_gpu(setup: Setup, engine: Engine, version: Version) -> bool:
    """Does this version give the card the defaults of large GPUs? By name (0.7.3 to 0.8.4), by size (0.8.5), by size without the A100
    (0.9.0 and later)."""
    name = setup.gpu.name.lower() if setup.gpu else ""
    if engine == "V0" or version < Version("0.7.3"):
        return False
    if version < Version("0.8.5"):
        return any(word in name for word in ("h100", "h200"))
    if any(word in name for word in UNIFIED) or (version >= Version("0.9.0") and "a100" in name):
        return False
    return setup.total_bytes >= 70 * GIB


def _seqs(setup: Setup, engine: Engine, version: Version, large: bool) -> int:
    if setup.device == "cpu" and engine == "V1" and version >= Version("0.9.2"):
        return 256 if setup.offline else 128
    if engine == "V0" or version < Version("0.6.6"):
        return 256
    if version < Version("0.8.4"):
        return 1024
    return 1024 if large else 256


def _chunked(setup: Setup, engine: Engine, version: Version, length: int) -> bool:
    if engine == "V1":
        if version < Version("0.11.1"):
            return True  # the option cannot switch it off for generative models
        return setup.enable_chunked_prefill is not False
    if setup.enable_chunked_prefill is not None:
        return setup.enable_chunked_prefill
    model = setup.model
    if setup.capability is not None and setup.capability < 8.0:
        return False  # a V100 with 40,000 tokens profiled all of them at once (0.6.4)
    plain = model.kind in ("dense", "moe", "mla") and not model.sliding_window and setup.draft is None
    return version >= Version("0.5.5") and length > LONG_CONTEXT and plain


def _tokens(setup: Setup, engine: Engine, version: Version, large: bool, chunked: bool, length: int) -> int:
    if engine == "V0":
        if chunked:
            return 2048 if version >= Version("0.6.6") else 512
        floor = 2048
        if setup.model.kind == "vlm" and version >= Version("0.6.0"):
            floor = 5120 if version >= Version("0.6.1") else 4096
        if setup.model.kind == "embedding" and version >= Version("0.6.0"):
            floor = 32768
        return max(length, floor)
    if setup.total_bytes >= 160 * GIB and version >= Version("0.28"):
        return 16384
    if large:
        return 16384 if setup.offline else 8192
    return 8192 if setup.offline else 2048
