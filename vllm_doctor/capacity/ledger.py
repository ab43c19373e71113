"""The ledger: where one GPU's memory went, from the server's own lines. What a line states is taken over; what follows from stated
figures is derived; what neither gives stays unknown, and only the room that is left takes up the difference.

    total = outside + weights + activation + non-torch + graphs + KV + headroom
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct, field

from ..model.case import Case, Run
from ..model.figures import figure
from ..model.observations import Ref
from ..model.report import Basis
from ..ruleset.schema import Knowledge, Model
from .agreement import Conflict, conflict
from .defaults import limits_of
from .generations import generation_of
from .kv import groups_of
from .observed import Lengths, card_bytes, least, lengths, option, positive, ratio, setup_of, total_bytes, without_graphs
from .setup import Budget, Setup
from .size import requests_that_fit, size, whole_requests

Origin = Literal["printed", "derived", "default"]
PARTS = ("outside", "weights", "activation", "non_torch", "graphs", "kv", "headroom")


class Entry(Struct, frozen=True):
    """One figure of the account, in bytes, with the line that states it or the lines that it follows from."""

    bytes: int
    origin: Origin
    refs: tuple[Ref, ...] = ()


class Account(Struct, frozen=True):
    """One GPU. `entries` holds the parts that are known (names in PARTS, and `total`, `budget`); where the total is known they sum to
    it. `lumped` names parts that the lines give only together with `activation`. `process` is the worker's tag."""

    process: str | None
    gpu: int | None
    entries: dict[str, Entry]
    lumped: tuple[str, ...] = ()
    utilization: float | None = None

    def get(self, name: str) -> int | None:
        entry = self.entries.get(name)
        return entry.bytes if entry else None


class Fit(Struct, frozen=True):
    """How many requests of a length the KV cache holds at once."""

    tokens_per_request: float
    requests: float
    basis: Basis


class Ledger(Struct, frozen=True):
    """The accounts of a run, the tightest first, and what its KV cache holds. `predicted` is the model's answer for the same set-up with
    nothing measured, to be compared; None where the model's shape is not known. `conflict`: the figures of the pool contradict each other, and
    none of them is used."""

    run: str
    accounts: tuple[Account, ...]
    kv_tokens: int | None = None
    kv_bytes_per_token: float | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    block_size: float | None = None
    refs: dict[str, Ref] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    observed: Lengths | None = None
    setup: Setup | None = None
    predicted: Budget | None = None
    conflict: Conflict | None = None

    @property
    def tightest(self) -> Account:
        return self.accounts[0]

    def differences(self) -> dict[str, tuple[int, int]]:
        """Parts that were both printed and predicted: name -> (measured, predicted) bytes."""
        if self.predicted is None:
            return {}
        model = {n: a.bytes for n, a in self.predicted.parts.items()} | {"kv": self.predicted.kv.bytes}
        own = self.tightest.entries
        return {n: (own[n].bytes, b) for n, b in model.items() if n in own and own[n].origin == "printed" and n not in self.tightest.lumped}


def ledger(run: Run, case: Case, knowledge: Knowledge | None = None, model: Model | None = None) -> Ledger | None:
    """The account of a run, or None where its lines say nothing of memory. Knowledge of models adds the prediction; `model` is the shape
    where it is known otherwise (a config.json)."""
    setup = setup_of(run, case, knowledge, model) if knowledge else None
    tags = sorted({f.process for f in run.facts if f.name in WORKER_FACTS}, key=lambda t: t or "")
    accounts = [_account(run, case, tag if len(tags) > 1 else None, setup, knowledge) for tag in (tags if len(tags) > 1 else [None])]
    accounts = sorted((a for a in accounts if a.entries), key=lambda a: (a.get("kv") is None, a.get("kv") or 0))
    tokens, token_ref = pool_tokens(run)
    if not accounts and tokens is None:
        return None
    accounts = accounts or [Account(None, None, {})]
    predicted = size(_unmeasured(setup)) if setup else None
    kv = accounts[0].get("kv")
    odd = _conflict(run, (tokens, token_ref), kv, predicted, setup, model) if tokens else None
    if odd is not None:
        tokens, token_ref = None, None
    each = _exact(kv, tokens) if kv and tokens else None
    if predicted and predicted.kv_bytes_per_token and (each is None or abs(each / predicted.kv_bytes_per_token - 1) < 0.01):
        each = predicted.kv_bytes_per_token  # the log's own figures are rounded; the shape is exact
    length = positive(option(run, "max-model-len"))
    concurrency = least(run, "kv_cache.max_concurrency")  # workers repeat it, each for its own pool
    observed = lengths(run, tokens)
    refs = {n: f[1] for n in ("kv_cache.tokens", "kv_cache.blocks", "kv_cache.max_concurrency") if odd is None and (f := _least(run, n))}
    if token_ref:
        refs["kv_tokens"] = token_ref
    found = Ledger(
        run=run.id,
        accounts=tuple(accounts),
        kv_tokens=tokens,
        kv_bytes_per_token=each,
        max_concurrency=concurrency if odd is None else None,
        max_model_len=length,
        block_size=least(run, "kv_cache.block_size") or positive(option(run, "block-size")),
        refs=refs,
        observed=observed,
        setup=setup,
        predicted=predicted,
        fits={},
        conflict=odd,
    )
    return _with_fits(found)


def _conflict(
    run: Run, pool: tuple[int, Ref | None], kv: int | None, predicted: Budget | None, setup: Setup | None, model: Model | None
) -> Conflict | None:
    """What contradicts the tokens in the pool. A shape that is not the log's own (`model`) does not; nor do bytes where the blocks were forced."""
    uniform = setup is not None and len(groups_of(setup)) == 1
    forced = positive(option(run, "num-gpu-blocks-override")) is not None
    each = predicted.kv_bytes_per_token if predicted and model is None else None
    return conflict(run, pool, None if forced else kv, each, uniform and model is None, predicted.block_size if predicted else None)


def _exact(kv: int, tokens: int) -> float:
    """Bytes per token from two printed figures: KV memory is printed to 0.01 GiB and cut to whole blocks, bytes per token of real shapes
    are multiples of 256. The one multiple that fits both is taken, else the quotient stands."""
    low, high = (kv - 0.005 * 2**30) / (tokens + 16), (kv + 0.005 * 2**30) / tokens
    for step in (1024, 256):
        if high // step * step > low and (high - low) < step:
            return float(high // step * step)
    return kv / tokens


WORKER_FACTS = ("memory.weights", "memory.activation", "memory.non_torch", "memory.kv_cache", "memory.total", "memory.consumed", "memory.graphs")


def pool_tokens(run: Run) -> tuple[int | None, Ref | None]:
    """Tokens in the KV pool: the smallest printed (workers repeat the line), else blocks times block size."""
    printed = _least(run, "kv_cache.tokens")
    if printed:
        return int(printed[0]), printed[1]
    blocks = _least(run, "kv_cache.blocks")
    if blocks is None:
        return None, None
    block = positive(option(run, "block-size"))
    given, concurrency, length = (_least(run, f"kv_cache.{n}") for n in ("block_size", "max_concurrency", "concurrency_length"))
    if given:
        block = int(given[0])
    if block is None and concurrency and length and blocks[0] > 0:
        # V0 prints blocks and concurrency: tokens = concurrency × length, and blocks have 8, 16, 32, 64 or 128 tokens
        guess = concurrency[0] * length[0] / blocks[0]
        block = min((8, 16, 32, 64, 128), key=lambda b: abs(b - guess))
    return (None, None) if block is None else (int(blocks[0]) * block, blocks[1])


def _least(run: Run, name: str) -> tuple[float, Ref] | None:
    """The smallest figure above zero that a fact states, with its line."""
    found = [(v, f.ref) for f in run.facts if f.name == name and (v := figure(f.value)) is not None and v > 0]
    return min(found, key=lambda f: f[0]) if found else None


def _account(run: Run, case: Case, process: str | None, setup: Setup | None, knowledge: Knowledge | None) -> Account:
    entries: dict[str, Entry] = {}

    tags = _tags(run)

    def fact(name: str) -> tuple[int, Ref] | None:
        own = [(int(v), f) for f in run.facts if f.name == name and (v := figure(f.value)) is not None]
        mine = [o for o in own if process is None or o[1].process == process] or [o for o in own if o[1].process not in tags]
        return min(((v, f.ref) for v, f in mine), key=lambda m: m[0]) if mine else None

    def put(name: str, source: str) -> None:
        found = fact(source)
        if found is not None:
            entries[name] = Entry(found[0], "printed", (found[1],))

    for name in ("total", "budget", "weights", "activation", "non_torch"):
        put(name, f"memory.{name}")
    put("kv", "memory.kv_cache")
    put("graphs", "memory.graphs")
    estimated = fact("memory.graphs_estimated")
    if "graphs" not in entries and estimated is not None:
        entries["graphs"] = Entry(estimated[0], "printed", (estimated[1],))
    if "total" not in entries:
        size_ = total_bytes(run, case)
        if size_ is not None:
            events = [e.ref for e in run.events_of("oom") if "oom.total" in e.values][:1]
            entries["total"] = Entry(size_, "printed", tuple(events))
    cards = card_bytes(run, case, knowledge) if knowledge and entries else None
    if cards and "total" not in entries:
        entries["total"] = Entry(cards[0], "derived", (cards[1][0].ref,))
    utilization = _utilization(run, setup)
    if "budget" not in entries and "total" in entries and utilization is not None:
        entries["budget"] = Entry(int(entries["total"].bytes * utilization), "derived", entries["total"].refs)
    consumed = fact("memory.consumed")
    if consumed is not None and "weights" in entries and "non_torch" not in entries:
        entries["non_torch"] = Entry(consumed[0] - entries["weights"].bytes, "derived", (consumed[1], *entries["weights"].refs))
    if consumed is not None and estimated is not None and "activation" in entries:
        own = [entries[n].bytes if n in entries else None for n in ("budget", "kv")]
        peak = without_graphs(entries["activation"].bytes, own[0], consumed[0], own[1], estimated[0])
        if peak != entries["activation"].bytes:
            entries["activation"] = Entry(peak, "derived", (*entries["activation"].refs, estimated[1]))
    free = fact("memory.free_at_start")
    if free is not None and "total" in entries:
        entries["outside"] = Entry(max(0, entries["total"].bytes - free[0]), "derived", (free[1],))
    if "graphs" not in entries and entries and option(run, "enforce-eager") in (True, "True", "true"):
        entries["graphs"] = Entry(0, "derived")
    charged = estimated[0] if estimated is not None and graphs_subtracted(run) else 0
    lumped = _derive_rest(entries, charged)
    if "total" in entries and "kv" in entries:
        known = sum(entries[p].bytes for p in PARTS if p in entries and p != "headroom")
        entries["headroom"] = Entry(entries["total"].bytes - known, "derived", entries["total"].refs)
    only = case.gpus[0].index if len(case.gpus) == 1 and cards else None
    return Account(process, _gpu_index(process, run) if only is None else only, entries, lumped, utilization)


def graphs_subtracted(run: Run) -> bool:
    """Did this run size its KV cache after subtracting the estimate of its graphs that it prints? 0.18 and 0.19 did where they were told to."""
    if not run.fact("memory.graphs_estimated"):
        return False
    asked = (run.launch.environment if run.launch else {}).get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    if asked is not None:
        return asked.strip() == "1"
    return run.version is None or generation_of(run.version, "V1").graphs_in_budget


def _derive_rest(entries: dict[str, Entry], charged: int) -> tuple[str, ...]:
    """Completes budget = weights + activation + non-torch (+ graphs counted) + KV where exactly one thing is missing, or where activation
    and non-torch memory are known only together; returns what was lumped into activation."""
    if "budget" not in entries:
        return ()
    missing = [p for p in ("weights", "activation", "non_torch", "kv") if p not in entries]
    rest = entries["budget"].bytes - charged - sum(entries[p].bytes for p in ("weights", "activation", "non_torch", "kv") if p in entries)
    if rest < 0 and "total" in entries and entries["total"].origin == "derived":
        return ()  # the size of a card as it is usual is not exact enough to say that the figures are impossible
    refs = tuple(dict.fromkeys(r for p in ("budget", "weights", "kv") if p in entries for r in entries[p].refs))[:3]
    if len(missing) == 1:
        entries[missing[0]] = Entry(rest, "derived", refs)
    elif missing == ["activation", "non_torch"]:
        entries["activation"] = Entry(rest, "derived", refs)
        return ("non_torch",)
    return ()


def _utilization(run: Run, setup: Setup | None) -> float | None:
    printed = run.fact("memory.utilization")
    if printed is not None:
        return ratio(printed.value)
    given = ratio(option(run, "gpu-memory-utilization"))
    if given is not None:
        return given
    return limits_of(setup).utilization if setup and (run.has_banner or run.launch) else None


def _tags(run: Run) -> set[str | None]:
    return {f.process for f in run.facts if f.name in WORKER_FACTS}


def _gpu_index(process: str | None, run: Run) -> int | None:
    """The GPU of a worker by its tag, such as `Worker_DP1_PP0_TP3`: ranks count tensor parallel ranks first, then stages, then replicas. A size
    of 1 has no part in the tag. None without a rank, or where the sizes are not those of the tag."""
    ranks = {name: int(number) for name, number in re.findall(r"(DP|PP|PCP|TP)(\d{1,4})(?!\d)", process or "")}
    longs = {"TP": "tensor", "PCP": "prefill-context", "PP": "pipeline", "DP": "data"}
    sizes = {name: positive(option(run, f"{long}-parallel-size")) for name, long in longs.items()}
    if not {"TP", "PP"} & set(ranks) and (sizes["DP"] or 1) == 1:
        return None
    index, stride = 0, 1
    for name, size_ in sizes.items():
        rank = ranks.get(name, 0)
        if rank and (stride == 0 or (size_ is not None and rank >= size_)):
            return None
        index += rank * stride
        stride *= 0 if name in ranks and size_ is None else size_ or 1  # 0: the size below is not known
    return index


def _unmeasured(setup: Setup) -> Setup:
    from msgspec import structs

    return structs.replace(setup, known={}, known_kv_bytes=None)


def _with_fits(found: Ledger) -> Ledger:
    from msgspec import structs

    wanted: dict[str, tuple[float, Basis]] = {}
    if found.observed:
        basis: Basis = "model" if found.observed.finished else "rule-of-thumb"
        wanted |= {"p50": (found.observed.p50, basis), "p95": (found.observed.p95, basis)}
    if found.max_model_len:
        wanted["max_model_len"] = (float(found.max_model_len), "measured")
    fits = {}
    for name, (tokens, basis) in wanted.items():
        requests = fitting(found, tokens)
        if name == "max_model_len" and found.max_concurrency is not None:
            requests = found.max_concurrency
        if requests is not None and tokens > 0:
            fits[name] = Fit(tokens, requests, basis)
    return structs.replace(found, fits=fits)


def fitting(found: Ledger, tokens: float) -> float | None:
    """Requests of so many tokens that the pool holds: by whole blocks and groups where the shape is known, else by tokens."""
    if tokens <= 0:
        return None
    if found.setup and found.predicted and found.predicted.blocks and found.kv_tokens:
        of_model = requests_that_fit(found.predicted, found.setup, tokens)
        scale = found.kv_tokens / found.predicted.kv_tokens if found.predicted.kv_tokens else None
        if scale:
            return of_model * scale
    return whole_requests(found.kv_tokens, tokens, found.block_size) if found.kv_tokens else None
