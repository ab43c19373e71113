"""What a finding is about, in the quantities that effects are stated in: the effect that answers it comes first."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.judgement import Judgement
from ..model.report import Effect

_MEMORY = ("memory.oom_shortfall", "memory.reserved_unused")
_POOL = ("kv_cache.demand", "kv_cache.tokens")
_START = ("kv_cache.tokens", "requests.fit.max_model_len", "request.max_length")
_STEP = ("step.duration", "latency.itl.p99", "step.tokens", "prefill.steps")
_QUEUE = ("requests.waiting", "requests.limit", "requests.fit.p50", "kv_cache.demand")

CONCERNS: dict[str, tuple[str, ...]] = {
    "allocator-fragmentation": ("memory.reserved_unused", "memory.oom_shortfall"),
    "client-backpressure": ("stream.chunks",),
    "cudagraph-oom": _MEMORY,
    "host-oom": ("memory.host",),
    "kv-cache-exhaustion": _POOL,
    "max-num-seqs-limited": _QUEUE,
    "mm-encoder-oom": _MEMORY,
    "orderly-shutdown": ("requests.cut",),
    "other-process-on-gpu": _MEMORY,
    "prefill-spike": _STEP,
    "profile-oom": (*_MEMORY, *_START),
    "queue-full-rejections": _QUEUE,
    "queue-overload": _QUEUE,
    "request-exceeds-kv": ("request.max_length", "requests.fit.max_model_len", "kv_cache.tokens"),
    "runtime-activation-oom": _MEMORY,
    "sampler-logits-oom": _MEMORY,
    "startup-free-memory-taken": ("memory.outside_budget",),
    "startup-kv-too-small": _START,
    "startup-weights-too-large": _START,
}
"""By cause, what its remedies are to change, the most telling first."""


def by_concern(finding: Judgement, effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """The effects with what the finding is about first; the others stay in their order."""
    first = _MEMORY if finding.variant == "oom" else CONCERNS.get(finding.cause, ())
    return tuple(sorted(effects, key=lambda e: first.index(e.quantity) if e.quantity in first else len(first)))
