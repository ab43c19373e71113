"""What a case says about one server that bears on the effect of a change: memory, lengths, load, steps. Unknown is None, never 0.

Bytes are per GPU. Memory comes from the ledger: what the log prints is taken as printed.
"""

from __future__ import annotations

import math

from msgspec import Struct, field

from ..capacity.defaults import limits_of
from ..capacity.kv import kv_bytes_per_token
from ..capacity.ledger import Ledger, graphs_subtracted, ledger
from ..capacity.names import find_gpu
from ..capacity.observed import lengths as lengths_of
from ..capacity.observed import model_name, model_of, option, positive, total_bytes, whole
from ..model.case import Case, Known, Run, Window
from ..model.figures import figure
from ..model.judgement import Judgement
from ..ruleset.load import load_knowledge
from ..ruleset.schema import Model
from ..signals.evaluate import Evaluator
from ..signals.windows import windows
from ..versions import generation, parse, satisfies
from .servers import Server, servers_of

GIB = float(2**30)
GRAPHS_COUNTED_SINCE = "0.20.0"


class Figures(Struct, frozen=True):
    """One engine of one run. `lengths` are tokens per request, by `p50` and `p95`; `outputs` the part of them that was generated.

    `total_least` is the least that cards of this kind have, where only a table says how much that is; `kv_tokens_least` the fewest tokens behind
    sizes that are printed to 0.01 GiB, where no line counts them.
    `present`: the most requests that ran and waited at the same time. `held`: tokens that a running request held on average while others
    waited. `least_running` ran while others waited, `most_running` at any time. `itl_p99` and `step` are seconds; `chunk` is what one prompt
    may take of a step.
    `fixed_pool`: the number of blocks was forced, `pool_by_budget` the tokens that there would have been otherwise. `kv_rest` is what was left
    for the pool, zero and below where the start failed for it; `no_pool` says that it failed, however much was left, `never_pool` that the
    start ended before a pool was sized. `graphs_charged` is what
    the budget was charged for graphs; `headroom` what nothing claims. `cpu_space` is the pool of the CPU backend in GiB, `model_len` the longest
    length that the model allows, `longest_stated` the longest that vLLM says would fit. `servers` is what the memory model takes this server
    for: more than one where the version is not known, none where the shape or the card is not."""

    engine: str | None = None
    device: str = "cuda"
    total: float | None = None
    total_least: float | None = None
    utilization: float | None = None
    weights: float | None = None
    activation: float | None = None
    graphs: float | None = None
    graphs_counted: bool | None = None
    graphs_charged: float | None = None
    non_torch: float | None = None
    headroom: float | None = None
    kv_bytes: float | None = None
    kv_rest: float | None = None
    kv_tokens: float | None = None
    kv_tokens_least: float | None = None
    bytes_per_token: float | None = None
    block_size: float | None = None
    max_len: float | None = None
    model_len: float | None = None
    longest_stated: float | None = None
    slots: float | None = None
    budget: float | None = None
    ranks: float = 1.0
    lengths: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)
    fixed_pool: bool = False
    no_pool: bool = False
    never_pool: bool = False
    pool_by_budget: float | None = None
    reserve: float | None = 0.0
    host: float | None = None
    cpu_space: float | None = None
    chunks: float = 100.0
    chunk: float | None = None
    longest_prompt: float | None = None
    longest_output: float | None = None
    prompt_p95: float | None = None
    present: float | None = None
    held: float | None = None
    waiting: float | None = None
    running: float | None = None
    least_running: float | None = None
    most_running: float | None = None
    usage: float | None = None
    step: float | None = None
    itl_p99: float | None = None
    oom_requested: float | None = None
    oom_free: float | None = None
    reserved: float | None = None
    cut_streams: float | None = None
    servers: tuple[Server, ...] = ()


def look(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Figures:
    """The figures of the finding's engine. Load is that of the finding's window; lengths are those of the whole run, which has more of
    them; memory is that of the ledger, by the tightest GPU."""
    key = ("figures", run.id, finding.engine, finding.cause, finding.window)
    if key not in evaluator.memo:
        evaluator.memo[key] = _look(case, run, finding, evaluator)
    found = evaluator.memo[key]
    assert isinstance(found, Figures)
    return found


def account(case: Case, run: Run, evaluator: Evaluator) -> Ledger | None:
    """The run's ledger, with the model's shape where its name is known; remembered."""
    key = ("ledger", run.id)
    if key not in evaluator.memo:
        speaks = any(f.name.startswith(("memory.", "kv_cache.")) for f in run.facts)
        shape = evaluator.memo.get("model")  # from a config.json, where one was given
        evaluator.memo[key] = ledger(run, case, load_knowledge(), shape if isinstance(shape, Model) else None) if speaks else None
    found = evaluator.memo[key]
    assert found is None or isinstance(found, Ledger)
    return found


def _look(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Figures:
    engine = finding.engine if finding.engine is not None else run.engines[0]
    wholes = [w for w in windows(run, engine) if w.whole]

    def value(name: str, window: Window | None = None) -> float | None:
        found = evaluator.value(name, run, engine, window or finding.window)
        return found.value if isinstance(found, Known) and math.isfinite(found.value) else None

    def overall(name: str) -> float | None:
        return next((v for w in wholes if (v := value(name, w)) is not None), value(name))

    shape = evaluator.memo.get("model")
    servers = _servers(run, case, shape if isinstance(shape, Model) else None)
    found = account(case, run, evaluator)
    part = found.tightest.get if found else lambda name: None
    tokens = found.kv_tokens if found else None
    observed = lengths_of(run, tokens)
    lengths = {"p50": observed.p50, "p95": observed.p95} if observed else {}
    outputs = {w: v for w in lengths if observed and observed.finished and (v := overall(f"request.generation_tokens.{w}")) is not None}
    each, pool = found.kv_bytes_per_token if found else None, part("kv")
    if pool is None and each and tokens:
        pool = int(each * tokens)
    refusal = _refusal(run)
    if refusal is not None:
        each, pool, tokens = each or refusal[0], refusal[1] if pool is None else pool, tokens or refusal[2]
    if each is None or each <= 0:
        each = _by_shape(run, shape if isinstance(shape, Model) else None)
    rest = pool
    total = part("total") or total_bytes(run, case, load_knowledge() if case.gpus else None)
    graphs, counted = part("graphs"), graphs_counted(run)
    estimated = run.fact("memory.graphs_estimated")
    fixed = _forced(run)
    usage, batch = value("kv_cache.usage.while_waiting"), value("requests.running.while_waiting")
    held = tokens * usage / batch if tokens and usage and batch else None
    lumped = bool(found and found.tightest.lumped)
    oom = _oom(run)
    tensor = evaluator.setting("tensor-parallel-size", run, engine, finding.window)
    return Figures(
        engine=generation(run),
        device=run.text("device.type") or "cuda",
        total=total,
        total_least=None if total is None or total_bytes(run, case) is not None else _least_of_kind(case),
        utilization=_first_of(value("memory.utilization_in_force"), _stated(run, "startup.free_below_budget.utilization")),
        weights=part("weights"),
        activation=None if lumped else part("activation"),
        graphs=graphs,
        graphs_counted=counted,
        graphs_charged=figure(estimated.value) if estimated is not None and counted else None,
        non_torch=None if lumped else part("non_torch"),
        headroom=part("headroom") if part("outside") is not None or (graphs is not None and not counted) else None,
        kv_bytes=pool if pool is not None and pool > 0 else None,
        kv_rest=None if rest is None else float(rest),
        no_pool=bool(run.events_of("startup.no_kv_memory")),
        never_pool=not tokens and not run.events_of("startup.complete") and (finding.cause in NO_POOL or bool(run.events_of("startup.no_kv_memory"))),
        kv_tokens=tokens,
        kv_tokens_least=refusal[3] if refusal is not None and tokens == refusal[2] else None,
        bytes_per_token=each,
        block_size=value("kv_cache.block_size") or whole(option(run, "block-size")),
        max_len=_first_of(_positive(value("model.max_len")), _stated(run, "startup.kv_below_max_len.max_model_len"), _length_of(servers, run, shape)),
        longest_stated=_first_of(*(_stated(run, f"startup.kv_below_max_len.{n}") for n in ("estimated_length", "capacity"))),
        model_len=_stated(run, "startup.length_above_model.derived"),
        slots=_first_of(value("scheduler.max_num_seqs"), _filled_in(servers, "max_num_seqs", overall("requests.running.max"))),
        budget=_first_of(value("scheduler.token_budget"), _filled_in(servers, "max_num_batched_tokens")),
        ranks=tensor.value if isinstance(tensor, Known) and tensor.value >= 1 else 1.0,
        lengths=lengths,
        outputs=outputs,
        fixed_pool=fixed,
        pool_by_budget=_unforced(run, fixed, tokens),
        longest_prompt=overall("request.prompt_tokens.max"),
        longest_output=overall("request.generation_tokens.max"),
        prompt_p95=overall("request.prompt_tokens.p95"),
        held=held,
        present=_present(run, engine, finding.window),
        waiting=value("requests.waiting.max"),
        running=value("requests.running.max_while_waiting"),
        least_running=value("requests.running.min_while_waiting"),
        most_running=overall("requests.running.max"),
        usage=usage,
        step=value("step.duration.max") or (value("latency.itl.p99") if finding.cause == "prefill-spike" else None),
        itl_p99=overall("latency.itl.p99"),
        oom_requested=oom.get("requested"),
        oom_free=oom.get("free"),
        reserved=value("oom.reserved"),
        cut_streams=value("shutdown.cut_streams"),
        cpu_space=_cpu_space(run),
        servers=servers,
    )


NO_POOL = {"profile-oom", "startup-weights-too-large", "startup-free-memory-taken"}
"""Causes that end a start before the KV cache is sized."""


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _model(run: Run, shape: object) -> Model | None:
    return shape if isinstance(shape, Model) else model_of(run, load_knowledge())[0] if model_name(run) else None


def _length_of(servers: tuple[Server, ...], run: Run, shape: object) -> float | None:
    """The model's own length, which a start takes that was not told another; None where the model is not known, or the start may choose."""
    stated = option(run, "max-model-len")
    if stated is not None and (str(stated).strip().lower() == "auto" or satisfies(run.version, ">=0.14") is True):
        return None
    model = servers[0].setup.model if servers else _model(run, shape)
    return float(model.max_position_embeddings) if model is not None and model.max_position_embeddings else None


def _by_shape(run: Run, shape: Model | None) -> float | None:
    """Bytes that a token takes on each GPU by the model's shape, where nothing is printed and the card need not be known for it."""
    model = _model(run, shape)
    if model is None:
        return None
    ways = {name: positive(option(run, name.replace("_", "-"))) or 1 for name in WAYS}
    types = {name: str(option(run, name.replace("_", "-")) or "auto") for name in ("kv_cache_dtype", "dtype")}
    return kv_bytes_per_token(model, version=run.version, **types, **ways) or None  # type: ignore[arg-type]


WAYS = ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size")


def _least_of_kind(case: Case) -> float | None:
    """The least that CUDA was seen to report of the cards in a dump, in bytes."""
    found = [m.gpu for g in case.gpus if g.name and (m := find_gpu(g.name, load_knowledge())).gpu]
    return min((min(g.visible_gib) * GIB for g in found if g.visible_gib), default=None)


def _servers(run: Run, case: Case, shape: Model | None) -> tuple[Server, ...]:
    """The tables of models and cards are read only where a model has a name, or a shape was given."""
    return servers_of(run, case, load_knowledge(), shape) if shape is not None or model_name(run) else ()


def _filled_in(servers: tuple[Server, ...], name: str, least: float | None = None) -> float | None:
    """A limit that this version fills in by itself on this card; None where versions differ, or where more was seen than it allows."""
    found = {float(getattr(limits_of(s.setup), name)) for s in servers}
    only = found.pop() if len(found) == 1 else None
    return None if only is None or (least is not None and least > only) else only


def _first_of(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)


PRINTED_GIB = 0.005 * GIB
"""vLLM prints sizes to 0.01 GiB."""


def _refusal(run: Run) -> tuple[float, int, int, float | None] | None:
    """(bytes per token, bytes of the pool, tokens in it, the fewest where they are not stated) by the refusal to start with a length that does
    not fit: what one request of it needs, what there is, and the longest that vLLM reckons with."""
    for event in run.events_of("startup.kv_below_max_len"):
        need, have, length, longest = (
            figure(event.values.get(f"startup.kv_below_max_len.{n}")) for n in ("needed", "available", "max_model_len", "estimated_length")
        )
        if need and have and length and need > 0 and have > 0 and length > 0:
            least = None if longest else max(0.0, have - PRINTED_GIB) * length / (need + PRINTED_GIB)
            return need / length, int(have), int(longest or have * length / need), least
    return None


V0_CPU_SPACE = 4.0
"""GiB that V0 takes where VLLM_CPU_KVCACHE_SPACE is not set (vllm/platforms/cpu.py, 0.8.5)."""


def _cpu_space(run: Run) -> float | None:
    if run.text("device.type") != "cpu":
        return None
    given = run.launch.environment.get("VLLM_CPU_KVCACHE_SPACE") if run.launch else None
    if given:
        return float(given) if given.isdigit() and int(given) else None
    return V0_CPU_SPACE if generation(run) == "V0" else None


def _stated(run: Run, name: str) -> float | None:
    """A figure of the first event that states it, above zero."""
    found = (figure(e.values.get(name)) for e in run.events_of(name.rpartition(".")[0]))
    return next((v for v in found if v is not None and v > 0), None)


def graphs_counted(run: Run) -> bool | None:
    """Are CUDA graphs part of the budget? Since 0.20.0 by default; None where the version is unknown."""
    version, first = parse(run.version), parse(GRAPHS_COUNTED_SINCE)
    if version is None or first is None:
        return True if run.fact("memory.graphs_estimated") else None
    return version >= first or graphs_subtracted(run)  # 0.18 and 0.19 print an estimate, and subtract it where they are told to


def _forced(run: Run) -> bool:
    """Is the number of blocks forced?"""
    return bool(whole(option(run, "num-gpu-blocks-override")))


def _unforced(run: Run, forced: bool, tokens: float | None) -> float | None:
    """Tokens that the pool would have without the override: vLLM prints the number of blocks that it replaces."""
    blocks, by_budget = whole(option(run, "num-gpu-blocks-override")), run.fact("kv_cache.blocks_by_budget")
    instead = None if by_budget is None else figure(by_budget.value)
    if not forced or not blocks or instead is None:
        return None
    if tokens:
        return tokens * instead / blocks
    size = run.fact("kv_cache.block_size")
    each = (figure(size.value) if size else None) or whole(option(run, "block-size"))
    return instead * each if each else None


def _oom(run: Run) -> dict[str, float]:
    """Figures of the failure that lacked most; the first one where none states both sizes."""
    found = [
        {k.removeprefix("oom."): float(v) for k, v in e.values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        for e in run.events_of("oom")
    ]
    complete = [f for f in found if "requested" in f and "free" in f]
    if complete:
        return max(complete, key=lambda f: f["requested"] - f["free"])
    return found[0] if found else {}


def _present(run: Run, engine: int, window: Window) -> float | None:
    """The most requests that ran and waited in one slot of time."""
    if not 0 <= window.track < len(run.tracks):
        return None
    series = run.tracks[window.track].series
    running, waiting = series.get(("requests.running", engine)), series.get(("requests.waiting", engine))
    if running is None or waiting is None or running.exponent != waiting.exponent:
        return None
    sums = [
        running.buckets[slot].last.value + bucket.last.value
        for slot, bucket in waiting.buckets.items()
        if slot in running.buckets and window.start <= bucket.last.time <= window.end
    ]
    return max(sums, default=None)
