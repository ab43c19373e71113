"""Which formula sizes the KV cache in which version: data, with the file of vLLM that it was read in.

V0-a              T·U − (T − free after profiling)                 other processes and the context count as own peak
V0-b              T·U − (free at start − free after profiling)     reserved memory counts, not only allocated
V0-b′, V1-a       T·U − peak − max(0, non-torch)                   non-torch = all that is not PyTorch's: others are charged too
V0-c, V1-b, V1-c  T·U − (weights + peak activation + non-torch)    increase since the start-up snapshot
V1-d              the same − estimated CUDA graphs
V1-e              T·U − consumed − peak activation − estimated graphs       consumed is measured from the driver
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ..versions import FIRST_WITH_V1, FIRST_WITHOUT_V0, parse
from .setup import Setup

Engine = Literal["V0", "V1"]


class Generation(Struct, frozen=True):
    """One way to size the KV cache. `since` and `until` are the releases between which it was read; a release between two entries belongs
    to the earlier one.

    `charges_outside`: memory of others and the CUDA context count against the budget. `reserved_peak`: the allocator's reserve counts,
    not only live tensors. `nccl_in_budget`: communicators are created after the snapshot. `graphs_in_budget`: their estimate is
    subtracted."""

    name: str
    engine: Engine
    since: str
    until: str
    source: str
    charges_outside: bool = False
    reserved_peak: bool = False
    nccl_in_budget: bool = True
    graphs_in_budget: bool = False
    driver_measured: bool = False


GENERATIONS: tuple[Generation, ...] = (
    Generation("V0-a", "V0", "0.2.7", "0.3.2", "vllm/worker/worker.py, 0.2.7", charges_outside=True, reserved_peak=True),
    Generation("V0-b", "V0", "0.3.3", "0.6.3", "vllm/worker/worker.py, 0.3.3 to 0.6.3", reserved_peak=True),
    Generation("V0-b′", "V0", "0.6.4", "0.6.4", "vllm/worker/worker.py, 0.6.4", charges_outside=True),
    Generation("V0-c", "V0", "0.6.5", "0.10.2", "vllm/worker/worker.py, 0.6.6 to 0.10.2; 0.6.5: what a start printed (pull request 10511)"),
    Generation("V1-0", "V1", "0.6.4", "0.6.5", "vllm/v1/worker/gpu_worker.py, 0.6.4: as V0-b", reserved_peak=True),
    Generation("V1-a", "V1", "0.6.6", "0.9.0.1", "vllm/v1/worker/gpu_worker.py, 0.6.6 to 0.9.0.1", charges_outside=True),
    Generation("V1-b", "V1", "0.9.1", "0.10.2", "vllm/v1/worker/gpu_worker.py, 0.9.1 to 0.10.2"),
    Generation("V1-b", "V1", "0.11.0", "0.17.1", "vllm/v1/worker/gpu_worker.py, 0.11.0 to 0.17.1", nccl_in_budget=False),
    Generation("V1-c", "V1", "0.18.0", "0.19.1", "vllm/v1/worker/gpu_worker.py, 0.18.1 and 0.19.1", nccl_in_budget=False),
    Generation("V1-d", "V1", "0.20.0", "0.26", "vllm/v1/worker/gpu_worker.py, 0.20.0 to 0.26", nccl_in_budget=False, graphs_in_budget=True),
    Generation(
        "V1-e", "V1", "0.27.0", "0.33.0", "vllm/v1/worker/gpu_worker.py, 0.28 to 0.33; what starts of 0.27.1 print",
        nccl_in_budget=False, graphs_in_budget=True, driver_measured=True,
    ),
)  # fmt: skip


def release_of(text: str | None) -> Version | None:
    """The release in a version as people write it (`v0.9.1`, `0.7.0 (V1)`, `0.11.x`, `0.6.4.dev8+g1`), or None."""
    found = re.match(r"\s*v?(\d+\.\d+(?:\.\d+){0,2}(?:\.?(?:post|rc|dev|a|b)\d+)*)", text or "")
    return parse(found[1]) if found else None


def generation_of(version: str | None, engine: Engine) -> Generation:
    """The formula of a version; the newest of the engine where the version is unknown."""
    own = [g for g in GENERATIONS if g.engine == engine]
    known = release_of(version)
    if known is None:
        return own[-1]
    base = Version(known.base_version)
    return next((g for g in reversed(own) if Version(g.since) <= base), own[0])


NO_V1_BEFORE: tuple[tuple[str, str], ...] = (
    ("0.11.0", "encoder-decoder"),  # vllm/engine/arg_utils.py, _is_v1_supported_oracle
    ("0.10.0", "hybrid"),
    ("0.9.2", "embedding"),
)
"""Kinds of models that fell back to V0 before the release named."""


def engine_of(setup: Setup) -> Engine:
    """The engine that a set-up gets: as stated, or what its version chooses. V1 is the default from 0.8.0, and alone from 0.11.0;
    between, what V1 lacked went to V0 (vllm/engine/arg_utils.py, 0.8.0 to 0.10.2)."""
    if setup.engine_generation:
        return setup.engine_generation
    if setup.version and "V0" in setup.version:
        return "V0"
    if setup.version and "V1" in setup.version:
        return "V1"
    version = release_of(setup.version)
    if version is None or version >= FIRST_WITHOUT_V0:
        return "V1"
    base = Version(version.base_version)
    if base < FIRST_WITH_V1 or base < Version("0.8.0"):
        return "V0"
    if setup.capability is not None and setup.capability < 8.0:
        return "V0"
    if base < Version("0.8.2") and (setup.kv_cache_dtype != "auto" or setup.cpu_offload_bytes):
        return "V0"
    if setup.device == "cpu" and base < Version("0.9.1"):
        return "V0"
    if setup.device == "rocm" and base < Version("0.8.5"):
        return "V0"
    return "V0" if any(base < Version(until) and setup.model.kind == kind for until, kind in NO_V1_BEFORE) else "V1"


_FIRST_V2 = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")


def uses_v2_runner(setup: Setup) -> bool:
    """Does the version choose the second model runner for this model? It profiles logits but no sampler, and up to 0.27 estimates no
    graphs (flag VLLM_USE_V2_MODEL_RUNNER; logs of 0.25 to 0.33)."""
    version = release_of(setup.version)
    if version is None or version >= Version("0.29"):
        return True
    if version < Version("0.23"):
        return False
    if version < Version("0.25.1"):
        return setup.model.architecture in _FIRST_V2 and setup.quantization is None
    return setup.model.kind == "dense"
