"""What to change where a set-up does not start, or does not hold what is wished: each change that does it alone, tried at the cautious end of
the estimates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct, structs

from .defaults import limits_of, version_of
from .kv import uses_mla
from .setup import Setup, reshaped
from .support import lacking
from .weights import quant_of, quantisation

Kind = Literal["length", "kv-fp8", "kv-fp8-length", "utilization", "squeeze", "checkpoint", "checkpoint-tp", "tp"]
Solver = Callable[[Setup], Setup | None]


class Way(Struct, frozen=True):
    """One change. `flags` are the options that it adds, `checkpoint` the quantisation that the model has to be published in ("" for none);
    `requests` of `tokens_per_request` tokens fit then at once, at the cautious end."""

    kind: Kind
    flags: dict[str, str]
    requests: float
    tokens_per_request: int
    kv_tokens: int
    checkpoint: str = ""


class Solvers(Struct, frozen=True):
    """How values are found (`plan` hands its own): each gives a set-up that starts and holds the wish, or None. `roomy` tells whether a
    utilisation leaves what lies outside it its room."""

    holds: Callable[[Setup], bool]
    roomy: Callable[[Setup], bool]
    least_seqs: int
    length: Solver
    utilization: Solver
    tp: Solver


def ways_of(setup: Setup, base: Setup, solvers: Solvers, told: Callable[[Setup], tuple[float, int, int]]) -> tuple[Way, ...]:
    """Changes that make the set-up start and hold the wish, the gentlest first. `base` is the set-up with the length that the wish needs, where
    none was given: what is not about the length starts from there. `told` gives (requests, tokens of each, tokens in all) of a set-up."""
    found = []
    needed = {} if base.max_model_len == setup.max_model_len else {"--max-model-len": str(base.max_model_len)}
    for kind, trial, own, checkpoint in _tried(setup, base, solvers):
        flags = own if kind == "length" else {**needed, **own}
        requests, each, tokens = told(trial)
        found.append(Way(kind, flags, requests, each, tokens, checkpoint))
    return tuple(found)


def applied(setup: Setup, way: Way) -> Setup:
    """The set-up with a change made."""
    fields: dict[str, str | int | float] = {}
    for name, value in way.flags.items():
        kind = str if name == "--kv-cache-dtype" else float if name == "--gpu-memory-utilization" else int
        fields[name.removeprefix("--").replace("-", "_")] = kind(value)
    if way.checkpoint:
        fields["quantization"] = way.checkpoint
    return reshaped(setup, **fields)


def _tried(given: Setup, setup: Setup, solvers: Solvers) -> Iterator[tuple[Kind, Setup, dict[str, str], str]]:
    shorter = solvers.length(given)
    if shorter is not None and solvers.holds(shorter):
        yield "length", shorter, {"--max-model-len": str(shorter.max_model_len)}, ""
    fp8 = structs.replace(setup, kv_cache_dtype="fp8")
    if fp8_fits(setup):
        if solvers.holds(fp8):
            yield "kv-fp8", fp8, {"--kv-cache-dtype": "fp8"}, ""
        elif (shorter_fp8 := solvers.length(fp8)) is not None and solvers.holds(shorter_fp8):
            yield "kv-fp8-length", shorter_fp8, {"--kv-cache-dtype": "fp8", "--max-model-len": str(shorter_fp8.max_model_len)}, ""
    higher = solvers.utilization(setup)
    if higher is not None:
        yield "utilization", higher, {"--gpu-memory-utilization": f"{higher.gpu_memory_utilization:g}"}, ""
    alone = (shorter is not None and solvers.holds(shorter)) or higher is not None or (fp8_fits(setup) and solvers.holds(fp8))
    squeezed = None if alone else squeeze(setup, solvers)
    if squeezed is not None:
        options = {"--max-num-seqs": squeezed.max_num_seqs, "--max-num-batched-tokens": squeezed.max_num_batched_tokens}
        lengths = {"--max-model-len": squeezed.max_model_len} if squeezed.max_model_len != setup.max_model_len else {}
        cache = {"--kv-cache-dtype": "fp8"} if squeezed.kv_cache_dtype != setup.kv_cache_dtype else {}
        share = {"--gpu-memory-utilization": squeezed.gpu_memory_utilization}
        yield "squeeze", squeezed, {k: f"{v:g}" if isinstance(v, float) else str(v) for k, v in (share | options | cache | lengths).items()}, ""
    fewest = solvers.tp(setup)
    if fewest is not None and fewest.tensor_parallel_size < setup.tensor_parallel_size:  # so many GPUs cannot share it: the nearest that can
        yield from _nearest(setup, solvers)
        return
    for checkpoint in smaller(setup):
        own = reshaped(setup, quantization=checkpoint)
        if solvers.holds(own):
            yield "checkpoint", own, {}, checkpoint
        elif (spread := solvers.tp(own)) is not None:
            yield "checkpoint-tp", spread, {"--tensor-parallel-size": str(spread.tensor_parallel_size)}, checkpoint
    if fewest is not None and fewest.tensor_parallel_size > setup.tensor_parallel_size:
        yield "tp", fewest, {"--tensor-parallel-size": str(fewest.tensor_parallel_size)}, ""


def _nearest(setup: Setup, solvers: Solvers) -> Iterator[tuple[Kind, Setup, dict[str, str], str]]:
    """The most GPUs below the given number, and the fewest above it, that share the model and hold the wish."""
    given = setup.tensor_parallel_size
    for numbers in (range(given - 1, 0, -1), range(given + 1, 2 * given + 1)):
        trials = (reshaped(setup, tensor_parallel_size=n) for n in numbers)
        found = next((t for t in trials if solvers.holds(t)), None)
        if found is not None:
            yield "tp", found, {"--tensor-parallel-size": str(found.tensor_parallel_size)}, ""


SQUEEZED_SEQS, SQUEEZED_TOKENS, SQUEEZED_SHARE = 16, 2048, 0.95


def squeeze(setup: Setup, solvers: Solvers) -> Setup | None:
    """All that one card has: few requests, short steps, nearly all of the memory, an FP8 cache where the card computes in it, and the length that
    is left."""
    limits = limits_of(setup)
    tight = structs.replace(
        setup,
        max_num_seqs=min(limits.max_num_seqs, max(SQUEEZED_SEQS, solvers.least_seqs)),
        max_num_batched_tokens=min(limits.max_num_batched_tokens, SQUEEZED_TOKENS if limits.chunked else max(SQUEEZED_TOKENS, limits.max_model_len)),
    )
    low = solvers.utilization(tight) or solvers.utilization(_shortest(tight))
    shares = (hundredths / 100 for hundredths in range(round(SQUEEZED_SHARE * 100), 0, -1) if hundredths / 100 > limits.utilization)
    share = next((s for s in shares if solvers.roomy(structs.replace(tight, gpu_memory_utilization=s))), limits.utilization)
    tight = structs.replace(tight, gpu_memory_utilization=share)
    for trial in (tight, structs.replace(tight, kv_cache_dtype="fp8") if fp8_fits(setup) else tight):
        for candidate in (trial, solvers.length(trial)):
            if candidate is not None and solvers.holds(candidate):
                return candidate
    return low if setup.outside_bytes else None  # a smaller share, where others hold what is missing


def _shortest(setup: Setup) -> Setup:
    """The set-up for requests of one short step."""
    return structs.replace(setup, max_model_len=min(limits_of(setup).max_model_len, SQUEEZED_TOKENS), max_num_batched_tokens=SQUEEZED_TOKENS)


def fp8_fits(setup: Setup) -> bool:
    """Is an FP8 cache worth a try: known to this version, computed by this card, and not in force already?"""
    card = setup.gpu
    return setup.kv_cache_dtype == "auto" and card is not None and card.fp8 and version_of(setup).release >= (0, 4, 1) and not (
        setup.model.kv_lora_rank and not uses_mla(setup.model, version_of(setup))
    )  # fmt: skip


def smaller(setup: Setup) -> list[str]:
    """Quantisations that would make the weights smaller, the gentlest first: FP8 where the card computes in it, 4 bits. Those that the model
    is published in come before what somebody else may have made."""
    method, bits = quantisation(setup)
    if method and bits < 6 and (lacking(setup) is None or not setup.quantization):  # what is published quantised only has no other form
        return []
    published = {found[0] for entry in setup.model.quantised if (found := quant_of(entry.partition(":")[0]))}
    eight = ["fp8"] if not method and setup.gpu is not None and setup.gpu.fp8 else []
    fours = sorted(("awq", "gptq"), key=lambda kind: kind not in published)
    four = [kind for kind in fours if kind != method and lacking(structs.replace(setup, quantization=kind)) is None][:1]
    return [*eight, *four] if setup.model.kind != "embedding" else []
