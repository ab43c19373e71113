"""What a set-up can serve, which limit binds first, and the values that answer a wish. Pure: a Setup and a Wish in, a Plan out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct, structs

from ..model.report import Basis
from .command import options_of
from .defaults import limits_of
from .estimates import first_start_bytes
from .generations import generation_of
from .kv import windows
from .refusals import REFUSALS, Note, refusals
from .setup import GIB, PARTS, Budget, Limit, Setup
from .size import requests_that_fit, size
from .solving import (
    LEAST_LENGTH,
    LENGTH_STEP,
    LONG_ENOUGH,
    SOLVERS,
    Certainty,
    Quantity,
    Sizing,
    Wish,
    cautious,
    certainty,
    hopeful,
    least_length,
    lengthened,
    longest_length,
    lowered,
    roomy,
    runs,
    solve_tp,
    solve_utilization,
    starts_with,
    up,
    value_of,
)  # fmt: skip
from .support import falls_back, first_release
from .ways import Solvers, Way, applied, ways_of
from .weights import quantisation


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
    (reports/plan_notes.py words them). `solved` is the value that was asked for, at the cautious end of the estimates: None without a question, ""
    where no value does it; `solved_middle` is the same by the middle estimate; `solved_short` tells that the value is a length too short to be
    of use. `ways` are changes that help where the set-up does not start or does not hold the wish. `certainty` is of the set-up itself,
    `command_sure` tells whether the command starts at the cautious end as well."""

    setup: Setup
    budget: Budget
    fits: dict[str, Fits]
    limits: tuple[Limit, ...]
    flags: dict[str, str]
    basis: Basis
    notes: tuple[Note, ...] = ()
    solved: tuple[Quantity, str] | None = None
    solved_middle: str = ""
    solved_short: bool = False
    others: tuple[str, ...] = ()
    command_starts: bool = True
    command_sure: bool = True
    certainty: Certainty = "surely"
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
    middle, short, asked, perhaps = "", False, setup, None
    if question is not None:
        base = setup if question == "max-model-len" else lengthened(setup, wish)
        better, looser = (SOLVERS[question](base, wish, of) for of in (cautious, size))
        solved = (question, "" if better is None else value_of(question, better))
        middle = "" if looser is None else value_of(question, looser)
        short = question == "max-model-len" and better is not None and int(solved[1]) < least_length(setup, wish, int(middle or 0))
        perhaps = looser if better is None and not _useless(question, looser, wish) else None
        setup = setup if better is None else better
    budget, served = size(setup), lengthened(setup, wish)
    limits = limits_of(setup)
    lengths = {"max_model_len": limits.max_model_len}
    if wish.tokens is not None:
        lengths["wanted"] = wish.tokens
    fits = {name: fit(served, size(served), tokens) if name == "wanted" else fit(setup, budget, tokens) for name, tokens in lengths.items()}
    wanted = fits.get("wanted", fits["max_model_len"])
    bounds = [Limit("kv_cache", wanted.requests, wanted.tokens_per_request), Limit("max_num_seqs", limits.max_num_seqs, wanted.tokens_per_request)]
    measured = all(p in setup.known for p in PARTS if p != "graphs" or budget.graphs_in_budget) or setup.known_rest is not None
    held = starts_with(served, wish, size) and certainty(served) == "surely"
    ways = _ways(asked, wish, LEAST_LENGTH if wish.concurrency else LONG_ENOUGH) if short else () if held else _ways(setup, wish)
    best = chosen(setup, budget, wish) if perhaps is None else chosen(perhaps, size(perhaps), wish, size)
    if short:
        best = applied(asked, ways[0]) if ways else asked
    above = _above(setup if question == "max-model-len" else asked, best, wish)
    if wish.tokens is not None and wish.tokens > limits.max_model_len and not any(values.get("command") for _code, values in above):
        bounds.append(Limit("max_model_len", 0, wish.tokens))  # no command raises it
    if budget.cacheless:
        bounds = bounds[1:]
    ordered = tuple(sorted(bounds, key=lambda b: b.requests))
    return Plan(
        setup=setup,
        budget=budget,
        fits=fits,
        limits=ordered,
        flags={**options_of(best), **(given or {})},
        basis="measured" if measured else "model",
        notes=(*_notes(setup, budget, wish, wanted, above, ways), *_own_limit(setup, solved)),
        solved=solved,
        solved_middle=middle,
        others=others,
        command_starts=runs(best) and not (short and (not ways or bool(ways[0].checkpoint))),
        command_sure=certainty(best) == "surely" and perhaps is None,
        certainty=certainty(setup),
        solved_short=short,
        ways=ways,
    )


def _useless(question: Quantity, found: Setup | None, wish: Wish) -> bool:
    """Is what was found a length too short to be of use?"""
    return question == "max-model-len" and found is not None and limits_of(found).max_model_len < least_length(found, wish)


def _ways(setup: Setup, wish: Wish, goal: int = LONG_ENOUGH) -> tuple[Way, ...]:
    """What would help. A wish longer than --max-model-len takes a longer one as well; without a length, changes are tried with `goal` tokens."""
    own = setup.model.max_position_embeddings
    if own and wish.tokens is not None and wish.tokens > own:
        return ()
    base = lengthened(setup, wish)
    if wish.tokens is not None and setup.max_model_len is None:
        base = structs.replace(setup, max_model_len=min(up(wish.tokens), own or up(wish.tokens)))
    elif wish.tokens is None and setup.max_model_len is None and (own or 0) > goal:
        base = structs.replace(setup, max_model_len=goal)
    if base is not setup and setup.max_model_len is None and starts_with(base, wish):
        base = setup  # the length does it alone: what else is tried shall reach the whole of it

    def length(trial: Setup) -> Setup | None:
        longest = longest_length(trial, cautious)
        if longest is None or longest >= limits_of(trial).max_model_len:
            return None
        rounded = longest // LENGTH_STEP * LENGTH_STEP or longest
        return structs.replace(trial, max_model_len=rounded) if rounded >= least_length(trial, wish, longest_length(trial) or 0) else None

    def told(trial: Setup) -> tuple[float, int, int]:
        budget = cautious(trial)
        tokens = wish.tokens or budget.max_model_len
        return max(0.0, requests_that_fit(budget, trial, tokens)), tokens, budget.kv_tokens

    def wider(trial: Setup) -> Setup | None:
        return solve_tp(trial, wish)

    def holds(trial: Setup) -> bool:
        return starts_with(trial, wish) and roomy(trial, size)

    def utilization(trial: Setup) -> Setup | None:
        crowded = None if roomy(trial, size) else lowered(trial, wish)  # room is what lacks: no more is given up than that
        return crowded or solve_utilization(trial, wish)

    solvers = Solvers(holds, roomy, wish.concurrency or 1, length, utilization, wider)
    return ways_of(setup, base, solvers, told)


def _above(asked: Setup, best: Setup, wish: Wish) -> list[Note]:
    """Where the wished requests are longer than the model, or --max-model-len, admits. `command` is the length that the command has instead; 0:
    none that admits them."""
    own, limit, tokens = asked.model.max_position_embeddings, asked.max_model_len, wish.tokens or 0
    if own and tokens > own:
        return [("wish-above-limit", {"tokens": tokens, "limit": own})]
    if limit is None or tokens <= limit:
        return []
    length = best.max_model_len or 0
    return [("wish-above-length", {"tokens": tokens, "limit": limit, "command": length if length >= tokens and runs(best) else 0})]


def _own_limit(setup: Setup, solved: tuple[Quantity, str] | None) -> list[Note]:
    """Where the model's own limit is what stops longer requests."""
    own = setup.model.max_position_embeddings
    return [("limit-binds", {"limit": own})] if own and solved == ("max-model-len", str(own)) else []


def fit(setup: Setup, budget: Budget, tokens: int) -> Fits:
    """Requests of `tokens` that fit, with the range from the estimates' range."""
    exact = requests_that_fit(budget, setup, tokens)
    ends = []
    for kv in budget.kv.span:
        other = size(structs.replace(setup, known_kv_bytes=kv)) if setup.kv_cache_memory_bytes is None else budget
        ends.append(max(0.0, requests_that_fit(other, setup, tokens)))
    return Fits(tokens, exact, min(ends), max(ends), budget.kv.basis)


def chosen(setup: Setup, budget: Budget, wish: Wish, of: Sizing = cautious) -> Setup:
    """The set-up worth starting: as given, with the length and the number of requests that the wish needs, and the longest length that fits at
    that end of the estimates where the given one does not."""
    limits, own = limits_of(setup), setup.model.max_position_embeddings
    length = setup.max_model_len
    if wish.tokens is not None and wish.tokens > limits.max_model_len:
        length = up(wish.tokens)
    if length and own and length > own:
        length = own
    if budget.blocks > 0 and not of(structs.replace(setup, max_model_len=length)).starts:
        longest = longest_length(setup, of)
        rounded = (longest or 0) // LENGTH_STEP * LENGTH_STEP or longest
        length = rounded if rounded and rounded >= least_length(setup, wish, longest_length(setup) or 0) else length
    seqs = setup.max_num_seqs
    if wish.concurrency is not None and wish.concurrency > limits.max_num_seqs:
        seqs = max(limits.max_num_seqs, min(wish.concurrency, limits.max_num_batched_tokens))
    batched = setup.max_num_batched_tokens
    if batched and not limits.chunked and length and limits.max_model_len <= batched < length:
        batched = length  # without chunked prefill a step takes a whole prompt
    dtype = "float16" if setup.dtype == "auto" and setup.gpu is not None and not setup.gpu.bf16 else setup.dtype  # older versions refuse auto
    best = structs.replace(setup, max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=batched, dtype=dtype)
    return best if runs(best) or not runs(setup) else setup


COMPRESSED = ("DeepseekV4",)
"""Architectures that compress their KV cache by layer: starts showed 5 to 100 KiB per token of the same model (0.25, 0.26)."""


def _notes(setup: Setup, budget: Budget, wish: Wish, wanted: Fits, above: list[Note], ways: tuple[Way, ...]) -> list[Note]:
    notes = refusals(setup, budget)
    if setup.model.architecture.startswith(COMPRESSED) and not notes:
        notes.append(("compressed-cache", {}))
    refused, own = bool(notes), setup.model.max_position_embeddings or math.inf
    if budget.cacheless:
        if budget.starts and not refused:
            notes.append(("no-cache", {"seqs": budget.max_num_seqs}))
    elif budget.kv.span[1] <= 0:
        notes.append(("no-kv", {"missing": -budget.kv.bytes}))
    elif not refused and not cautious(setup).starts:
        most, longest, safe = (longest_length(setup, of) or 0 for of in (hopeful, size, cautious))
        safe = safe if safe >= least_length(setup, wish, longest) else 0
        code = "may-not-start" if hopeful(setup).starts else "below-max-len"
        notes.append((code, {"length": budget.max_model_len, "longest": longest, "safe": safe, "most": most}))
    crowded = not refused and not roomy(setup, size)
    if crowded and budget.graphs.bytes > 0 and not budget.graphs_in_budget:
        lower = any(float(way.flags.get("--gpu-memory-utilization", 1)) < budget.utilization for way in ways)  # what does it alone is advised only
        notes.append(("graphs-outside", {"missing": -budget.headroom, "graphs": budget.graphs.bytes, "lower": int(lower)}))
    elif crowded:
        notes.append(("free-near-budget", {"free": budget.total - budget.outside.bytes, "budget": budget.budget}))
    notes += above
    if wish.concurrency is not None and budget.starts and not refused and not budget.cacheless and (wish.tokens or 0) <= own:
        figures: dict[str, float | str] = {"wanted": wish.concurrency, "tokens": wanted.tokens_per_request}
        if wanted.requests < wish.concurrency:
            notes.append(("queue", {**figures, "fits": math.floor(wanted.requests)}))
        elif wanted.low < wish.concurrency:
            notes.append(("edge", {**figures, "fits": math.floor(wanted.requests), "low": math.floor(wanted.low)}))
        else:
            notes.append(("room-in-kv" if crowded else "room", {**figures, "fits": math.floor(wanted.low)}))
    if wish.concurrency is not None and wish.concurrency > budget.max_num_seqs:
        notes.append(("seqs", {"wanted": wish.concurrency, "limit": budget.max_num_seqs}))
    if not refused and not crowded and not budget.graphs_in_budget and budget.graphs.bytes > 0 and budget.headroom < budget.graphs.bytes // 4:
        notes.append(("tight-headroom", {"headroom": budget.headroom, "graphs": budget.graphs.bytes}))
    first = first_release(setup)
    if first and falls_back(setup):
        notes.append(("perhaps-old-version", {"version": str(setup.version), "architecture": setup.model.architecture, "first": first}))
    card = setup.gpu
    if card is not None and setup.spread_bytes:
        notes.append(("ecc", {"card": card.name, "ecc_on": setup.total_bytes, "ecc_off": setup.total_bytes + setup.spread_bytes}))
    if card is not None and setup.device not in ("cuda", "rocm", "cpu"):
        notes.append(("other-device", {"card": card.name}))
    if card is not None and not card.bf16 and setup.dtype in ("auto", "bfloat16"):
        notes.append(("no-bf16", {"card": card.name}))
    if card is not None and not card.fp8 and setup.kv_cache_dtype.startswith("fp8"):
        notes.append(("no-fp8", {"card": card.name}))
    heads = setup.model.num_key_value_heads or 0
    if heads and setup.tensor_parallel_size > heads and not setup.model.kv_lora_rank:
        notes.append(("replicated-heads", {"heads": heads, "tp": setup.tensor_parallel_size}))
    notes += _blocks(setup)
    sliding = windows(setup, limits_of(setup))
    if sliding:
        layers, total, window, further = sliding
        notes.append(("sliding-window", {"layers": layers, "total": total, "window": window, "each": budget.kv_bytes_per_token, "further": further}))
    if setup.model.kind in ("vlm", "hybrid", "encoder-decoder"):
        notes.append(("wide-band", {"kind": setup.model.kind}))
    copy = first_start_bytes(setup, generation_of(setup.version, limits_of(setup).engine))
    if 0 < copy == budget.activation.bytes and not budget.cacheless:
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


def gib(value: float) -> int:
    """GiB as bytes."""
    return round(value * GIB)
