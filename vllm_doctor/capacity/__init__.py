"""The arithmetic of memory: what a vLLM server's GPU is spent on, and what fits in what is left.

    size(setup) -> Budget                                  a server that has not started: parts, KV cache, tokens (pure)
    kv_bytes_per_token(model, ...) -> float                bytes of KV cache per token and GPU
    requests_that_fit(budget, setup, tokens) -> float      how many requests of a length the KV cache holds at once
    setup_of(run, case, knowledge) -> Setup | None         the set-up that a log and a launch command show, with its measured parts
    ledger(run, case, knowledge=None) -> Ledger | None     a log's own account per GPU, summing to the total

Names of models and cards are matched in `names`, generations of the formula are in `generations`, estimates and where they come from in
`estimates`. Nothing here reads files or clocks.
"""

from .kv import kv_bytes_per_token
from .setup import Amount, Budget, Setup
from .size import requests_that_fit, size

__all__ = ["Amount", "Budget", "Setup", "kv_bytes_per_token", "requests_that_fit", "size"]
