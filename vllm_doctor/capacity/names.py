"""Finds models and cards under the names people use: paths, organisations, snapshots of the hub's cache, suffixes of quantisation.

A name that fits several entries with different shapes is ambiguous: that is said, with the candidates, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from ..ruleset.schema import Gpu, Knowledge, Model
from .weights import quant_of


class ModelMatch(Struct, frozen=True):
    """`model` is the entry, or None with `candidates` where the name fits several. `quantization` is what the name itself says."""

    model: Model | None
    quantization: str | None = None
    candidates: tuple[str, ...] = ()


class GpuMatch(Struct, frozen=True):
    """`gpu` is the entry, or None with `candidates`. `total_gib` is the size that the name states, or what CUDA reports for the entry."""

    gpu: Gpu | None
    total_gib: float | None = None
    candidates: tuple[str, ...] = ()


_QUANT_WORDS = re.compile(
    r"[-_. ](?:awq|gptq|int4|int8|fp8|bf16|fp16|float16|bfloat16|w4a16|w8a8|w8a16|w4a4|4bits?|8bits?|[2-8]\.\d+bpw|bnb|nf4|gguf|exl[23]"
    r"|nvfp4|mxfp[48]|marlin|quantized|quant|dynamic|static|block|i?q[2-8](?:_[0k](?:_[sml])?|_xs)?|hf|g128|group128|128g|sym|asym"
    r"|llmcompressor|compressed|tensors|autoround|unsloth|mlx|ud|a8|imatrix|kv|kvcache|per|tensor|channel|eager|w4|w8|experts|modelopt)"
    r"(?=$|[-_. ])",
    re.IGNORECASE,
)
_TUNED = re.compile(
    r"[-_. ](?:instruct|chat|it|base|hf|sft|dpo|rlhf|preview|latest|thinking|\d{4}|v\d+(?:\.\d+)?|2[3-6]\d{2})(?=$|[-_. ])", re.IGNORECASE
)
_ORGANISATIONS = re.compile(r"^(?:meta|facebook|google|microsoft|nvidia|ibm)[-_]", re.IGNORECASE)


_SEPARATORS = {c: " " for c in range(128) if not chr(c).isalnum()}


def normal(name: str) -> str:
    """A name without its case and punctuation: `Qwen2.5_7B Instruct` and `qwen2.5-7b-instruct` are one. Dots between digits stay."""
    text = name.lower()
    if "." in text:
        text = re.sub(r"(?<=\d)\.(?=\d)", "·", text)
    return "-".join(text.translate(_SEPARATORS).split())


def last_part(name: str) -> str:
    """The telling part of a path or repository id. A hub cache path names the repository before `snapshots/HASH`."""
    cached = re.search(r"models--(.+?)--(.+?)(?:/|$)", name.replace("\\", "/"))
    if cached:
        return cached[2]
    parts = [p for p in name.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    while len(parts) > 1 and re.fullmatch(
        r"[0-9a-f]{6,64}|snapshots|main|master|latest|models?|weights?|checkpoints?|checkpoint-\d+|merged|model\.safetensors|hf|refs", parts[-1], re.I
    ):
        parts.pop()
    return re.sub(r"\.(?:gguf|safetensors|bin)$", "", parts[-1], flags=re.I) if parts else ""


def find_model(name: str, knowledge: Knowledge) -> ModelMatch:
    """The model that a name means. Tried in turn: the whole id, its last part, the same without words of quantisation, without words of
    tuning, without an organisation's prefix, and as the beginning of a longer name."""
    tail = last_part(name[:LONGEST_NAME])
    quant = _quantisation(name[:LONGEST_NAME], tail)
    bare = _QUANT_WORDS.sub("", _QUANT_WORDS.sub("", tail))
    short = _ORGANISATIONS.sub("", bare)
    index = _index(tuple((m.name, *m.aliases) for m in knowledge.models))
    for key in dict.fromkeys(normal(t) for t in (name[:LONGEST_NAME], tail, bare, short)):
        if key in index:
            return _one([knowledge.models[i] for i in index[key]], quant)
    if not any(c.isdigit() for c in tail):
        return ModelMatch(None, quant)  # every family has sizes: a name without one says too little
    tuned = _tuned_index(tuple((m.name, *m.aliases) for m in knowledge.models))
    plain = _TUNED.sub("", _TUNED.sub("", bare))
    keys = [k for k in dict.fromkeys(normal(t) for t in (bare, short, plain, _ORGANISATIONS.sub("", plain))) if k]
    found: set[int] = set()
    for key in keys:
        found = found or set(tuned.get(key, ()))
    for key in keys:
        together = key.replace("-", "")
        found = found or {i for k, members in tuned.items() if k.replace("-", "") == together for i in members}
    for key in (k for k in keys if len(k) >= LONG_ENOUGH):
        found = found or {i for k, members in index.items() if k.startswith(key + "-") for i in members}
        if not found:
            inside = [k for k in index if len(k) >= LONG_ENOUGH and f"-{k}-" in f"-{key}-"]
            longest = max(map(len, inside), default=0)
            found = {i for k in inside if len(k) == longest for i in index[k]}
    return _one([knowledge.models[i] for i in sorted(found)], quant) if found else ModelMatch(None, quant)


LONGEST_NAME, LONG_ENOUGH = 400, 6
"""Characters of a name that are looked at, and those that a part of a name must have to stand for it."""


@lru_cache(maxsize=2)
def _index(names: tuple[tuple[str, ...], ...]) -> dict[str, list[int]]:
    """Whole names and their last parts -> positions of the models that bear them."""
    index: dict[str, list[int]] = {}
    for position, own in enumerate(names):
        for key in {k for alias in own for k in (normal(alias), normal(alias.rpartition("/")[2]))}:
            index.setdefault(key, []).append(position)
    return index


@lru_cache(maxsize=2)
def _tuned_index(names: tuple[tuple[str, ...], ...]) -> dict[str, list[int]]:
    """The same with the words of tuning (Instruct, chat, v0.1, 2507) left out as well."""
    index = {k: list(v) for k, v in _index(names).items()}
    for position, own in enumerate(names):
        for key in {normal(_TUNED.sub("", _TUNED.sub("", alias.rpartition("/")[2]))) for alias in own}:
            if position not in index.setdefault(key, []):
                index[key].append(position)
    return index


def _one(found: list[Model], quant: str | None) -> ModelMatch:
    unique = list({m.name: m for m in found}.values())
    shapes = {shape(m) for m in unique}
    if len(shapes) == 1:
        return ModelMatch(unique[0], quant)
    return ModelMatch(None, quant, tuple(m.name for m in unique[:8]))


def shape(model: Model) -> tuple[object, ...]:
    """What decides memory: two entries with the same shape are interchangeable here."""
    return (
        model.num_hidden_layers, model.hidden_size, model.intermediate_size, model.num_key_value_heads, model.head_dim, model.vocab_size,
        model.num_experts, model.moe_intermediate_size, model.vision_params_m, model.sliding_window, model.kv_lora_rank,
    )  # fmt: skip


def _quantisation(name: str, tail: str) -> str | None:
    for text in (tail, name):
        words = " ".join(m.group(0).strip("-_. ") for m in _QUANT_WORDS.finditer(text))
        if words and quant_of(words):
            return words
        glued = re.search(r"(?:^|[-_.])((?:fp8|awq|gptq|nvfp4|mxfp4|int4|int8|w[48]a(?:16|8)|gguf|bnb)[\w.-]*)$", text, re.I)
        if glued and quant_of(glued[1]):
            return glued[1]
    return None


_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(gib|gb|g)\b", re.IGNORECASE)
_VENDOR = re.compile(
    r"\b(?:nvidia|geforce|tesla|quadro|amd|instinct|radeon|intel|arc|graphics|gpu|card|class|generation|edition|\(r\)|\(tm\)|hbm\d?e?)\b", re.I
)


def find_gpu(text: str, knowledge: Knowledge) -> GpuMatch:
    """The card that a name means, or a size: `24` and `23.6GiB` are what CUDA reports, `24GB` is what the box says."""
    stripped = text.strip()
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gib|gb|g)?", stripped, re.I)
    if number and (number[2] or float(number[1]) < 1000):  # 4090 is a name, 24 a size
        value = float(number[1])
        marketed = (number[2] or "").lower() == "gb"
        return GpuMatch(None, visible_of(value, knowledge.gpus) if marketed else value)
    stripped = re.sub(r"^\s*\d+\s*[x×*]\s*", "", stripped)
    size = _SIZE.search(stripped)
    words = _words(_SIZE.sub(" ", stripped))
    wanted = float(size[1]) if size else None
    found = [g for g in knowledge.gpus if any(normal(stripped) == normal(a) for a in (g.name, *g.aliases))]
    if not found:
        scored = [(_fit(words, g), g) for g in knowledge.gpus]
        best = max((s for s, _ in scored), default=0.0)
        found = [g for s, g in scored if s == best and s > 0]
    if wanted is not None and len(found) > 1:
        found = [g for g in found if abs(g.marketed_gb - wanted) < 0.12 * wanted] or found
    if not found:
        return GpuMatch(None, visible_of(wanted, knowledge.gpus) if wanted and size and size[2].lower() != "gib" else wanted)
    sizes = {(g.marketed_gb, tuple(g.visible_gib)) for g in found}
    if len({g.marketed_gb for g in found}) > 1:
        return GpuMatch(None, None, tuple(g.name for g in found[:8]))
    gpu = found[0]
    exact = wanted if size and size[2].lower() == "gib" else None
    return GpuMatch(gpu, exact or typical(gpu), tuple(g.name for g in found[1:4]) if len(sizes) > 1 else ())


def typical(gpu: Gpu) -> float:
    """What CUDA reports as total, in GiB: the middle of what was seen."""
    return round(sum(gpu.visible_gib) / len(gpu.visible_gib), 3)


def visible_of(marketed: float, gpus: Iterable[Gpu]) -> float:
    """GiB that CUDA reports for a card sold with so many GB: the median over the cards of that size, else 98.5 %."""
    sizes = sorted(typical(g) for g in gpus if g.marketed_gb == marketed and g.vendor == "NVIDIA")
    return sizes[len(sizes) // 2] if sizes else round(marketed * 0.985, 2)


def _words(text: str) -> set[str]:
    plain = re.sub(r"[^a-z0-9.]+", " ", _VENDOR.sub(" ", text.lower()))
    return {w for w in plain.split() if w}


def _fit(words: set[str], gpu: Gpu) -> float:
    """How well words name a card: every word with a digit must be one of its own; more shared words are better, unshared ones cost."""
    best = 0.0
    for alias in (gpu.name, *gpu.aliases):
        own = _words(_SIZE.sub(" ", alias))
        telling = {w for w in words if (any(c.isdigit() for c in w) and any(c.isalpha() for c in w)) or re.fullmatch(r"\d{4}", w)}
        if not telling <= own:
            continue
        shared = words & own
        if not any(any(c.isdigit() for c in w) for w in shared):
            continue
        best = max(best, len(shared) - 0.1 * len(own - words) - 0.3 * len(words - own))
    return best
