"""Do the figures that a log prints of its KV cache agree? The same pool is told in tokens, in bytes and in requests of the longest length."""

from __future__ import annotations

from msgspec import Struct

from ..model.case import Run
from ..model.figures import figure
from ..model.observations import Ref
from .observed import positive

ROUNDED = 0.01
"""Maximum concurrency is printed to two decimals, rounded or cut."""
UNIFORM = 0.05
"""By how much tokens may differ from concurrency × length where all layers keep all tokens: 0.01 at most in 150 public starts."""
FEWER, MORE = 2.0, 32.0
"""The same where the shape is not known: layers that keep less than all tokens raise the concurrency (9 times in public starts), a last block
that is not full lowers it."""
OF_SHAPE = 2.5
"""By how much bytes per token may differ from those of the model's shape: 8 bits for 16 halve them, a draft's layers add some."""
LEAST_EACH, MOST_EACH = 64.0, float(2**26)
"""Bytes per token of any model: one small layer in 8 bits has 128, the largest models about 5 MiB."""


class Conflict(Struct, frozen=True):
    """Tokens in the pool against its bytes, or against so many requests (`concurrency`) of `length` tokens."""

    tokens: int
    ref: Ref | None
    bytes: int | None = None
    concurrency: float | None = None
    length: int | None = None


def conflict(run: Run, tokens: tuple[int, Ref | None], kv: int | None, each: float | None, uniform: bool, block: float | None) -> Conflict | None:
    """What contradicts the tokens in the pool, beyond rounding; None where nothing does. `kv` is the pool in bytes, where the budget sized it;
    `each` the bytes per token of the model's shape, where its layers are `uniform`."""
    count, ref = tokens
    told = _told(run)
    if told and not any(_agree(count, concurrency, length, uniform, block or 0.0) for concurrency, length in told):
        return Conflict(count, ref, concurrency=told[0][0], length=told[0][1])
    if kv is None or kv <= 0 or (ref is not None and "+ host" in ref.text):
        return None
    low, high = max(0.0, kv - 0.005 * 2**30) / (count + 16), (kv + 0.005 * 2**30) / count
    least, most = (each / OF_SHAPE, each * OF_SHAPE) if each and uniform else (LEAST_EACH, MOST_EACH)
    return Conflict(count, ref, bytes=kv) if high < least or low > most else None


def _told(run: Run) -> list[tuple[float, int]]:
    """(maximum concurrency, for requests of so many tokens) of each line that states both."""
    lengths = {f.ref: n for f in run.facts if f.name == "kv_cache.concurrency_length" and (n := positive(f.value))}
    only = next(iter(lengths.values())) if len(set(lengths.values())) == 1 else None  # workers repeat the line, and a fact is kept once
    found = [(figure(f.value), lengths.get(f.ref) or only) for f in run.facts if f.name == "kv_cache.max_concurrency"]
    return [(c, n) for c, n in found if c is not None and n is not None and c >= 0]


def _agree(tokens: int, concurrency: float, length: int, uniform: bool, block: float) -> bool:
    low, high = max(0.0, concurrency - ROUNDED) * length, (concurrency + ROUNDED) * (length + block)
    fewer, more = (1 + UNIFORM, 1 + UNIFORM) if uniform else (FEWER, MORE)
    return low / more <= tokens <= high * fewer
