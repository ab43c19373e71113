"""The arithmetic of memory: what a vLLM server's GPU is spent on, and what fits in what is left.

    size(setup) -> Budget                      a server that has not started: parts, KV cache, tokens, requests (pure)
    kv_bytes_per_token(model, ...) -> float    bytes of KV cache per token and GPU
    requests_that_fit(budget, setup, tokens)   how many requests of a length the KV cache holds at once
    setup_of(run, case, knowledge) -> Setup    the set-up that a log and a launch command show, or what is missing of it
    ledger(run, case, knowledge=None)          a log's own account per GPU, summing to the total: Ledger | None
    solve(setup, quantity, ...) -> Setup       the largest value of an option that fits

Names of models and cards are matched in `names`, generations of the formula are in `generations`. Nothing here reads files or clocks.
"""
