"""What the effect of a remedy may be stated in: the closed list of `Effect.quantity`, each with its unit and its name for people.

The names are texts of the program: English here, Chinese in the catalogue.
"""

from __future__ import annotations

from msgspec import Struct


class Quantity(Struct, frozen=True):
    """`unit` is a catalogue unit; `text` the English name."""

    unit: str
    text: str


QUANTITIES: dict[str, Quantity] = {
    "kv_cache.tokens": Quantity("tokens", "KV cache"),
    "requests.fit.p50": Quantity("count", "requests of the usual length that run at once"),
    "requests.fit.p95": Quantity("count", "requests of the length only 5 % exceed that run at once"),
    "requests.fit.max_model_len": Quantity("count", "requests of the longest allowed length that run at once"),
    "kv_cache.demand": Quantity("ratio", "preemption risk (KV cache needed at the peak)"),
    "kv_cache.reserve": Quantity("tokens", "kept free when a request is admitted"),
    "requests.limit": Quantity("count", "requests that may run at once"),
    "request.max_length": Quantity("tokens", "longest request that is accepted"),
    "request.max_tokens": Quantity("tokens", "max_tokens that a request may ask for"),
    "memory.headroom": Quantity("bytes", "headroom against OOM (GPU memory that nothing claims)"),
    "memory.outside_budget": Quantity("bytes", "GPU memory outside vLLM's budget"),
    "memory.oom_shortfall": Quantity("bytes", "missing when the allocation failed"),
    "memory.reserved_unused": Quantity("bytes", "reserved by PyTorch but not usable"),
    "memory.host": Quantity("bytes", "host memory"),
    "step.tokens": Quantity("tokens", "largest engine step"),
    "step.duration": Quantity("s", "longest engine step"),
    "latency.itl.p99": Quantity("s", "gap between two tokens, 99th percentile"),
    "prefill.steps": Quantity("count", "steps to prefill the longest prompt"),
    "requests.waiting": Quantity("count", "requests waiting at the peak"),
    "requests.cut": Quantity("count", "streams cut at a stop"),
    "stream.chunks": Quantity("count", "chunks sent for 100 tokens"),
}
