"""Parsers for lines with optional parts: the closed set of names that a format file may use.

Each takes a `Line` and returns what it says, keyed by catalogue name (and `engine` where the line names a data-parallel engine),
or None if the line is something else after all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from msgspec import Struct

from ..model.figures import figure
from ..model.observations import Scalar
from ..model.secrecy import is_secret
from . import oom, tracebacks
from .lazy import lazy

Values = dict[str, Scalar]


class Line(Struct, frozen=True):
    """A message without its head, and how to get the frames of the traceback that it ends."""

    message: str
    process: str | None = None
    level: str | None = None
    frames: Callable[[], tuple[tracebacks.Frame, ...]] = tuple


Parser = Callable[[Line], "Values | None"]

ENGINE = lazy(r"Engine (\d{1,6}): ")
_PAIR = lazy(r"([A-Za-z][A-Za-z ()\-]*?): (-?[\d.]+|nan|inf)(%|x| tokens/s| reqs| tokens)?(?=$|[,.\s])")

_STATS = {
    "Avg prompt throughput": "throughput.prompt",
    "Avg generation throughput": "throughput.generation",
    "Running": "requests.running",
    "Waiting": "requests.waiting",
    "Pending": "requests.waiting",
    "Swapped": "requests.swapped",
    "Deferred": "requests.deferred",
    "Prefix cache hit rate": "prefix_cache.hit_rate",
    "External prefix cache hit rate": "external_prefix_cache.hit_rate",
    "MM cache hit rate": "mm_cache.hit_rate",
}
_SPEC = {
    "Draft acceptance rate": "spec_decode.acceptance_rate",
    "Avg Draft acceptance rate": "spec_decode.acceptance_rate",
    "Mean acceptance length": "spec_decode.mean_length",
    "Accepted": "spec_decode.accepted_tokens",
    "Drafted": "spec_decode.drafted_tokens",
}


def number(text: str) -> float | int:
    """A printed number; thousands separators are allowed. Raises ValueError, also for a size that nothing has."""
    text = text.replace(",", "")
    value = float(text) if any(c in text for c in ".eEnN") else int(text)
    if figure(value) is None:
        raise ValueError("no figure")
    return value


def _pairs(text: str) -> dict[str, float | int]:
    result: dict[str, float | int] = {}
    for name, value, unit in _PAIR.findall(text):
        try:
            result[name.strip()] = number(value.rstrip(".")) / (100 if unit == "%" else 1) if unit == "%" else number(value.rstrip("."))
        except ValueError:
            continue
    return result


_USUAL = lazy(
    r"Engine (\d{1,6}): Avg prompt throughput: (\d{1,15}\.\d+) tokens/s, Avg generation throughput: (\d{1,15}\.\d+) tokens/s, "
    r"Running: (\d{1,15}) reqs, Waiting: (\d{1,15}) reqs, [CG]PU KV cache usage: (\d{1,15}\.\d+)%, Prefix cache hit rate: (\d{1,15}\.\d+)%"
)
"""What most stats lines of V1 look like: the same as reading the parts, several times faster."""


RAW_STATS = (
    rb"(?:Engine (\d{1,6}): )?Avg prompt throughput: (\d{1,15}\.\d{1,9}) tokens/s, Avg generation throughput: (\d{1,15}\.\d{1,9}) tokens/s, "
    rb"Running: (\d{1,15}) reqs, Waiting: (\d{1,15}) reqs, [CG]PU KV cache usage: (\d{1,3}\.\d{1,9})%, "
    rb"Prefix cache hit rate: (\d{1,3}\.\d{1,9})%(?=\r?(?:\n|\Z))"
)
"""The usual message in raw bytes, to its end; groups: engine, then the values of `RAW_STATS_GIVE` in order."""
RAW_STATS_GIVE = ("throughput.prompt", "throughput.generation", "requests.running", "requests.waiting", "kv_cache.usage", "prefix_cache.hit_rate")


def stats(line: Line) -> Values | None:
    """The periodic statistics, read as `name: value` parts. A CPU usage beside a GPU usage is swap space, alone it is the KV cache."""
    text = line.message
    usual = _USUAL.fullmatch(text)
    if usual is not None:
        engine_index, prompt, generation, running, waiting, usage, hits = usual.groups()
        return {
            "engine": int(engine_index),
            "throughput.prompt": float(prompt),
            "throughput.generation": float(generation),
            "requests.running": int(running),
            "requests.waiting": int(waiting),
            "kv_cache.usage": float(usage) / 100,
            "prefix_cache.hit_rate": float(hits) / 100,
        }
    values: Values = {}
    engine = ENGINE.match(text)
    if engine is not None:
        values["engine"] = int(engine[1])
        text = text[engine.end() :]
    elif not text.startswith("Avg prompt throughput:"):
        aggregated = re.match(r"\d+ Engines Aggregated: ", text)
        if aggregated is None:
            return None
        text = text[aggregated.end() :]
    pairs = _pairs(text)
    usages = {name.removesuffix(" KV cache usage"): value for name, value in pairs.items() if name.endswith("KV cache usage")}
    for name, value in pairs.items():
        if name in _STATS:
            values[_STATS[name]] = value
    main = [device for device in usages if device != "CPU"] or list(usages)
    if main:
        values["kv_cache.usage"] = usages[main[0]]
    if len(usages) > 1 and "CPU" in usages:
        values["swap.usage"] = usages["CPU"]
    return values if len(values) > ("engine" in values) else None


def spec_decode(line: Line) -> Values | None:
    """Speculative decoding, V0 and V1 wordings."""
    engine = ENGINE.match(line.message)
    pairs = _pairs(line.message[engine.end() :] if engine else line.message)
    values: Values = {target: pairs[name] for name, target in _SPEC.items() if name in pairs}
    accepted, drafted = pairs.get("Accepted"), pairs.get("Drafted")
    if "spec_decode.acceptance_rate" not in values and accepted is not None and drafted:
        values["spec_decode.acceptance_rate"] = accepted / drafted
    if engine:
        values["engine"] = int(engine[1])
    return values if len(values) > ("engine" in values) else None


_HIDDEN = "***"


def _literal(text: str) -> Scalar | None:
    """A Python literal as a scalar; containers and class representations as their text; None for None."""
    text = text.strip()
    if text in ("None", ""):
        return None
    if text in ("True", "False"):
        return text == "True"
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e[+-]?\d+", text):
        return float(text)
    return text


_STRUCTURE = lazy(r"""[\\'"(\[{<)\]}>,]""")


@lru_cache(maxsize=64)
def split_top(text: str, separator: str) -> tuple[tuple[str, str], ...]:
    """`name<separator>value` pairs of a Python repr, split at commas outside brackets and quotes. Never fails; a cut-off last value is
    dropped because it may be a shorter number than the real one. Cached: a crash loop prints the same line again and again."""
    ends: list[tuple[int, int]] = []
    depth, quote, start, escaped = 0, "", 0, -1
    for found in _STRUCTURE.finditer(text):
        at, c = found.start(), found[0]
        if quote:
            if at == escaped:
                continue
            if c == "\\":
                escaped = at + 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
            if depth < 0:
                ends.append((start, at))
                break
        elif c == "," and depth == 0:
            ends.append((start, at))
            start = at + 1
    pairs = []
    for begin, end in ends:
        name, sign, value = text[begin:end].partition(separator)
        if sign:
            pairs.append((name.strip().strip("'\""), value))
    return tuple(pairs)


def _flags(pairs: Iterable[tuple[str, str]]) -> Values:
    values: Values = {}
    for name, text in pairs:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", name):
            continue
        value = _literal(text)
        if value is None:
            continue
        if name in ("model_tag", "model") and isinstance(value, str) and (name == "model" or "model.name" not in values):
            values["model.name"] = value
        if name not in ("model_tag", "subparser"):
            values[f"flag.{name.replace('_', '-')}"] = _HIDDEN if is_secret(name, value) else value
    return values


def args_namespace(line: Line) -> Values | None:
    """`args: Namespace(...)`: every option, defaults included; None values say nothing and are left out."""
    found = re.match(r"(?:args|Namespace): ?Namespace\(|args: Namespace\(", line.message)
    return _flags(split_top(line.message[found.end() :], "=")) if found else None


def non_default_args(line: Line) -> Values | None:
    """`non-default args: {...}`: what the user set, resolved model tag included."""
    found = re.match(r"non-default args: \{", line.message)
    return (_flags(split_top(line.message[found.end() :], ":")) or None) if found else None


_CONFIG = {
    "max_seq_len": "config.max-model-len",
    "tensor_parallel_size": "config.tensor-parallel-size",
    "pipeline_parallel_size": "config.pipeline-parallel-size",
    "data_parallel_size": "config.data-parallel-size",
    "kv_cache_dtype": "config.kv-cache-dtype",
    "quantization": "config.quantization",
    "enforce_eager": "config.enforce-eager",
    "enable_prefix_caching": "config.enable-prefix-caching",
    "chunked_prefill_enabled": "config.enable-chunked-prefill",
    "enable_chunked_prefill": "config.enable-chunked-prefill",
    "dtype": "config.dtype",
    "device_config": "device.type",
    "speculative_config": "config.speculative-config",
    "model": "model.name",
}
_BANNER = lazy(r"Initializing an? (?:(?P<generation>V[01]) )?LLM engine (?:\(v(?P<version>[^)]{1,60})\) )?with config: ")


def engine_config(line: Line) -> Values | None:
    """`Initializing a V1 LLM engine (v0.11.0) with config: ...`: version, generation and resolved settings."""
    found = _BANNER.match(line.message)
    if found is None:
        return None
    values: Values = {}
    version = found["version"]
    if version:
        values["vllm.version"] = version
    if found["generation"]:
        values["engine.generation"] = found["generation"]
    elif version is None:
        values["engine.generation"] = "V0"  # the wording without a version ends with 0.3.3, before V1
    for name, text in split_top(line.message[found.end() :] + ",", "="):
        value = _literal(text)
        if name not in _CONFIG or value is None:
            continue
        if name == "speculative_config":
            value = True
        if name == "dtype" and isinstance(value, str):
            value = value.removeprefix("torch.")
        if name == "device_config" and isinstance(value, str):
            device = re.search(r"\b(cuda|cpu|rocm|xpu|tpu|hpu|npu|neuron)\b", value)
            if device is None:
                continue
            value = device[1]
        values[_CONFIG[name]] = value
    return values


_RETELLING = ("Failed to load model", "Engine loop is not running", "Background loop", "Received request")
_METHOD = lazy(r"while processing method '?(\w+)")


def allocation_failed(line: Line) -> Values | None:
    """An allocation that failed, with the phase from the traceback that it ends. Lines that retell an earlier failure are left out."""
    text = line.message
    if text.startswith(_RETELLING) or "DeadError" in text[:120] or "when warming up" in text:
        return None
    values = oom.allocator(text) or oom.other(text)
    if values is None:
        return None
    method = _METHOD.search(text)
    frames = line.frames() or ((tracebacks.Frame("vllm", method[1]),) if method else ())
    name, frame = tracebacks.phase(frames)
    values["oom.phase"] = name
    if frame is not None and not method:
        values["oom.frame"] = frame
    return values


def weights_failed(line: Line) -> Values | None:
    """vLLM's own words around an allocation that failed while loading weights."""
    if not line.message.startswith("Failed to load model - not enough GPU memory"):
        return None
    values: Values = {"startup.weights_oom": True}
    quoted = oom.allocator(line.message)
    if quoted is not None:
        values |= quoted
        values["oom.phase"] = "weights"
    return values


_EXIT = lazy(r"'([^']{1,60})': (-?\d+)")


def start_failed(line: Line) -> Values | None:
    """The generic last words of a failed start; names and exit codes where the line has them."""
    found = re.search(r"Failed core proc\(s\): (\{[^}]*\})", line.message)
    processes = ", ".join(f"{name}: {code}" for name, code in _EXIT.findall(found[1])) if found else ""
    return {"startup.failed": True, "startup.failed.processes": processes} if processes else {"startup.failed": True}


def scheduler_dump(line: Line) -> Values | None:
    """What the engine was executing when it failed: two lines, the step and the scheduler's state."""
    values: Values = {}
    for key, name in (
        ("total_num_scheduled_tokens", "scheduler.dump.scheduled_tokens"),
        ("num_running_reqs", "scheduler.dump.running"),
        ("num_waiting_reqs", "scheduler.dump.waiting"),
        ("kv_cache_usage", "scheduler.dump.kv_usage"),
    ):
        found = re.search(rf"\b{key}=([\d.]+(?:e-?\d+)?)", line.message)
        try:
            values |= {name: number(found[1])} if found is not None else {}
        except ValueError:
            continue  # dots in a row, or no figure
    return values or None


PARSERS: dict[str, Parser] = {
    "stats": stats,
    "spec_decode": spec_decode,
    "args_namespace": args_namespace,
    "non_default_args": non_default_args,
    "engine_config": engine_config,
    "allocation_failed": allocation_failed,
    "weights_failed": weights_failed,
    "start_failed": start_failed,
    "scheduler_dump": scheduler_dump,
}
