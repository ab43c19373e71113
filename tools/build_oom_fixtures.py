#!/usr/bin/env python3
"""Writes the six GPU out-of-memory fixtures: fragmentation, a near miss of it, another process; in two wordings each.

    tools/build_oom_fixtures.py [--into fixtures]

The lines follow what vLLM 0.8.5 (torch 2.6) and 0.14.1 (torch 2.9.1) print; the server, its figures and ids are invented. The
figures are computed here from one memory account per case, so that they agree with each other as a real server's would:
budget = total x utilisation; KV = budget - weights - activation - non-torch; in use = allocated + reserved + context.
"""

# ruff: noqa: E501  the lines of a log are as long as they are

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
TOTAL = 44.39
WEIGHTS, ACTIVATION, NON_TORCH = 14.99, 1.42, 0.06
BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2
"""K and V, 32 layers, 8 KV heads of 128, 2 bytes: an 8B dense model."""
MAX_LEN, BLOCK = 32768, 16
MODEL = "example-org/dense-8b"


@dataclass(frozen=True)
class Case:
    """One account, in GiB except `tried` and `reserved` (MiB) and `free` (MiB)."""

    name: str
    expect: str
    accept: tuple[str, ...]
    utilization: float
    tried: float
    free: float
    extra_allocated: float
    reserved: float
    foreign: float
    evidence: str


CASES = (
    Case("oom-fragmentation", "allocator-fragmentation", ("runtime-activation-oom",), 0.90, 196.0, 151.06, 0.71, 4116.48, 0.0,
         "4.02 GiB reserved but unallocated, 196 MiB asked for"),
    Case("oom-near-miss", "runtime-activation-oom", ("prefill-spike",), 0.95, 448.0, 214.19, 1.31, 310.44, 0.0,
         "310 MiB reserved but unallocated is less than the 448 MiB asked for: a true shortage"),
    Case("oom-foreign-process", "other-process-on-gpu", ("runtime-activation-oom",), 0.85, 196.0, 62.06, 0.41, 153.60, 6.73,
         "6.73 GiB of the card belong to nobody in this log"),
)  # fmt: skip


def size(mib: float) -> str:
    return f"{mib:.2f} MiB" if mib < 1024 else f"{mib / 1024:.2f} GiB"


def kv(case: Case) -> tuple[float, int]:
    """KV pool in GiB and in tokens, whole blocks."""
    gib = round(TOTAL * case.utilization, 2) - WEIGHTS - ACTIVATION - NON_TORCH
    return round(gib, 2), int(gib * GIB / BYTES_PER_TOKEN) // BLOCK * BLOCK


def sentence(case: Case, hint: str, link: str, named: bool) -> str:
    """PyTorch's sentence. `named`: the driver could name the other process (not from inside a container)."""
    pool, _ = kv(case)
    allocated = WEIGHTS + pool + case.extra_allocated
    own = TOTAL - case.free / 1024 - case.foreign
    other = f"Process 4127 has {case.foreign:.2f} GiB memory in use. " if case.foreign and named else ""
    return (
        f"CUDA out of memory. Tried to allocate {size(case.tried)}. GPU 0 has a total capacity of {TOTAL:.2f} GiB of which {size(case.free)} is free. {other}"
        f"Including non-PyTorch memory, this process has {own:.2f} GiB memory in use. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, "
        f"and {size(case.reserved)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        f"{hint}=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  ({link})"
    )


FRAMES = (
    ("v1/engine/core.py", "run_busy_loop", "self._process_engine_step()"),
    ("v1/engine/core.py", "step", "output = self.model_executor.execute_model(scheduler_output)"),
    ("v1/worker/gpu_worker.py", "execute_model", "output = self.model_runner.execute_model(scheduler_output)"),
    ("v1/worker/gpu_model_runner.py", "execute_model", "model_output = self.model("),
    ("model_executor/models/llama.py", "forward", "x, _ = self.gate_up_proj(x)"),
    ("model_executor/layers/linear.py", "forward", "output_parallel = self.quant_method.apply(self, input_, bias)"),
)
LINE_NUMBERS = {"0.8.5.post1": (455, 224, 246, 1077, 92, 474), "0.14.1": (886, 342, 624, 3022, 115, 581)}


def traceback(version: str, error: str) -> list[str]:
    lines = ["EngineCore encountered a fatal error.", "Traceback (most recent call last):"]
    for (file, function, code), number in zip(FRAMES, LINE_NUMBERS[version], strict=True):
        lines += [f'  File "/usr/local/lib/python3.12/dist-packages/vllm/{file}", line {number}, in {function}', f"    {code}"]
    return [*lines, f"torch.OutOfMemoryError: {error}"]


def stats(at: str, prefix: str, source: str, running: int, usage: float, prompt: float, generation: float) -> str:
    return (
        f"{prefix}INFO {at} [{source}] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {generation} tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: {usage}%, Prefix cache hit rate: 22.4%"
    )


SERVING = [
    ("09:21:05", 31, 24.2, 1711.4, 604.9),
    ("09:21:15", 35, 27.9, 1840.2, 655.3),
    ("09:21:25", 34, 27.1, 1788.6, 661.0),
    ("09:21:35", 36, 28.6, 1902.7, 648.2),
]


def access(prefix: str, count: int) -> list[str]:
    return [f'{prefix}INFO:     127.0.0.1:{40112 + 14 * i} - "POST /v1/chat/completions HTTP/1.1" 200 OK' for i in range(count)]


def log_085(case: Case) -> str:
    """vLLM 0.8.5.post1: no process tags without data parallelism."""
    _, tokens = kv(case)
    day = "05-12"
    lines = [
        f"INFO {day} 09:14:02 [__init__.py:239] Automatically detected platform cuda.",
        f"INFO {day} 09:14:05 [api_server.py:1043] vLLM API server version 0.8.5.post1",
        f"INFO {day} 09:14:05 [api_server.py:1044] args: Namespace(host='127.0.0.1', port=8000, model='{MODEL}', dtype='auto', kv_cache_dtype='auto', "
        f"max_model_len={MAX_LEN}, tensor_parallel_size=1, gpu_memory_utilization={case.utilization}, max_num_batched_tokens=8192, max_num_seqs=128, enforce_eager=False)",
        f"INFO {day} 09:14:13 [config.py:2003] Chunked prefill is enabled with max_num_batched_tokens=8192.",
        f"INFO {day} 09:14:19 [core.py:58] Initializing a V1 LLM engine (v0.8.5.post1) with config: model='{MODEL}', speculative_config=None, tokenizer='{MODEL}', "
        f"dtype=torch.bfloat16, max_seq_len={MAX_LEN}, load_format=auto, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, "
        "kv_cache_dtype=auto,  device_config=cuda, seed=None, enable_prefix_caching=True, chunked_prefill_enabled=True, use_async_output_proc=True",
        f"INFO {day} 09:14:21 [cuda.py:221] Using Flash Attention backend on V1 engine.",
        f"INFO {day} 09:14:21 [gpu_model_runner.py:1329] Starting to load model {MODEL}...",
        f"INFO {day} 09:14:26 [loader.py:458] Loading weights took 3.61 seconds",
        f"INFO {day} 09:14:26 [gpu_model_runner.py:1347] Model loading took {WEIGHTS:.4f} GiB and 5.112233 seconds",
        f"INFO {day} 09:14:48 [kv_cache_utils.py:634] GPU KV cache size: {tokens:,} tokens",
        f"INFO {day} 09:14:48 [kv_cache_utils.py:637] Maximum concurrency for {MAX_LEN:,} tokens per request: {tokens / MAX_LEN:.2f}x",
        f"INFO {day} 09:15:10 [gpu_model_runner.py:1686] Graph capturing finished in 22 secs, took 0.54 GiB",
        f"INFO {day} 09:15:10 [core.py:159] init engine (profile, create kv cache, warmup model) took 44.31 seconds",
        f"INFO {day} 09:15:11 [api_server.py:1090] Starting vLLM API server on http://127.0.0.1:8000",
        "INFO:     Started server process [1]",
        "INFO:     Waiting for application startup.",
        "INFO:     Application startup complete.",
    ]
    for at, running, usage, prompt, generation in SERVING:
        lines += [*access("", 6), stats(f"{day} {at}", "", "loggers.py:87", running, usage, prompt, generation)]
    error = sentence(case, "PYTORCH_CUDA_ALLOC_CONF", "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables", named=True)
    lines += [f"ERROR {day} 09:21:39 [core.py:398] {line}" for line in traceback("0.8.5.post1", error)]
    lines += [
        f"ERROR {day} 09:21:39 [async_llm.py:399] AsyncLLM output_handler failed.",
        f"ERROR {day} 09:21:39 [async_llm.py:399] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        'INFO:     127.0.0.1:40252 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
        "INFO:     Shutting down",
        "INFO:     Waiting for application shutdown.",
        "INFO:     Application shutdown complete.",
        "INFO:     Finished server process [1]",
    ]
    return "\n".join(lines) + "\n"


def log_0141(case: Case) -> str:
    """vLLM 0.14.1: tagged processes, rounded sizes, the newer hint."""
    pool, tokens = kv(case)
    day, api, core = "01-28", "(APIServer pid=1) ", "(EngineCore_DP0 pid=102) "
    lines = [
        f"{api}INFO {day} 09:14:05 [api_server.py:1272] vLLM API server version 0.14.1",
        f"{api}INFO {day} 09:14:05 [utils.py:263] non-default args: {{'model_tag': '{MODEL}', 'host': '127.0.0.1', 'model': '{MODEL}', 'max_model_len': {MAX_LEN}, "
        f"'gpu_memory_utilization': {case.utilization}, 'max_num_batched_tokens': 8192, 'max_num_seqs': 128}}",
        f"{api}INFO {day} 09:14:12 [model.py:1566] Using max model len {MAX_LEN}",
        f"{api}INFO {day} 09:14:12 [scheduler.py:229] Chunked prefill is enabled with max_num_batched_tokens=8192.",
        f"{core}INFO {day} 09:14:19 [core.py:97] Initializing a V1 LLM engine (v0.14.1) with config: model='{MODEL}', speculative_config=None, tokenizer='{MODEL}', "
        f"dtype=torch.bfloat16, max_seq_len={MAX_LEN}, load_format=auto, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, "
        "enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, enable_prefix_caching=True, enable_chunked_prefill=True",
        f"{core}INFO {day} 09:14:21 [cuda.py:315] Using FLASH_ATTN attention backend out of potential backends: ('FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN')",
        f"{core}INFO {day} 09:14:21 [gpu_model_runner.py:3710] Starting to load model {MODEL}...",
        f"{core}INFO {day} 09:14:26 [default_loader.py:291] Loading weights took 3.61 seconds",
        f"{core}INFO {day} 09:14:26 [gpu_model_runner.py:3807] Model loading took {WEIGHTS:.2f} GiB memory and 5.112233 seconds",
        f"{core}INFO {day} 09:14:48 [gpu_worker.py:358] Available KV cache memory: {pool} GiB",
        f"{core}INFO {day} 09:14:48 [kv_cache_utils.py:1305] GPU KV cache size: {tokens:,} tokens",
        f"{core}INFO {day} 09:14:48 [kv_cache_utils.py:1310] Maximum concurrency for {MAX_LEN:,} tokens per request: {tokens / MAX_LEN:.2f}x",
        f"{core}INFO {day} 09:15:10 [gpu_model_runner.py:4680] Graph capturing finished in 22 secs, took 0.54 GiB",
        f"{core}INFO {day} 09:15:10 [core.py:273] init engine (profile, create kv cache, warmup model) took 44.31 seconds",
        f"{api}INFO {day} 09:15:11 [api_server.py:1014] Starting vLLM API server 0 on http://127.0.0.1:8000",
        f"{api}INFO:     Started server process [1]",
        f"{api}INFO:     Waiting for application startup.",
        f"{api}INFO:     Application startup complete.",
    ]
    for at, running, usage, prompt, generation in SERVING:
        lines += [*access(api, 6), stats(f"{day} {at}", api, "loggers.py:257", running, usage, prompt, generation)]
    error = sentence(case, "PYTORCH_ALLOC_CONF", "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables", named=False)
    lines += [f"{core}ERROR {day} 09:21:39 [core.py:944] {line}" for line in traceback("0.14.1", error)]
    lines += [
        f"{api}ERROR {day} 09:21:39 [async_llm.py:639] AsyncLLM output_handler failed.",
        f"{api}ERROR {day} 09:21:39 [async_llm.py:639] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        f'{api}INFO:     127.0.0.1:40252 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
        f"{api}INFO:     Shutting down",
        f"{api}INFO:     Waiting for application shutdown.",
        f"{api}INFO:     Application shutdown complete.",
        f"{api}INFO:     Finished server process [1]",
    ]
    return "\n".join(lines) + "\n"


WORDINGS = (("0.8.5", "0.8.5.post1", log_085), ("0.14", "0.14.1", log_0141))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(__file__).resolve().parent.parent / "fixtures")
    into: Path = parser.parse_args().into
    for case in CASES:
        for short, version, build in WORDINGS:
            folder = into / f"{case.name}-{short}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "server.log").write_text(build(case), encoding="utf-8")
            accept = "\n".join(f"- {name}" for name in case.accept)
            (folder / "case.yaml").write_text(
                f"vllm_version: {version}\nexpect: {case.expect}\naccept:\n{accept}\nalso: []\nconfidence: 1\nevidence:\n- {case.evidence}\n"
                "input: rebuilt from the wordings of vLLM and PyTorch; figures invented and consistent\n",
                encoding="utf-8",
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
