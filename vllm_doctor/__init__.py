"""vllm-doctor: says why a vLLM server crashed, stalls, queues or is slow, from its logs and metrics."""

from __future__ import annotations

__version__ = "0.1.0"
