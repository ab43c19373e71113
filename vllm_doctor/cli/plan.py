"""`vllm-doctor plan`: what fits, before anything is started. Offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..language import LANGUAGES
from .common import Misuse, colored, emit, language_of, read_model_config, width

if TYPE_CHECKING:
    from ..capacity.plan import Plan
    from ..capacity.setup import Setup
    from ..ruleset.schema import Gpu, Knowledge, Model

F = Callable[..., Any]


class Count(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A count as vLLM's options take it: 8192, 8k, 1Gi."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ..capacity.observed import whole

        number = whole(value)
        if number is None or number < 0:
            self.fail(f"{value!r} is not a count such as 8192, 8k or 1Gi", param, ctx)
        return number


COUNT = Count()
_OPTIONS: list[F] = [
    click.option("--model", required=True, metavar="NAME|FILE", help="A model's name as people write it, or its config.json."),
    click.option(
        "--gpu", "gpus", multiple=True, required=True, metavar="NAME|GiB", help="A card, or its GiB as CUDA reports them; repeat to compare."
    ),
    click.option("--tp", "--tensor-parallel-size", "-tp", "tp", type=COUNT, default=1, help="GPUs for tensor parallelism."),
    click.option("--pipeline-parallel-size", "-pp", "--pp", "pp", type=COUNT, default=1, help="Pipeline stages."),
    click.option("--decode-context-parallel-size", "-dcp", "dcp", type=COUNT, default=1, help="GPUs that share the tokens of the KV cache."),
    click.option("--data-parallel-size", "-dp", "dp", type=COUNT, default=1, help="Replicas (bears on experts only)."),
    click.option("--enable-expert-parallel", is_flag=True, help="Experts are distributed, not split."),
    click.option("--vllm-version", metavar="V", help="Default: the newest release known."),
    click.option("--gpu-memory-utilization", type=click.FloatRange(0.01, 1.0), help="Share of the card that vLLM may use."),
    click.option("--max-model-len", type=COUNT, help="Longest request, in tokens."),
    click.option("--max-num-seqs", type=COUNT, help="Most requests that run at once."),
    click.option("--max-num-batched-tokens", type=COUNT, help="Tokens in one step."),
    click.option("--dtype", default="auto", help="Type of weights and activations."),
    click.option("--quantization", "-q", help="awq, gptq, fp8, bitsandbytes, mxfp4, Q4_K_M, ... (default: what the name says)."),
    click.option("--kv-cache-dtype", default="auto", help="Type of the KV cache."),
    click.option("--block-size", type=COUNT, help="Tokens in a block."),
    click.option("--kv-cache-memory-bytes", type=COUNT, help="Size of the KV cache, instead of a utilization."),
    click.option("--num-gpu-blocks-override", type=COUNT, help="Blocks of the KV cache, whatever fits."),
    click.option("--cpu-offload-gb", type=click.FloatRange(0), default=0.0, help="GiB of weights kept in host memory."),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
    click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", "chunked", default=None, help="Default: as the version does."),
    click.option("--disable-hybrid-kv-cache-manager", "no_hybrid", is_flag=True, help="Sliding-window layers hold all tokens."),
    click.option("--num-speculative-tokens", type=COUNT, default=0, help="Draft tokens per step."),
    click.option("--draft-model", metavar="NAME|FILE", help="A draft model with a KV cache of its own."),
    click.option("--engine", type=click.Choice(["V0", "V1"]), help="Where the version has both (default: as it chooses)."),
    click.option("--offline", is_flag=True, help="The LLM class, not the server: its defaults differ."),
    click.option("--other-gib", type=click.FloatRange(0), default=0.0, help="GiB that other processes hold on the card."),
    click.option("--weights-gib", type=click.FloatRange(0), help="Weights per GPU, if measured."),
    click.option("--activation-gib", type=click.FloatRange(0), help="Peak activation, if measured."),
    click.option("--non-torch-gib", type=float, help="Non-torch memory, if measured."),
    click.option("--graphs-gib", type=click.FloatRange(0), help="CUDA graphs, if measured."),
    click.option(
        "--log", "log", type=click.Path(exists=True), metavar="FILE", help="A log of the same set-up: its measured parts replace estimates."
    ),
    click.option("--concurrency", type=COUNT, help="Requests that shall run at once."),
    click.option("--input", "input_", type=COUNT, help="Prompt tokens of a request."),
    click.option("--output", type=COUNT, help="Generated tokens of a request."),
    click.option(
        "--solve", "question", type=click.Choice(["max-model-len", "max-num-seqs", "gpu-memory-utilization", "tp"]), help="Find the value that fits."
    ),
    click.option("--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."),
    click.option("--lang", type=click.Choice(LANGUAGES), help="Language (default: from the environment)."),
    click.option("--rules", "rules_dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Add models and cards in DIR."),
]


def _options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(
    "plan", short_help="Say what fits on a card: KV cache, requests at once, options to use.", context_settings={"ignore_unknown_options": True}
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
    from ..capacity.plan import Wish, plan
    from ..reports.plan import as_json, as_text
    from ..ruleset.errors import RulesInvalid
    from ..ruleset.load import load_knowledge
    from .common import rule_faults

    language = language_of(given["lang"])
    try:
        knowledge = load_knowledge(given["rules_dir"])
    except RulesInvalid as invalid:
        raise Misuse(rule_faults(invalid)) from None
    model, quantization = find_shape(given["model"], knowledge)
    draft = find_shape(given["draft_model"], knowledge)[0] if given["draft_model"] else None
    idle = _without_effect(given["others"], ctx)
    wish = Wish(given["concurrency"], given["input_"], given["output"])
    plans: list[tuple[str, Plan]] = []
    for text in given["gpus"]:
        gpu, total = find_card(text, knowledge)
        setup = _setup(model, quantization, draft, gpu, total, given)
        if given["log"]:
            setup = measured(setup, given["log"], knowledge)
        answer = plan(setup, wish, given["question"])
        if idle:
            import msgspec

            answer = msgspec.structs.replace(answer, notes=(*answer.notes, *(("no-effect", {"flag": name}) for name in idle)))
        plans.append((gpu.name if gpu else f"{total / 2**30:g} GiB", answer))
    if given["output_format"] == "json":
        emit(as_json(plans, given["model"], wish))
    else:
        import sys

        emit(as_text(plans, given["model"], wish, language=language, width=width(), color=colored(sys.stdout)))
    return 0


def find_shape(text: str, knowledge: Knowledge) -> tuple[Model, str | None]:
    """(shape, quantisation that the name states). Raises Misuse for an unknown or ambiguous name."""
    from ..capacity.names import find_model

    path = Path(text)
    if text.lstrip().startswith("{"):
        from ..capacity.config_json import ConfigInvalid, model_from_config

        try:
            return model_from_config(text), None
        except ConfigInvalid as error:
            raise Misuse(f"--model: {error}") from None
    for file in (path, path / "config.json"):
        if file.suffix == ".json" and file.is_file():
            return read_model_config(str(file)), None
    match = find_model(text, knowledge)
    if match.model:
        return match.model, match.quantization
    if match.candidates:
        raise Misuse(f"--model {text}: this fits several models: {', '.join(match.candidates)}")
    raise Misuse(f"--model {text}: not among the known models{_close(text, [m.name for m in knowledge.models])}; give its config.json instead")


def find_card(text: str, knowledge: Knowledge) -> tuple[Gpu | None, int]:
    """(card, bytes that CUDA reports). Raises Misuse for an unknown or ambiguous name."""
    from ..capacity.names import find_gpu

    match = find_gpu(text, knowledge)
    if match.total_gib:
        return match.gpu, round(match.total_gib * 2**30)
    if match.candidates:
        raise Misuse(f"--gpu {text}: this fits several cards: {', '.join(match.candidates)}; add the size, such as '{text} 40GB'")
    raise Misuse(f"--gpu {text}: not among the known cards{_close(text, [g.name for g in knowledge.gpus])}; give its GiB instead, such as 23.6")


def _close(text: str, names: list[str]) -> str:
    import difflib

    low = {n.rpartition("/")[2].lower(): n for n in names}
    close = [low[c] for c in difflib.get_close_matches(text.rpartition("/")[2].lower(), low, n=3)]
    return f" (did you mean {', '.join(close)}?)" if close else ""


def _setup(model: Model, named_quantization: str | None, draft: Model | None, gpu: Gpu | None, total: int, given: dict[str, Any]) -> Setup:
    from ..capacity.plan import gib
    from ..capacity.setup import PARTS, Setup

    known = {part: gib(given[f"{part}_gib"]) for part in PARTS if given[f"{part}_gib"] is not None}
    vendor = gpu.vendor if gpu else "NVIDIA"
    return Setup(
        model=model,
        total_bytes=total,
        gpu=gpu,
        device={"AMD": "rocm", "NVIDIA": "cuda"}.get(vendor, "other"),
        version=given["vllm_version"],
        engine_generation=given["engine"],
        gpu_memory_utilization=given["gpu_memory_utilization"],
        tensor_parallel_size=max(given["tp"], 1),
        pipeline_parallel_size=max(given["pp"], 1),
        decode_context_parallel_size=max(given["dcp"], 1),
        data_parallel_size=max(given["dp"], 1),
        enable_expert_parallel=given["enable_expert_parallel"],
        max_model_len=given["max_model_len"] or None,
        max_num_seqs=given["max_num_seqs"] or None,
        max_num_batched_tokens=given["max_num_batched_tokens"] or None,
        dtype=given["dtype"],
        quantization=given["quantization"] or named_quantization,
        kv_cache_dtype=given["kv_cache_dtype"],
        block_size=given["block_size"] or None,
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


def measured(setup: Setup, path: str, knowledge: Knowledge) -> Setup:
    """The set-up with the parts that a log states. Raises Misuse where the log is of another model, version or split."""
    from msgspec import structs

    from ..capacity.observed import known_parts, model_of, option, whole
    from ..pipeline import read_case
    from ..ruleset.load import load
    from ..sources import read

    sources, _issues = read((path,), None)
    case = read_case(sources, load(None))
    runs = [(r, parts) for r in case.runs if (parts := known_parts(r))]
    if not runs:
        raise Misuse(f"--log {path}: no line of it says what the memory went to")
    run, parts = runs[-1]
    other = model_of(run, knowledge)[0]
    if other is not None and other.name != setup.model.name:
        raise Misuse(f"--log {path}: it is of {other.name}, not of {setup.model.name}")
    split = whole(option(run, "tensor-parallel-size")) or 1
    if split != setup.tensor_parallel_size:
        raise Misuse(f"--log {path}: it is of {split} GPUs per server, not of {setup.tensor_parallel_size}")
    return structs.replace(setup, version=setup.version or run.version, known={**parts, **setup.known})


def _without_effect(others: tuple[str, ...], ctx: click.Context) -> list[str]:
    """Options of vLLM that bear on no memory of the GPU: named, so that nobody thinks they were counted. Raises for anything else."""
    from .common import load_rules

    if not others:
        return []
    known = {n: f.name for f in load_rules(None).flags for n in (f.name, *f.aliases)}
    result = []
    for word in others:
        if word.startswith("-"):
            name = word.partition("=")[0]
            if name not in known:
                raise click.NoSuchOption(name, ctx=ctx)
            result.append(known[name])
        elif not result:
            raise click.UsageError(f"unexpected argument {word!r}", ctx)
    return list(dict.fromkeys(result))
