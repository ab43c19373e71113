"""The set-up of a server as its log and its launch command show it, and how long its requests were."""

from __future__ import annotations

import json

from msgspec import Struct, structs

from ..model.case import Case, Run
from ..model.figures import figure
from ..model.observations import Gpu, Histogram, Ref, Scalar
from ..ruleset.schema import Knowledge, Model
from ..versions import generation
from .names import find_gpu, find_model
from .setup import GIB, Part, Setup

SPELLINGS: dict[str, tuple[str, ...]] = {
    "gpu-memory-utilization": ("gpu-memory-utilization", "device-memory-utilization", "gpu_memory_utilization"),
    "tensor-parallel-size": ("tensor-parallel-size", "tp", "tensor_parallel_size"),
    "pipeline-parallel-size": ("pipeline-parallel-size", "pp"),
    "decode-context-parallel-size": ("decode-context-parallel-size", "dcp"),
    "kv-cache-memory-bytes": ("kv-cache-memory-bytes", "kv-cache-memory"),
}


def option(run: Run, name: str) -> Scalar | None:
    """An option in force: as the server printed it, else as given."""
    for spelling in SPELLINGS.get(name, (name,)):
        for prefix in ("config.", "flag."):
            found = run.fact(prefix + spelling)
            if found is not None and str(found.value) not in ("None", "null", "***"):
                return found.value
        given = run.flags()
        if spelling in given and str(given[spelling]) not in ("None", "null", "***"):
            return given[spelling]
    return None


def whole(value: Scalar | None) -> int | None:
    """A count that may carry thousands separators or the suffixes of vLLM's human-readable integers (8k, 1Gi). None for what is none."""
    if not isinstance(value, str):
        number = figure(value)
        return None if number is None else int(number)
    text = value.strip().replace(",", "").replace("_", "")
    suffix = next((u for u in SCALES if text.endswith(u)), "")
    number = ratio(text.removesuffix(suffix))
    scaled = None if number is None else figure(number * SCALES.get(suffix, 1))
    return None if scaled is None else int(scaled)


SCALES = {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30,
    "T": 2**40,
}  # fmt: skip
"""vllm/engine/arg_utils.py, human_readable_int: lower case is decimal, upper case binary; Gi is what people write."""


def ratio(value: Scalar | None) -> float | None:
    """A number, also as text; None for what is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return figure(value)


def gib_bytes(value: float | None) -> int:
    """Bytes of so many GiB; 0 for none and for less, and no more than 64 TiB: a larger figure is no memory."""
    return round(min(max(value or 0.0, 0.0), 65536.0) * GIB)


def positive(value: Scalar | None) -> int | None:
    """`whole` of what must be above zero; None for what is not (-1 is vLLM's word for automatic)."""
    number = whole(value)
    return number if number is not None and number > 0 else None


def truth(value: Scalar | None) -> bool | None:
    if value is None:
        return None
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1", "yes", "on")


def least(run: Run, name: str) -> float | None:
    """A memory fact; where workers differ the smallest, as the engine takes the minimum of the pools."""
    found = [v for f in run.facts if f.name == name and (v := figure(f.value)) is not None]
    return min(found) if found else None


def model_name(run: Run) -> str | None:
    return run.text("model.name") or (run.launch.model if run.launch else None)


def model_of(run: Run, knowledge: Knowledge) -> tuple[Model | None, str | None]:
    """(entry, quantisation in the name) of the run's model; None where the name is unknown or fits several shapes."""
    name = model_name(run)
    match = find_model(name, knowledge) if name else None
    return (match.model, match.quantization) if match else (None, None)


def total_bytes(run: Run, case: Case, knowledge: Knowledge | None = None) -> int | None:
    """Device memory as CUDA sees it: printed, of an OOM text, or by a GPU dump (see `card_bytes`; with `knowledge` only)."""
    printed = least(run, "memory.total")
    if printed:
        return int(printed)
    stated = [(e, f"{kind}.total") for kind in ("oom", "startup.free_below_budget") for e in run.events_of(kind)]
    sizes = [v for e, name in stated if (v := figure(e.values.get(name))) is not None and v > 0]
    if sizes:
        return int(min(sizes))
    card = card_bytes(run, case, knowledge) if knowledge is not None else None
    return card[0] if card else None


RESERVED = 0.05
"""nvidia-smi shows up to so much more of a card than CUDA has; what differs by more is a part of a card (MIG), or another variant."""


def card_bytes(run: Run, case: Case, knowledge: Knowledge) -> tuple[int, tuple[Gpu, ...]] | None:
    """(device memory, the cards) by a GPU dump: what is typical of the card that it names, else the dump's own total, which is a little more
    than CUDA has. None without a dump, for another device than a GPU, or where the cards differ: which of them the server uses is not known."""
    if not case.gpus or run.text("device.type") not in (None, "cuda", "rocm"):
        return None
    sizes: dict[int, list[Gpu]] = {}
    for gpu in case.gpus:
        match = find_gpu(gpu.name, knowledge) if gpu.name else None
        typical = round(match.total_gib * GIB) if match and match.gpu and match.total_gib else None
        if typical and gpu.total_bytes and abs(gpu.total_bytes / typical - 1) > RESERVED:
            typical = None
        size = typical or gpu.total_bytes
        if size and size > 0:
            sizes.setdefault(size, []).append(gpu)
    if len(sizes) != 1:
        return None
    return next((size, tuple(cards)) for size, cards in sizes.items())


def setup_of(run: Run, case: Case, knowledge: Knowledge, model: Model | None = None, total: int | None = None) -> Setup | None:
    """What `size` needs, with every part that the log measured in `known`. None without a model of known shape and a device size.

    `model` replaces the lookup by name, as from a config.json; `total` is the device's size where the log does not tell it."""
    found, quant = (model, None) if model else model_of(run, knowledge)
    device = run.text("device.type") or "cuda"
    total = total_bytes(run, case, knowledge) or total
    cpu = device == "cpu"
    space = _cpu_space(run) if cpu else None
    if found is None or (total is None and space is None):
        return None
    named = [m.gpu for g in case.gpus if g.name and (m := find_gpu(g.name, knowledge)).gpu]
    stated = option(run, "quantization")
    own = generation(run)
    speculative, draft, heads = _speculative(option(run, "speculative-config"), knowledge)
    setup = Setup(
        model=found,
        total_bytes=total or space or 0,
        gpu=named[0] if named else None,
        device=device,
        version=run.version,
        engine_generation="V0" if own == "V0" else "V1" if own == "V1" else None,
        gpu_memory_utilization=least(run, "memory.utilization") or ratio(option(run, "gpu-memory-utilization")),
        tensor_parallel_size=positive(option(run, "tensor-parallel-size")) or 1,
        pipeline_parallel_size=positive(option(run, "pipeline-parallel-size")) or 1,
        decode_context_parallel_size=positive(option(run, "decode-context-parallel-size")) or 1,
        enable_expert_parallel=truth(option(run, "enable-expert-parallel")) or False,
        data_parallel_size=positive(option(run, "data-parallel-size")) or 1,
        max_model_len=positive(option(run, "max-model-len")),
        max_num_seqs=positive(option(run, "max-num-seqs")),
        max_num_batched_tokens=positive(option(run, "max-num-batched-tokens")),
        dtype=str(option(run, "dtype") or "auto"),
        quantization=str(stated) if stated else quant,
        kv_cache_dtype=str(option(run, "kv-cache-dtype") or "auto"),
        block_size=positive(option(run, "block-size")),
        enforce_eager=truth(option(run, "enforce-eager")) or False,
        enable_chunked_prefill=truth(option(run, "enable-chunked-prefill")),
        disable_hybrid_kv_cache_manager=truth(option(run, "disable-hybrid-kv-cache-manager")) or False,
        kv_cache_memory_bytes=space if cpu else positive(option(run, "kv-cache-memory-bytes")),
        num_gpu_blocks_override=positive(option(run, "num-gpu-blocks-override")),
        cpu_offload_bytes=gib_bytes(ratio(option(run, "cpu-offload-gb"))),
        estimate_graphs=truth(run.launch.environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")) if run.launch else None,
        draft=draft,
        draft_layers=heads,
        speculative_tokens=speculative,
    )
    return structs.replace(setup, known=known_parts(run), known_kv_bytes=None if cpu else _whole_fact(run, "memory.kv_cache"))


def known_parts(run: Run) -> dict[Part, int]:
    """The parts of the budget that the log states, in bytes. What newer versions print as consumed is weights and non-torch together."""
    known: dict[Part, int] = {}
    names: tuple[tuple[Part, str], ...] = (
        ("weights", "memory.weights"), ("activation", "memory.activation"), ("non_torch", "memory.non_torch"),
        ("graphs", "memory.graphs_estimated"),
    )  # fmt: skip
    for part, name in names:
        value = _whole_fact(run, name)
        if value is not None:
            known[part] = value
    consumed = _whole_fact(run, "memory.consumed")
    if consumed is not None and "weights" in known and "non_torch" not in known:
        known["non_torch"] = consumed - known["weights"]
    if "activation" in known and "graphs" in known and consumed is not None:
        budget, kv = _whole_fact(run, "memory.budget"), _whole_fact(run, "memory.kv_cache")
        known["activation"] = without_graphs(known["activation"], budget, consumed, kv, known["graphs"])
    return known


def without_graphs(activation: int, budget: int | None, consumed: int, kv: int | None, estimate: int) -> int:
    """The peak activation alone. Where vLLM prints what it consumed (0.27 and later), its peak activation may hold the estimate of the CUDA
    graphs already (vLLM issue 57936): it does where the printed figures add up without the estimate. All in bytes."""
    if budget is None or kv is None or activation < estimate:
        return activation
    rest = budget - consumed - activation - kv
    return activation - estimate if abs(rest) < abs(estimate - rest) else activation


def _whole_fact(run: Run, name: str) -> int | None:
    value = least(run, name)
    return None if value is None else int(value)


def _cpu_space(run: Run) -> int | None:
    """KV bytes of the CPU backend: VLLM_CPU_KVCACHE_SPACE in GiB, or as printed."""
    printed = least(run, "memory.kv_cache")
    if printed:
        return int(printed)
    given = run.launch.environment.get("VLLM_CPU_KVCACHE_SPACE") if run.launch else None
    size = ratio(given)
    return round(size * GIB) if size else None


HEADS = ("eagle", "mtp", "medusa")
"""Words in `method` of drafts that are layers on top of the target."""


def _speculative(value: Scalar | None, knowledge: Knowledge) -> tuple[int, Model | None, int]:
    """(draft tokens, the draft's model where it is one of its own, its layers where it sits on the target) of --speculative-config."""
    try:
        given = json.loads(str(value)) if value else None
    except ValueError:
        return 0, None, 0
    tokens = given.get("num_speculative_tokens") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(tokens, int) or tokens <= 0:
        return 0, None, 0
    method, name = str(given.get("method") or "").lower(), given.get("model")
    if any(word in method for word in HEADS):
        return min(tokens, 1000), None, 1
    draft = find_model(name, knowledge).model if isinstance(name, str) and method != "ngram" else None
    return min(tokens, 1000), draft, 0


class Lengths(Struct, frozen=True):
    """Tokens per request, prompt and output together: the median and the 95th percentile, where they were read, and over how many
    requests or samples. `finished` tells lengths of finished requests (the quantiles of prompts and outputs added up: of the two together
    vLLM has no histogram) from what requests held while they ran. Neither exceeds max-model-len."""

    p50: float
    p95: float
    refs: tuple[Ref, ...]
    n: int
    finished: bool


def lengths(run: Run, pool_tokens: float | None) -> Lengths | None:
    """From the histograms of finished requests (growth between the first and the last scrape, else all of the last one); else from what
    each running request held on average in the stats lines: pool × usage ÷ running."""
    most = longest_request(run)
    for track in run.tracks:
        scrapes = [s for s in track.scrapes if any(n == "request.prompt_tokens" for n, _ in s.histograms)]
        if scrapes:
            prompts, outputs = (_grown(scrapes[0].histograms, scrapes[-1].histograms, f"request.{k}_tokens") for k in ("prompt", "generation"))
            if prompts.count > 0:
                refs = tuple(r for k in ("prompt", "generation") if (r := scrapes[-1].refs.get(f"request.{k}_tokens")))
                middle, high = (min(_quantile(prompts, q) + _quantile(outputs, q), most) for q in (0.5, 0.95))
                return Lengths(middle, high, refs, int(prompts.count), True)
    if not pool_tokens:
        return None
    held: list[tuple[float, Ref]] = []
    for track in run.tracks:
        for engine in run.engines:
            usage, running = track.series.get(("kv_cache.usage", engine)), track.series.get(("requests.running", engine))
            if usage is None or running is None:
                continue
            shares = {p.time: p for p in usage.points()}
            held += [(pool_tokens * shares[p.time].value / p.value, p.ref) for p in running.points() if p.value > 0 and p.time in shares]
    held = sorted(((min(n, most), ref) for n, ref in held if n > 0), key=lambda h: h[0])
    if len(held) < 3:
        return None
    middle_at, high_at = held[len(held) // 2], held[min(len(held) - 1, int(len(held) * 0.95))]
    return Lengths(middle_at[0], high_at[0], (middle_at[1], high_at[1]), len(held), False)


def longest_request(run: Run) -> float:
    """The most tokens that a request can have: max-model-len as printed or given, else the length that the concurrency is told for."""
    return float(positive(option(run, "max-model-len")) or positive(least(run, "kv_cache.concurrency_length")) or "inf")


def _grown(first: dict[tuple[str, int], Histogram], last: dict[tuple[str, int], Histogram], name: str) -> Histogram:
    """Growth of a histogram summed over engines; all of the last one where it did not grow."""
    total: dict[float, float] = {}
    count = 0.0
    for (own, engine), histogram in last.items():
        if own != name:
            continue
        before = first.get((own, engine))
        grew = before is not None and histogram.count > before.count and len(before.buckets) == len(histogram.buckets)
        base = [c for _, c in before.buckets] if before and grew else [0.0] * len(histogram.buckets)
        for (bound, cumulative), below in zip(histogram.buckets, base, strict=True):
            total[bound] = total.get(bound, 0.0) + cumulative - below
        count += histogram.count - (before.count if before and grew else 0.0)
    return Histogram(tuple(sorted(total.items())), 0.0, count)


def _quantile(histogram: Histogram, q: float) -> float:
    """Linear within the bucket; the lower bound in the last, open one. 0 for an empty histogram."""
    target, lower, below = q * histogram.count, 0.0, 0.0
    for bound, cumulative in histogram.buckets:
        if cumulative >= target and cumulative > below:
            return lower if bound == float("inf") else lower + (bound - lower) * (target - below) / (cumulative - below)
        lower, below = (lower if bound == float("inf") else bound), cumulative
    return lower
