"""`vllm-doctor plan`: what fits, before anything is started. Offline."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..language import LANGUAGES
from .common import Misuse, Session, colored, emit, language_of, read_model_config, width

if TYPE_CHECKING:
    from ..capacity.logged import Logged
    from ..capacity.names import GpuMatch
    from ..capacity.plan import Plan
    from ..capacity.refusals import Note
    from ..capacity.setup import Setup
    from ..ruleset.schema import Knowledge, Model

F = Callable[..., Any]


class Count(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A count as vLLM's options take it: 8192, 8k, 1Gi. Raises for one below `least`."""

    name = "N"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ..capacity.observed import whole

        number = whole(value)
        if number is None:
            self.fail(f"{value!r} is not a count such as 8192, 8k or 1Gi", param, ctx)
        if number < self.least:
            self.fail(f"{value!r} is below {self.least}", param, ctx)
        return number


class Amount(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """GiB, or another finite number. Raises for one outside low..high, and for what is none (nan, inf)."""

    def __init__(self, low: float, high: float, name: str = "GiB") -> None:
        self.low, self.high, self.name = low, high, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from ..capacity.observed import ratio

        number = ratio(value)
        if number is None or not self.low <= number <= self.high:
            self.fail(f"{value!r} is not a number from {self.low:g} to {self.high:g}", param, ctx)
        return number


COUNT = Count()
SIZE = Amount(0, 100_000)
"""GiB of a part: none is larger than a rack of cards."""
_OPTIONS: list[F] = [
    click.option("--model", required=True, metavar="NAME|FILE", help="A model's name as people write it, or its config.json."),
    click.option(
        "--gpu", "gpus", multiple=True, required=True, metavar="NAME|GiB", help="A card, or its GiB as CUDA reports them; repeat to compare."
    ),
    click.option(
        "--tp", "--tensor-parallel-size", "-tp", "tp", type=COUNT, help="GPUs for tensor parallelism (default: as many as --gpu says, as in 2x4090)."
    ),
    click.option("--pipeline-parallel-size", "-pp", "--pp", "pp", type=COUNT, default=1, help="Pipeline stages."),
    click.option("--decode-context-parallel-size", "-dcp", "--dcp", "dcp", type=COUNT, default=1, help="GPUs that share the tokens of the KV cache."),
    click.option("--data-parallel-size", "-dp", "--dp", "dp", type=COUNT, default=1, help="Replicas (bears on experts only)."),
    click.option("--enable-expert-parallel", "-ep", "--ep", "enable_expert_parallel", is_flag=True, help="Experts are distributed, not split."),
    click.option("--vllm-version", metavar="V", help="Default: the newest release known."),
    click.option("--gpu-memory-utilization", type=Amount(0.01, 1, "SHARE"), help="Share of the card that vLLM may use."),
    click.option("--max-model-len", type=COUNT, help="Longest request, in tokens."),
    click.option("--max-num-seqs", type=COUNT, help="Most requests that run at once."),
    click.option("--max-num-batched-tokens", type=COUNT, help="Tokens in one step."),
    click.option("--dtype", default="auto", help="Type of weights and activations."),
    click.option("--quantization", "-q", help="awq, gptq, fp8, bitsandbytes, mxfp4, Q4_K_M, ... (default: what the name says)."),
    click.option("--kv-cache-dtype", default="auto", help="Type of the KV cache."),
    click.option("--block-size", type=COUNT, help="Tokens in a block."),
    click.option("--kv-cache-memory-bytes", type=COUNT, help="Size of the KV cache, instead of a utilization."),
    click.option("--num-gpu-blocks-override", type=COUNT, help="Blocks of the KV cache, whatever fits."),
    click.option("--cpu-offload-gb", type=SIZE, default=0.0, help="GiB of weights kept in host memory."),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
    click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", "chunked", default=None, help="Default: as the version does."),
    click.option("--disable-hybrid-kv-cache-manager", "no_hybrid", is_flag=True, help="Sliding-window layers hold all tokens."),
    click.option("--num-speculative-tokens", type=Count(0), default=0, help="Draft tokens per step."),
    click.option("--draft-model", metavar="NAME|FILE", help="A draft model with a KV cache of its own."),
    click.option("--engine", type=click.Choice(["V0", "V1"]), help="Where the version has both (default: as it chooses)."),
    click.option("--offline", is_flag=True, help="The LLM class, not the server: its defaults differ."),
    click.option("--other-gib", type=SIZE, default=0.0, help="GiB that other processes hold on the card."),
    click.option("--weights-gib", type=SIZE, help="Weights per GPU, if measured."),
    click.option("--activation-gib", type=SIZE, help="Peak activation, if measured."),
    click.option("--non-torch-gib", type=Amount(-100, 100_000), help="Non-torch memory, if measured."),
    click.option("--graphs-gib", type=SIZE, help="CUDA graphs, if measured."),
    click.option(
        "--log", "log", type=click.Path(exists=True), metavar="FILE", help="A log of the same set-up: its measured parts replace estimates."
    ),
    click.option("--concurrency", type=COUNT, help="Requests that shall run at once."),
    click.option("--input", "input_", type=Count(0), help="Prompt tokens of a request."),
    click.option("--output", type=Count(0), help="Generated tokens of a request."),
    click.option(
        "--solve", "question", type=click.Choice(["max-model-len", "max-num-seqs", "gpu-memory-utilization", "tp"]), help="Find the value that fits."
    ),
    click.option("--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."),
    click.option("--lang", type=click.Choice(LANGUAGES), help="Language (default: from the environment)."),
    click.option("--rules", "rules_dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Add models and cards in DIR."),
    click.option("-v", "--verbose", is_flag=True, help="A traceback where something fails inside."),
]


def _options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(
    "plan",
    short_help="Say what fits on a card: KV cache, requests at once, options to use.",
    # vLLM takes underscores for hyphens in names of options
    context_settings={"ignore_unknown_options": True, "token_normalize_func": lambda name: name.replace("_", "-")},
)
@_options
@click.argument("others", nargs=-1, type=click.UNPROCESSED, metavar="[OTHER VLLM OPTIONS]...")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Calculates where a GPU's memory goes under vLLM and how many requests fit, for a model, a card and a version, offline.

    \b
    vllm-doctor plan --model Qwen2.5-7B --gpu "RTX 4090" --max-model-len 8192 --concurrency 20
    vllm-doctor plan --model ./config.json --gpu L40S --gpu H100 --input 3000 --output 500 --solve max-num-seqs

    Exit code: 0 calculated (also where it does not fit), 2 usage.
    """
    from msgspec import structs

    from ..capacity.command import options_of
    from ..capacity.plan import plan
    from ..capacity.solving import Wish
    from ..reports.plan import as_json, as_text
    from ..ruleset.errors import RulesInvalid
    from ..ruleset.load import load_knowledge
    from . import plan_options as options
    from .common import load_rules, rule_faults

    session = ctx.find_object(Session)
    if session:
        session.verbose = given["verbose"]
    language = language_of(given["lang"])
    given["vllm_version"] = options.version_as_typed(given["vllm_version"])
    _checked(given)
    try:
        knowledge = load_knowledge(given["rules_dir"])
    except RulesInvalid as invalid:
        raise rule_faults(invalid) from None
    model, quantization = find_shape(given["model"], knowledge)
    draft = find_shape(given["draft_model"], knowledge)[0] if given["draft_model"] else None
    pasted = options.read(given["others"], load_rules(None).flags, _names(ctx), ctx)
    if pasted.lifts_limit and given["max_model_len"]:
        model = structs.replace(model, max_position_embeddings=max(model.max_position_embeddings or 0, given["max_model_len"]))
    wish = Wish(given["concurrency"], given["input_"], given["output"])
    plans: list[tuple[str, Plan]] = []
    for text in given["gpus"]:
        card = find_card(text, knowledge)
        gpu, total = card.gpu, round((card.total_gib or 0) * 2**30)
        setup = _setup(model, quantization, draft, card, given, _shared(text, card.count, given))
        log = measured(setup, given["log"], knowledge) if given["log"] else None
        setup = log.setup if log else setup
        spelt, notes = _spelt(setup, given)
        if log and log.speculation:
            spelt["--speculative-config"] = log.speculation
        options.existing(setup, (*options_of(setup), *spelt), load_rules(None).flags)
        words, about = options.carried(pasted, setup, load_rules(None).flags)
        answer = plan(setup, wish, given["question"], spelt, words)
        notes += [*about, *options.outside(setup)]
        if log and log.differs:
            notes.append(("log-differs", {"what": log.differs}))
        if log and log.version:
            notes.append(("log-version", {"version": log.version}))
        label = gpu.name if gpu else f"{total / 2**30:g} GiB"
        plans.append((label if card.count == 1 else f"{card.count} × {label}", structs.replace(answer, notes=(*answer.notes, *notes))))
    if given["output_format"] == "json":
        emit(as_json(plans, given["model"], wish))
    else:
        import sys

        emit(as_text(plans, given["model"], wish, language=language, width=width(), color=colored(sys.stdout)))
    return 0


def find_shape(text: str, knowledge: Knowledge) -> tuple[Model, str | None]:
    """(shape, quantisation that the name states). Raises Misuse for an unknown or ambiguous name."""
    import errno
    import os

    from ..capacity.names import find_model, untuned

    path = Path(text)
    if "{" in text:  # a config pasted, perhaps with words around it
        from ..capacity.config_json import ConfigInvalid, model_from_config

        try:
            return model_from_config(text), None
        except ConfigInvalid as error:
            raise Misuse("--model: {reason}", reason=error) from None
    for file in (path, path / "config.json"):
        if file.suffix in (".json", ".txt") and file.is_file():
            return read_model_config(str(file)), None
    if path.suffix == ".json":
        raise Misuse("cannot read {path}: {reason}", path=text, reason=os.strerror(errno.ENOENT))
    match = find_model(text, knowledge)
    if match.model:
        if not (match.model.num_hidden_layers and match.model.hidden_size and match.model.num_attention_heads):
            raise Misuse("--model {text}: the shape of {name} is not known here; give its config.json instead", text=text, name=match.model.name)
        return match.model, match.quantization
    if match.candidates:
        raise Misuse("--model {text}: this fits several models: {names}", text=text, names=", ".join(match.candidates))
    close = _close(untuned(text), {untuned(n): m.name for m in reversed(knowledge.models) for n in (m.name, *m.aliases)})
    if close:
        raise Misuse("--model {text}: not among the known models (did you mean {names}?); give its config.json instead", text=text, names=close)
    raise Misuse("--model {text}: not among the known models; give its config.json instead", text=text)


def find_card(text: str, knowledge: Knowledge) -> GpuMatch:
    """What the text means, with a size. Raises Misuse for an unknown or ambiguous name."""
    from ..capacity.names import find_gpu

    match = find_gpu(text, knowledge)
    if match.total_gib:
        return match
    if match.candidates:
        sizes = sorted({g.marketed_gb for g in knowledge.gpus if g.name in match.candidates})
        hints = [f"'{text} {size:g}GB'" for size in sizes]
        names = ", ".join(match.candidates)
        raise Misuse("--gpu {text}: this fits several cards: {names}; say the size: {sizes}", text=text, names=names, sizes=hints)
    if re.search(r"[,+;&、，]", text):
        raise Misuse("--gpu {text}: cards that differ; GPUs of one server are taken to be alike: give --gpu once for each to compare", text=text)
    close = _close(text, {g.name.lower(): g.name for g in knowledge.gpus})
    if close:
        raise Misuse("--gpu {text}: not among the known cards (did you mean {names}?); give its GiB instead, such as 23.6", text=text, names=close)
    raise Misuse("--gpu {text}: not among the known cards; give its GiB instead, such as 23.6", text=text)


def _close(text: str, names: Mapping[str, str]) -> str:
    """The three entries that look most like `text`, of those under the names that they are compared by; empty if none does."""
    import difflib

    near = difflib.get_close_matches(text.rpartition("/")[2].lower(), names, n=6)
    return ", ".join(list(dict.fromkeys(names[c] for c in near))[:3])


def _shared(text: str, count: int, given: dict[str, Any]) -> int:
    """GPUs that share the model by tensor parallelism: as given, else all that --gpu names and other ways of sharing leave. Raises Misuse where
    the options ask for more GPUs than --gpu names."""
    others = given["pp"] * given["dp"]
    if given["tp"] is None and given["question"] == "tp":
        return 1
    tp: int = given["tp"] or max(1, count // others)
    if count > 1 and tp * others > count:
        raise Misuse("--gpu {text}: {count} GPUs, while the options take {needed}", text=text, count=count, needed=tp * others)
    return tp


def _setup(model: Model, named_quantization: str | None, draft: Model | None, card: GpuMatch, given: dict[str, Any], tp: int) -> Setup:
    from ..capacity.plan import gib
    from ..capacity.setup import PARTS, Setup

    known = {part: gib(given[f"{part}_gib"]) for part in PARTS if given[f"{part}_gib"] is not None}
    vendor = card.gpu.vendor if card.gpu else "NVIDIA"
    return Setup(
        model=model,
        total_bytes=gib(card.total_gib or 0),
        spread_bytes=gib(card.spread_gib),
        gpu=card.gpu,
        device={"AMD": "rocm", "NVIDIA": "cuda"}.get(vendor, "other"),
        version=given["vllm_version"],
        engine_generation=given["engine"],
        gpu_memory_utilization=given["gpu_memory_utilization"],
        tensor_parallel_size=tp,
        pipeline_parallel_size=given["pp"],
        decode_context_parallel_size=given["dcp"],
        data_parallel_size=given["dp"],
        enable_expert_parallel=given["enable_expert_parallel"],
        max_model_len=given["max_model_len"],
        max_num_seqs=given["max_num_seqs"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        dtype=given["dtype"],
        quantization=given["quantization"] or named_quantization,
        kv_cache_dtype=given["kv_cache_dtype"],
        block_size=given["block_size"],
        enforce_eager=given["enforce_eager"],
        enable_chunked_prefill=given["chunked"],
        disable_hybrid_kv_cache_manager=given["no_hybrid"],
        offline=given["offline"],
        kv_cache_memory_bytes=given["kv_cache_memory_bytes"],
        num_gpu_blocks_override=given["num_gpu_blocks_override"],
        cpu_offload_bytes=gib(given["cpu_offload_gb"]),
        draft=draft,
        speculative_tokens=given["num_speculative_tokens"],
        outside_bytes=gib(given["other_gib"]),
        known=known,
    )


def _names(ctx: click.Context) -> list[str]:
    return [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]


def _checked(given: dict[str, Any]) -> None:
    """Raises Misuse for values that vLLM would not know, or that ask for nothing."""
    import re

    from ..capacity.generations import release_of
    from .plan_options import BLOCK_SIZES, DTYPES, KV_DTYPES, quantisation_known

    version = given["vllm_version"]
    known = re.fullmatch(r"v?\d+\.\d+(\.(\d+|x)){0,2}(\.?(post|rc|dev|a|b)\d+)*(\+[\w.]+)?(\s*\(?V[01]\)?)?", version or "0.1", re.ASCII)
    if version is not None and (not known or release_of(version) is None):
        raise Misuse("--vllm-version {version}: not a version such as 0.10.2; without the option the newest release known is taken", version=version)
    for name, values in (("dtype", DTYPES), ("kv_cache_dtype", KV_DTYPES)):
        if given[name] not in values:
            raise Misuse("{option}: not one of {values}", option=f"--{name.replace('_', '-')} {given[name]}", values=", ".join(values))
    if given["quantization"] and not quantisation_known(given["quantization"]):
        raise Misuse("--quantization {name}: unknown; known are such as awq, gptq, fp8, w8a8, bitsandbytes, Q4_K_M", name=given["quantization"])
    size = given["block_size"]
    if size is not None and size not in BLOCK_SIZES and size % 16:
        raise Misuse("--block-size {size}: a block has 1, 8 or a multiple of 16 tokens", size=size)
    if given["input_"] is not None and given["output"] is not None and given["input_"] + given["output"] == 0:
        raise Misuse("--input and --output: a request has at least one token")


def _spelt(setup: Setup, given: dict[str, Any]) -> tuple[dict[str, str], list[Note]]:
    """Options that the set-up holds in another form than the user gave them, as vLLM takes them; and what no option of vLLM says."""
    from ..capacity.command import speculation
    from .plan_options import method

    spelt, notes = speculation(setup, given["draft_model"]), list[Any]()
    if given["quantization"]:
        name = method(given["quantization"])
        if name:
            spelt["--quantization"] = name
        elif name is None:
            notes.append(("checkpoint", {"kind": given["quantization"]}))
    return spelt, notes


def measured(setup: Setup, path: str, knowledge: Knowledge) -> Logged:
    """The set-up with what a log states (see capacity/logged.py). Raises Misuse where the log is of another model or split, or says nothing of
    memory."""
    from ..capacity.logged import logged, states_memory
    from ..capacity.observed import model_of, option, whole
    from ..pipeline import read_case
    from ..ruleset.load import load
    from ..sources import read

    sources, _issues = read((path,), None)
    case = read_case(sources, load(None))
    runs = [r for r in case.runs if states_memory(r)]
    if not runs:
        raise Misuse("--log {path}: no line of it says what the memory went to", path=path)
    run = runs[-1]
    other = model_of(run, knowledge)[0]
    if other is not None and other.name != setup.model.name:
        raise Misuse("--log {path}: it is of {other}, not of {model}", path=path, other=other.name, model=setup.model.name)
    split = whole(option(run, "tensor-parallel-size")) or 1
    if split != setup.tensor_parallel_size:
        raise Misuse("--log {path}: it is of {split} GPUs per server, not of {tp}", path=path, split=split, tp=setup.tensor_parallel_size)
    return logged(setup, run, case, knowledge)
