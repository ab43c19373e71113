"""The start command: the options that the figures rest on, in the spelling of the version."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping

from packaging.version import Version

from ..versions import FIRST_WITHOUT_V0, NEWEST
from .defaults import version_of
from .generations import release_of
from .setup import GIB, Setup

FIRST_SERVE = Version("0.5.5")
"""First release read that has `vllm serve`; before, the module of the server is started."""
FIRST_NO_CHUNKED = Version("0.9.0")
"""First release read with --no-enable-chunked-prefill; from 0.5.5 the option took a word instead, before it was off by default."""
FIRST_CONFIG = Version("0.8.2")
"""First release read with --speculative-config."""


def options_of(setup: Setup) -> dict[str, str]:
    """Every option of the set-up that is not at its default, by name. A switch has the value `true`."""
    version = version_of(setup)
    sizes = {
        "--tensor-parallel-size": setup.tensor_parallel_size, "--pipeline-parallel-size": setup.pipeline_parallel_size,
        "--decode-context-parallel-size": setup.decode_context_parallel_size, "--data-parallel-size": setup.data_parallel_size,
    }  # fmt: skip
    found = {name: str(value) for name, value in sizes.items() if value > 1}
    if setup.gpu_memory_utilization is not None:
        found["--gpu-memory-utilization"] = f"{setup.gpu_memory_utilization:g}"
    counts = {
        "--max-model-len": setup.max_model_len, "--max-num-seqs": setup.max_num_seqs, "--max-num-batched-tokens": setup.max_num_batched_tokens,
        "--kv-cache-memory-bytes": setup.kv_cache_memory_bytes, "--block-size": setup.block_size,
        "--num-gpu-blocks-override": setup.num_gpu_blocks_override,
    }  # fmt: skip
    found |= {name: str(value) for name, value in counts.items() if value}
    if setup.cpu_offload_bytes:
        gib = setup.cpu_offload_bytes / GIB
        found["--cpu-offload-gb"] = f"{gib:g}" if version >= FIRST_SERVE else str(math.ceil(gib))
    for name, kind in (("--dtype", setup.dtype), ("--kv-cache-dtype", setup.kv_cache_dtype)):
        if kind != "auto":
            found[name] = kind
    switches = {
        "--enforce-eager": setup.enforce_eager, "--enable-expert-parallel": setup.enable_expert_parallel,
        "--disable-hybrid-kv-cache-manager": setup.disable_hybrid_kv_cache_manager, "--enable-chunked-prefill": setup.enable_chunked_prefill is True,
    }  # fmt: skip
    found |= {name: "true" for name, on in switches.items() if on}
    if setup.enable_chunked_prefill is False:
        if version >= FIRST_NO_CHUNKED:
            found["--no-enable-chunked-prefill"] = "true"
        elif version >= FIRST_SERVE:
            found["--enable-chunked-prefill"] = "False"
    return found


def speculation(setup: Setup, draft: str | None) -> dict[str, str]:
    """Options for draft tokens; `draft` is the draft model as the user named it."""
    import json

    if not setup.speculative_tokens:
        return {}
    if version_of(setup) < FIRST_CONFIG:
        own = {"--speculative-model": draft} if draft else {}
        return {**own, "--num-speculative-tokens": str(setup.speculative_tokens)}
    config = {**({"model": draft} if draft else {}), "num_speculative_tokens": setup.speculative_tokens}
    return {"--speculative-config": json.dumps(config)}


def command_of(setup: Setup, model: str, flags: Mapping[str, str], others: Iterable[str] = ()) -> str:
    """One line for a shell (for Python where the set-up is offline). Everything the user typed is quoted."""
    if setup.offline:
        given = [repr(model), *(_argument(name, value) for name, value in flags.items())]
        return " ".join([*_engine(setup), f"LLM({', '.join(given)})"])
    version = version_of(setup)
    start = ["vllm", "serve", model] if version >= FIRST_SERVE else ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    words = start + [word for name, value in flags.items() for word in ((name,) if value == "true" else (name, value))]
    return " ".join([*_engine(setup), *(shlex.quote(w) for w in (*words, *others))])


def _argument(name: str, value: str) -> str:
    key, off = name.lstrip("-").replace("-", "_"), name.startswith("--no-")
    if value == "true":
        return f"{key.removeprefix('no_')}={not off}"
    if name == "--speculative-config":
        return f"{key}={value}"
    plain = re.fullmatch(r"\d+(\.\d+)?|True|False", value)
    return f"{key}={value if plain else repr(value)}"


def _engine(setup: Setup) -> list[str]:
    """The variable that chooses an engine, where the version has both and the set-up names one."""
    version = release_of(setup.version) or NEWEST
    if setup.engine_generation is None or not Version("0.6.4") <= Version(version.base_version) < FIRST_WITHOUT_V0:
        return []
    return [f"VLLM_USE_V1={int(setup.engine_generation == 'V1')}"]
