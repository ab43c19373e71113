"""What is wrong with a memory account: figures that no start can have, or a model that is not the log's."""

from __future__ import annotations

from ..language import format_value
from ..model.observations import Issue, Scalar
from .agreement import Conflict
from .kv import groups_of
from .ledger import Ledger

LEAST = {"weights": 0, "activation": -(2**28), "non_torch": -(2**30), "headroom": -(2**31)}
"""Bytes below which a part is impossible: printed figures are rounded to 0.01 GiB, and other processes may free memory while the profile runs
(heuristic)."""
NAMES = {"weights": "weights", "activation": "activations (peak)", "non_torch": "outside PyTorch", "headroom": "left over"}
"""Parts as the account calls them; texts of the program."""
APART = 0.05
"""Two figures for bytes per token that differ by more are of two models or two cache types; less is rounding."""
ROUNDED_WELL = 2**30 // 4
"""KV memory is printed to 0.01 GiB: below this the rounding alone may be 2 %."""


def doubts_of(found: Ledger, language: str, given: bool) -> list[Issue]:
    """Issues of one account. `given`: the model's shape is from a config.json and not of the log's own model."""
    from ..language import translator

    issues = []
    odd = next(((p, v) for a in found.accounts for p, low in LEAST.items() if (v := a.get(p)) is not None and v < low), None)
    if odd is not None:
        text = (
            "The start cannot have gone as the figures say: {part} comes out at {bytes}. The lines are of different starts, or a setting is not "
            "the one in force."
        )
        values: dict[str, Scalar] = {"part": translator(language)(NAMES[odd[0]]), "bytes": format_value(odd[1], "bytes", language)}
        issues.append(Issue("memory.implausible", text, values))
    if found.conflict is not None:
        issues.append(_conflict(found.conflict, language))
    logged, predicted = found.kv_bytes_per_token, found.predicted.kv_bytes_per_token if found.predicted else None
    uniform = found.setup is not None and len(groups_of(found.setup)) == 1
    if given and uniform and logged and predicted and (found.tightest.get("kv") or 0) >= ROUNDED_WELL and abs(predicted / logged - 1) > APART:
        text = "The config.json is not of this model: it gives {given} of KV cache per token, the log {logged}. The account follows the log."
        sizes: dict[str, Scalar] = {"given": format_value(predicted, "bytes", language), "logged": format_value(logged, "bytes", language)}
        issues.append(Issue("model-config", text, sizes))
    return issues


def _conflict(odd: Conflict, language: str) -> Issue:
    """Tokens in the pool that its bytes, or the number of long requests, contradict."""
    values: dict[str, Scalar] = {"tokens": format_value(odd.tokens, "tokens", language)}
    if odd.bytes is not None:
        text = "The KV cache cannot hold {tokens} in {bytes}: these figures contradict each other, and neither is used to say how many requests fit."
        values["bytes"] = format_value(odd.bytes, "bytes", language)
    else:
        text = (
            "The KV cache cannot hold {tokens} and {concurrency} requests of {length}: these figures contradict each other, and neither is used to "
            "say how many requests fit."
        )
        values |= {"concurrency": f"{odd.concurrency:g}", "length": format_value(odd.length, "tokens", language)}
    return Issue("memory.contradiction", text, values, odd.ref)
