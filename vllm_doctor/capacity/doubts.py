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
MUCH_LESS, SHARE = 2**30, 0.1
"""A GPU is told from the others where it lacks this much, in bytes and as a share of what the others have: less is the first rank's own overhead
(heuristic)."""
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
    short = _short(found, language)
    if short is not None:
        issues.append(short)
    if found.conflict is not None:
        issues.append(_conflict(found.conflict, language))
    logged, predicted = found.kv_bytes_per_token, found.predicted.kv_bytes_per_token if found.predicted else None
    uniform = found.setup is not None and len(groups_of(found.setup)) == 1
    if given and uniform and logged and predicted and (found.tightest.get("kv") or 0) >= ROUNDED_WELL and abs(predicted / logged - 1) > APART:
        text = "The config.json is not of this model: it gives {given} of KV cache per token, the log {logged}. The account follows the log."
        sizes: dict[str, Scalar] = {"given": format_value(predicted, "bytes", language), "logged": format_value(logged, "bytes", language)}
        issues.append(Issue("model-config", text, sizes))
    return issues


def _short(found: Ledger, language: str) -> Issue | None:
    """One GPU of several has much less for the KV cache than its like, and the engine gives every one as little. What the weights take in its
    stead is no matter: stages of a pipeline differ. None where they are alike, or where it is not known which GPU it is."""
    rooms: dict[int, int] = {}
    known = [a for a in found.accounts if a.gpu is not None and a.get("kv") is not None]
    weighed = all(a.get("weights") is not None for a in known)
    for account in known:
        rooms[account.gpu or 0] = (account.get("kv") or 0) + ((account.get("weights") or 0) if weighed else 0)
    if len(rooms) < 2 or len(rooms) < len(known):
        return None
    least = min(rooms, key=lambda gpu: rooms[gpu])
    others = sorted(room for gpu, room in rooms.items() if gpu != least)
    missing = others[0] - rooms[least]
    kv = {a.gpu: a.get("kv") or 0 for a in known}
    if missing < max(MUCH_LESS, SHARE * others[0]) or kv[least] > min(kv.values()):
        return None
    text = (
        "GPU {gpu} has {kv} for the KV cache and the others at least {others}: the engine uses no more than the smallest on each. Something that is "
        "not the weights takes {missing} more on GPU {gpu}: look at what holds it there (nvidia-smi), before any option is changed."
    )
    ref = next(a.entries["kv"].refs for a in known if a.gpu == least)
    values: dict[str, Scalar] = {
        "gpu": least,
        "kv": format_value(kv[least], "bytes", language),
        "others": format_value(min(v for gpu, v in kv.items() if gpu != least), "bytes", language),
        "missing": format_value(missing, "bytes", language),
    }
    return Issue("memory.uneven", text, values, ref[0] if ref else None)


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
