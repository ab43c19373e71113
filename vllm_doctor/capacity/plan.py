"""What a set-up can serve, which limit binds first, and the values that answer a wish. Pure: a Setup and a Wish in, a Plan out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct, structs

from ..model.report import Basis
from .command import options_of
from .defaults import limits_of
from .estimates import context, first_start_bytes
from .generations import generation_of
from .kv import blocks_for, pool_of
from .refusals import REFUSALS, Note, refusals
from .setup import GIB, PARTS, Budget, Limit, Setup, reshaped
from .size import requests_that_fit, size
from .support import falls_back, first_release
from .ways import Solvers, Way, ways_of
from .weights import quantisation

Quantity = Literal["max-model-len", "max-num-seqs", "gpu-memory-utilization", "tp"]
QUANTITIES: tuple[Quantity, ...] = ("max-model-len", "max-num-seqs", "gpu-memory-utilization", "tp")

MOST_UTILIZATION = 0.97
"""Above it, one allocation of a library outside the budget is enough to fail: 3 % of 24 GiB are 0.7 GiB."""
LENGTH_STEP = 16
LEAST_LENGTH, LONG_ENOUGH = 512, 32768
"""A limit below the first is no help to anybody. The second is what changes are tried with where no length is asked for: few need a model's
own 128k."""


class Wish(Struct, frozen=True):
    """Requests that shall run at once, and their tokens. None: no wish."""

    concurrency: int | None = None
    input: int | None = None
    output: int | None = None

    @property
    def tokens(self) -> int | None:
        """Tokens of one request, prompt and output together."""
        return None if self.input is None and self.output is None else (self.input or 0) + (self.output or 0)


class Fits(Struct, frozen=True):
    """Requests of a length that the KV cache holds at once, with the range that the estimates leave."""

    tokens_per_request: int
    requests: float
    low: float
    high: float
    basis: Basis


class Plan(Struct, frozen=True):
    """The answer for one card. `flags` are the options to use, by name, in the version's spelling, `others` the words of options that are
    carried along without being modelled; `command_starts` tells whether a server with them starts. `notes` are keys of sentences with figures
    (reports/plan.py words them). `solved` is the value that was asked for, at the cautious end of the estimates: None without a question, ""
    where no value does it; `solved_middle` is the same by the middle estimate. `ways` are changes that help where the set-up does not start or
    does not hold the wish."""

    setup: Setup
    budget: Budget
    fits: dict[str, Fits]
    limits: tuple[Limit, ...]
    flags: dict[str, str]
    basis: Basis
    notes: tuple[Note, ...] = ()
    solved: tuple[Quantity, str] | None = None
    solved_middle: str = ""
    others: tuple[str, ...] = ()
    command_starts: bool = True
    ways: tuple[Way, ...] = ()

    @property
    def starts(self) -> bool:
        """Does the set-up itself start, by the middle estimate?"""
        return self.budget.starts and not any(code in REFUSALS for code, _ in self.notes)


def plan(
    setup: Setup, wish: Wish | None = None, question: Quantity | None = None, given: Mapping[str, str] | None = None, others: tuple[str, ...] = ()
) -> Plan:
    """The plan for a set-up. With a question the value is solved for first, and the plan is that of the set-up with the value. `given` are
    options that the set-up does not hold in the user's spelling, `others` words that are carried into the command as they are."""
    wish = wish or Wish()
    solved: tuple[Quantity, str] | None = None
    middle = ""
    if question is not None:
        better, looser = (SOLVERS[question](setup, wish, of) for of in (cautious, size))
        solved = (question, "" if better is None else _value(question, better))
        middle = "" if looser is None else _value(question, looser)
        setup = setup if better is None else better
    budget = size(setup)
    limits = limits_of(setup)
    lengths = {"max_model_len": limits.max_model_len}
    if wish.tokens is not None:
        lengths["wanted"] = wish.tokens
    fits = {name: fit(setup, budget, tokens) for name, tokens in lengths.items()}
    wanted = fits.get("wanted", fits["max_model_len"])
    bounds = [Limit("kv_cache", wanted.requests, wanted.tokens_per_request), Limit("max_num_seqs", limits.max_num_seqs, wanted.tokens_per_request)]
    if wish.tokens is not None and wish.tokens > limits.max_model_len:
        bounds.append(Limit("max_model_len", 0, wish.tokens))
    ordered = tuple(sorted(bounds, key=lambda b: b.requests))
    measured = all(p in setup.known for p in PARTS if p != "graphs" or budget.graphs_in_budget) or setup.known_rest is not None
    best = chosen(setup, budget, wish)
    return Plan(
        setup=setup,
        budget=budget,
        fits=fits,
        limits=ordered,
        flags={**options_of(best), **(given or {})},
        basis="measured" if measured else "model",
        notes=(*_notes(setup, budget, wish, wanted), *_own_limit(setup, wish, solved)),
        solved=solved,
        solved_middle=middle,
        others=others,
        command_starts=runs(best),
        ways=() if starts_with(setup, wish, size) else _ways(setup, wish),
    )


def _ways(setup: Setup, wish: Wish) -> tuple[Way, ...]:
    """What would help. A wish longer than --max-model-len takes a longer one as well."""
    own = setup.model.max_position_embeddings
    if own and wish.tokens is not None and wish.tokens > own:
        return ()
    base = setup
    if wish.tokens is not None and (setup.max_model_len is None or wish.tokens > setup.max_model_len):
        base = structs.replace(setup, max_model_len=min(_up(wish.tokens), own or _up(wish.tokens)))
    elif wish.tokens is None and setup.max_model_len is None and (own or 0) > LONG_ENOUGH:
        base = structs.replace(setup, max_model_len=LONG_ENOUGH)
    if base is not setup and starts_with(base, wish):
        base = setup  # the length does it alone: what else is tried shall reach the whole of it

    def length(trial: Setup) -> Setup | None:
        longest = longest_length(trial, cautious)
        if longest is None or longest >= limits_of(trial).max_model_len:
            return None
        rounded = longest // LENGTH_STEP * LENGTH_STEP or longest
        return structs.replace(trial, max_model_len=rounded) if rounded >= max(wish.tokens or 0, LEAST_LENGTH) else None

    def told(trial: Setup) -> tuple[float, int, int]:
        budget = cautious(trial)
        tokens = wish.tokens or budget.max_model_len
        return max(0.0, requests_that_fit(budget, trial, tokens)), tokens, budget.kv_tokens

    def wider(trial: Setup) -> Setup | None:
        return solve_tp(trial, wish)

    solvers = Solvers(lambda trial: starts_with(trial, wish), wish.concurrency or 1, length, lambda trial: solve_utilization(trial, wish), wider)
    return ways_of(setup, base, solvers, told)


def _own_limit(setup: Setup, wish: Wish, solved: tuple[Quantity, str] | None) -> list[Note]:
    """Where the model's own limit is what stops longer requests."""
    own = setup.model.max_position_embeddings
    if own and wish.tokens is not None and wish.tokens > own:
        return [("wish-above-limit", {"tokens": wish.tokens, "limit": own})]
    return [("limit-binds", {"limit": own})] if own and solved == ("max-model-len", str(own)) else []


def cautious(setup: Setup) -> Budget:
    """The budget with the KV cache at the low end of the estimates: what starts here starts."""
    budget = size(setup)
    low = budget.kv.span[0]
    if setup.kv_cache_memory_bytes is not None or low >= budget.kv.bytes:
        return budget
    return size(structs.replace(setup, known_kv_bytes=low))


def fit(setup: Setup, budget: Budget, tokens: int) -> Fits:
    """Requests of `tokens` that fit, with the range from the estimates' range."""
    exact = requests_that_fit(budget, setup, tokens)
    ends = []
    for kv in budget.kv.span:
        other = size(structs.replace(setup, known_kv_bytes=kv)) if setup.kv_cache_memory_bytes is None else budget
        ends.append(max(0.0, requests_that_fit(other, setup, tokens)))
    return Fits(tokens, exact, min(ends), max(ends), budget.kv.basis)


def chosen(setup: Setup, budget: Budget, wish: Wish) -> Setup:
    """The set-up worth starting: as given, with the length and the number of requests that the wish needs, and the longest length that surely
    fits where the given one does not."""
    limits, own = limits_of(setup), setup.model.max_position_embeddings
    length = setup.max_model_len
    if wish.tokens is not None and wish.tokens > limits.max_model_len:
        length = _up(wish.tokens)
    if length and own and length > own:
        length = own
    if budget.blocks > 0 and not size(structs.replace(setup, max_model_len=length)).starts:
        longest = longest_length(setup, cautious)
        length = longest if longest and longest >= max(wish.tokens or 0, min(LEAST_LENGTH, own or LEAST_LENGTH)) else length
    seqs = setup.max_num_seqs
    if wish.concurrency is not None and wish.concurrency > limits.max_num_seqs:
        seqs = max(limits.max_num_seqs, min(wish.concurrency, limits.max_num_batched_tokens))
    batched = setup.max_num_batched_tokens
    if batched and not limits.chunked and length and limits.max_model_len <= batched < length:
        batched = length  # without chunked prefill a step takes a whole prompt
    dtype = "float16" if setup.dtype == "auto" and setup.gpu is not None and not setup.gpu.bf16 else setup.dtype  # older versions refuse auto
    best = structs.replace(setup, max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=batched, dtype=dtype)
    return best if runs(best) or not runs(setup) else setup


def runs(setup: Setup) -> bool:
    """Does the server start, by the middle estimate?"""
    budget = size(setup)
    return budget.starts and not refusals(setup, budget)


def _up(tokens: int) -> int:
    return math.ceil(tokens / LENGTH_STEP) * LENGTH_STEP


COMPRESSED = ("DeepseekV4",)
"""Architectures that compress their KV cache by layer: starts showed 5 to 100 KiB per token of the same model (0.25, 0.26)."""


def _notes(setup: Setup, budget: Budget, wish: Wish, wanted: Fits) -> list[Note]:
    notes = refusals(setup, budget)
    if setup.model.architecture.startswith(COMPRESSED) and not notes:
        notes.append(("compressed-cache", {}))
    refused, own = bool(notes), setup.model.max_position_embeddings or math.inf
    if budget.kv.bytes <= 0:
        notes.append(("no-kv", {"missing": -budget.kv.bytes}))
    elif not refused and not (budget.starts and cautious(setup).starts):
        longest, safe = longest_length(setup) or 0, longest_length(setup, cautious) or 0
        safe = safe if safe >= LEAST_LENGTH else 0
        if longest < min(own, budget.max_model_len):
            notes.append(("below-max-len", {"length": budget.max_model_len, "longest": longest, "safe": safe}))
        elif safe < min(own, budget.max_model_len):
            notes.append(("may-not-start", {"length": budget.max_model_len, "safe": safe}))
    if wish.concurrency is not None and budget.starts and not refused:
        figures: dict[str, float | str] = {"wanted": wish.concurrency, "tokens": wanted.tokens_per_request}
        if wanted.requests < wish.concurrency:
            notes.append(("queue", {**figures, "fits": math.floor(wanted.requests)}))
        elif wanted.low < wish.concurrency:
            notes.append(("edge", {**figures, "fits": math.floor(wanted.requests), "low": math.floor(wanted.low)}))
        else:
            notes.append(("room", {**figures, "fits": math.floor(wanted.low)}))
    if wish.concurrency is not None and wish.concurrency > budget.max_num_seqs:
        notes.append(("seqs", {"wanted": wish.concurrency, "limit": budget.max_num_seqs}))
    if not refused and not budget.graphs_in_budget and budget.graphs.bytes > 0 and budget.headroom < budget.graphs.bytes // 4:
        notes.append(("tight-headroom", {"headroom": max(budget.headroom, 0), "graphs": budget.graphs.bytes}))
    first = first_release(setup)
    if first and falls_back(setup):
        notes.append(("perhaps-old-version", {"version": str(setup.version), "architecture": setup.model.architecture, "first": first}))
    card = setup.gpu
    if card is not None and not card.bf16 and setup.dtype in ("auto", "bfloat16"):
        notes.append(("no-bf16", {"card": card.name}))
    if card is not None and not card.fp8 and setup.kv_cache_dtype.startswith("fp8"):
        notes.append(("no-fp8", {"card": card.name}))
    heads = setup.model.num_key_value_heads or 0
    if heads and setup.tensor_parallel_size > heads and not setup.model.kv_lora_rank:
        notes.append(("replicated-heads", {"heads": heads, "tp": setup.tensor_parallel_size}))
    notes += _blocks(setup)
    if setup.model.kind in ("vlm", "hybrid", "encoder-decoder"):
        notes.append(("wide-band", {"kind": setup.model.kind}))
    copy = first_start_bytes(setup, generation_of(setup.version, limits_of(setup).engine))
    if 0 < copy == budget.activation.bytes:
        notes.append(("first-start", {"copy": copy}))
    return notes


def _blocks(setup: Setup) -> list[Note]:
    """Checkpoints in FP8 or 4 bits have one scale for 128 weights in a row: a GPU's share must be whole blocks, or loading fails ("not divisible
    by weight quantization block_n"). Scales for a whole channel ("dynamic") have no blocks."""
    model, tp = setup.model, setup.tensor_parallel_size
    method, text = quantisation(setup)[0], (setup.quantization or "").lower()
    width = model.intermediate_size if not model.num_experts else None if setup.enable_expert_parallel else model.moe_intermediate_size
    if tp == 1 or not width or width % tp or method not in ("fp8", "awq", "gptq") or "dynamic" in text or (width // tp) % BLOCK == 0:
        return []
    return [("blocks-split", {"width": width, "tp": tp, "block": BLOCK})]


BLOCK = 128


Sizing = Callable[[Setup], Budget]
"""`size` for the middle estimate, `cautious` for its low end."""


def starts_with(setup: Setup, wish: Wish, of: Sizing = cautious) -> bool:
    """Does the server start, with room for the wish?"""
    budget = of(setup)
    if not budget.starts or refusals(setup, budget):
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
    """The smallest utilisation, in hundredths, with which the wish fits; none above what others and the context leave."""
    free = setup.total_bytes - setup.outside_bytes - context(setup).bytes
    most = min(MOST_UTILIZATION, free / setup.total_bytes if setup.total_bytes else 0.0)
    for hundredths in range(10, math.floor(most * 100) + 1):
        trial = structs.replace(setup, gpu_memory_utilization=hundredths / 100)
        if starts_with(trial, wish, of):
            return trial
    return None


def solve_tp(setup: Setup, wish: Wish, of: Sizing = cautious) -> Setup | None:
    """The fewest GPUs, among the sizes that divide the attention heads and the vocabulary as vLLM asks."""
    heads = setup.model.num_attention_heads or 0
    for ways in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32):
        trial = reshaped(setup, tensor_parallel_size=ways)
        if heads % ways == 0 and starts_with(trial, wish, of):
            return trial
    return None


SOLVERS: dict[Quantity, Callable[[Setup, Wish, Sizing], Setup | None]] = {
    "max-model-len": solve_length,
    "max-num-seqs": solve_seqs,
    "gpu-memory-utilization": solve_utilization,
    "tp": solve_tp,
}


def _value(question: Quantity, setup: Setup) -> str:
    if question == "max-model-len":
        return str(setup.max_model_len)
    if question == "max-num-seqs":
        return str(setup.max_num_seqs)
    if question == "tp":
        return str(setup.tensor_parallel_size)
    return f"{setup.gpu_memory_utilization:g}"


def gib(value: float) -> int:
    """GiB as bytes."""
    return round(value * GIB)
