"""Values that make a set-up start and hold a wish: tried one by one, at one end of the estimates. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, structs

from .defaults import limits_of
from .estimates import context
from .generations import generation_of
from .kv import blocks_for, pool_of
from .refusals import refusals
from .setup import Budget, Setup, reshaped
from .size import requests_that_fit, size

Quantity = Literal["max-model-len", "max-num-seqs", "gpu-memory-utilization", "tp"]
QUANTITIES: tuple[Quantity, ...] = ("max-model-len", "max-num-seqs", "gpu-memory-utilization", "tp")

MOST_UTILIZATION = 0.97
"""Above it, one allocation of a library outside the budget is enough to fail: 3 % of 24 GiB are 0.7 GiB."""
LENGTH_STEP = 16
LEAST_LENGTH, LONG_ENOUGH = 2048, 32768
"""A limit below the first helps few (heuristic), unless it is the model's own or one that was asked for. The second is what changes are tried
with where no length is asked for: few need a model's own 128k."""


class Wish(Struct, frozen=True):
    """Requests that shall run at once, and their tokens. None: no wish."""

    concurrency: int | None = None
    input: int | None = None
    output: int | None = None

    @property
    def tokens(self) -> int | None:
        """Tokens of one request, prompt and output together."""
        return None if self.input is None and self.output is None else (self.input or 0) + (self.output or 0)


Sizing = Callable[[Setup], Budget]
"""`size` for the middle estimate, `cautious` for its low end."""


def cautious(setup: Setup) -> Budget:
    """The budget with the KV cache at the low end of the estimates: what starts here starts."""
    return _at_end(setup, 0)


def hopeful(setup: Setup) -> Budget:
    """The budget with the KV cache at the high end of the estimates: what does not start here does not start."""
    return _at_end(setup, 1)


def _at_end(setup: Setup, end: int) -> Budget:
    budget = size(setup)
    kv = budget.kv.span[end]
    if setup.kv_cache_memory_bytes is not None or kv == budget.kv.bytes:
        return budget
    return size(structs.replace(setup, known_kv_bytes=kv))


Certainty = Literal["surely", "maybe", "no"]


def certainty(setup: Setup) -> Certainty:
    """Does the server start at the cautious end of the estimates (with its CUDA graphs, by their middle estimate), at the other end only, or at
    neither?"""
    best = hopeful(setup)
    if not best.starts or refusals(setup, size(setup)):
        return "no"
    return "surely" if cautious(setup).starts and roomy(setup, size) else "maybe"


def roomy(setup: Setup, of: Sizing = cautious) -> bool:
    """Does what lies outside the budget find room there: other processes, the CUDA context, and CUDA graphs that are captured outside? At the
    cautious end by the upper ends of what they take."""
    budget, own = size(setup), context(setup)
    if setup.device == "cpu":
        return True
    graphs = budget.graphs.span[1] - budget.graphs.bytes if of is cautious and not budget.graphs_in_budget else 0
    charged = generation_of(setup.version, limits_of(setup).engine).charges_outside
    return budget.headroom >= graphs + (own.span[1] - own.bytes if of is cautious and not charged else 0)


def least_length(setup: Setup, wish: Wish, middle: int = 0) -> int:
    """The shortest length that is of use (heuristic): what is wished, else 2,048 tokens or a tenth of the middle estimate, whichever is more; the
    model's own limit where that is less."""
    if wish.tokens is not None:
        return wish.tokens
    least = max(LEAST_LENGTH, middle // 10)
    return min(least, setup.model.max_position_embeddings or least)


def lengthened(setup: Setup, wish: Wish) -> Setup:
    """The set-up with a --max-model-len that admits the wished requests: longer ones are refused. Never above the model's own limit."""
    own = setup.model.max_position_embeddings or math.inf
    if wish.tokens is None or setup.max_model_len is None or not setup.max_model_len < wish.tokens <= own:
        return setup
    return structs.replace(setup, max_model_len=int(min(up(wish.tokens), own)))


def runs(setup: Setup) -> bool:
    """Does the server start, by the middle estimate?"""
    budget = size(setup)
    return budget.starts and not refusals(setup, budget)


def up(tokens: int) -> int:
    return math.ceil(tokens / LENGTH_STEP) * LENGTH_STEP


def starts_with(setup: Setup, wish: Wish, of: Sizing = cautious) -> bool:
    """Does the server start, with room for the wish?"""
    budget = of(setup)
    if not budget.starts or refusals(setup, budget) or (wish.tokens or 0) > budget.max_model_len:
        return False
    if wish.concurrency is None:
        return wish.tokens is None or requests_that_fit(budget, setup, wish.tokens) >= 1
    return requests_that_fit(budget, setup, wish.tokens or budget.max_model_len) >= wish.concurrency


def longest_length(setup: Setup, of: Sizing = size) -> int | None:
    """The largest max_model_len with which the server starts, or None. At most the model's own limit."""
    top = setup.model.max_position_embeddings or 131072

    def ok(length: int) -> bool:
        trial = structs.replace(setup, max_model_len=length)
        budget, limits = of(trial), limits_of(trial)
        return budget.blocks > 0 and blocks_for(length, trial, limits, pool_of(trial, limits)) <= budget.blocks

    return largest(ok, 1, top)


def largest(ok: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest n in low..high with ok(n), for a property that holds up to some n; None if it holds nowhere."""
    if not ok(low):
        return None
    if ok(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ok(middle) else (low, middle)
    return low


def solve_length(setup: Setup, wish: Wish, of: Sizing = cautious) -> Setup | None:
    """The largest length that starts; with a number of concurrent requests, the largest at which so many fit."""
    count = wish.concurrency or 1

    def ok(length: int) -> bool:
        trial = structs.replace(setup, max_model_len=length)
        budget = of(trial)
        return budget.starts and not refusals(trial, budget) and requests_that_fit(budget, trial, length) >= count - (0 if wish.concurrency else 1e-2)

    top = setup.model.max_position_embeddings or 131072
    best = largest(ok, 1, top)
    if best is None:
        return None
    rounded = best if best == top else best // LENGTH_STEP * LENGTH_STEP or best
    return structs.replace(setup, max_model_len=rounded)


def solve_seqs(setup: Setup, wish: Wish, of: Sizing = cautious) -> Setup | None:
    """As many slots as the KV cache holds requests of the wanted (else the longest) length: none of them is ever preempted."""

    def ok(count: int) -> bool:
        trial = structs.replace(setup, max_num_seqs=count)
        budget = of(trial)
        fits = requests_that_fit(budget, trial, wish.tokens or budget.max_model_len) >= count
        return fits and budget.starts and not refusals(trial, budget)

    best = largest(ok, 1, 65536)
    return None if best is None else structs.replace(setup, max_num_seqs=best)


def solve_utilization(setup: Setup, wish: Wish, of: Sizing = cautious) -> Setup | None:
    """The smallest utilisation, in hundredths, with which the wish fits; none above what others, the context and graphs outside it leave."""
    free = setup.total_bytes - setup.outside_bytes - context(setup).bytes
    most = min(MOST_UTILIZATION, free / setup.total_bytes if setup.total_bytes else 0.0)
    for hundredths in range(10, math.floor(most * 100) + 1):
        trial = structs.replace(setup, gpu_memory_utilization=hundredths / 100)
        if starts_with(trial, wish, of) and roomy(trial, of):
            return trial
    return None


def lowered(setup: Setup, wish: Wish) -> Setup | None:
    """The set-up with the highest utilisation below the one in force that leaves what lies outside the budget its room and holds the wish at the
    cautious end. Room at the upper ends of what they take is preferred to room at their middle."""
    below = range(math.ceil(round(limits_of(setup).utilization * 100, 6)) - 1, 9, -1)
    trials = [structs.replace(setup, gpu_memory_utilization=hundredths / 100) for hundredths in below]
    held = [trial for trial in trials if roomy(trial, size) and starts_with(trial, wish)]
    return next((trial for trial in held if roomy(trial)), held[0] if held else None)


def solve_tp(setup: Setup, wish: Wish, of: Sizing = cautious) -> Setup | None:
    """The fewest GPUs, among the sizes that divide the attention heads and the vocabulary as vLLM asks; surely only with room for what lies
    outside the budget."""
    heads = setup.model.num_attention_heads or 0
    for ways in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32):
        trial = reshaped(setup, tensor_parallel_size=ways)
        if heads % ways == 0 and starts_with(trial, wish, of) and (of is not cautious or roomy(trial, size)):
            return trial
    return None


SOLVERS: dict[Quantity, Callable[[Setup, Wish, Sizing], Setup | None]] = {
    "max-model-len": solve_length,
    "max-num-seqs": solve_seqs,
    "gpu-memory-utilization": solve_utilization,
    "tp": solve_tp,
}


def value_of(question: Quantity, setup: Setup) -> str:
    if question == "max-model-len":
        return str(setup.max_model_len)
    if question == "max-num-seqs":
        return str(setup.max_num_seqs)
    if question == "tp":
        return str(setup.tensor_parallel_size)
    return f"{setup.gpu_memory_utilization:g}"
