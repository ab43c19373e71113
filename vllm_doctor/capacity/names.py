"""Finds models and cards under the names people use: paths, organisations, snapshots of the hub's cache, suffixes of quantisation.

A name that fits several entries with different shapes is ambiguous: that is said, with the candidates, and nothing is guessed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct, structs

from ..ruleset.schema import Gpu, Knowledge, Model
from .weights import quant_of


class ModelMatch(Struct, frozen=True):
    """`model` is the entry, or None with `candidates` where the name fits several. `quantization` is what the name itself says."""

    model: Model | None
    quantization: str | None = None
    candidates: tuple[str, ...] = ()


class GpuMatch(Struct, frozen=True):
    """`gpu` is the entry, or None with `candidates`. `total_gib` is the size that the name states, or what CUDA reports for the entry. `count` is
    how many of them the text names; `spread_gib` is what such a card shows more with ECC off, where the text does not tell which."""

    gpu: Gpu | None
    total_gib: float | None = None
    candidates: tuple[str, ...] = ()
    count: int = 1
    spread_gib: float = 0.0


_QUANT_WORDS = re.compile(
    r"[-_. ](?:awq|gptq|gptqmodel|int4|int8|fp8|fp4|bf16|fp16|float16|bfloat16|w4a16|w8a8|w8a16|w4a4|[1-8]-?bits?|[2-8]\.\d+(?:bpw|bits?)|bnb|nf4"
    r"|gguf|exl[23]|nvfp4|mxfp[48]|aqlm|hqq|marlin|quantized|quant|qat|dynamic|static|block|i?q[1-8](?:_[01k](?:_[sml])?|_x{0,2}s|_m|_nl)?|hf|g128|g32|32g"
    r"|group128|128g|sym|asym|actorder|true|llmcompressor|compressed|tensors|autoround|autoawq|unsloth|mlx|ud|a8|imatrix|kv|kvcache|per|tensor|channel"
    r"|eager|w4|w8|experts|modelopt|pv|1x16|2x8)"
    r"(?=$|[-_. ])",
    re.IGNORECASE,
)
_TUNED = re.compile(
    r"[-_. ](?:instruct|chat|it|base|hf|sft|dpo|rlhf|preview|latest|thinking|\d{4}|v\d+(?:\.\d+)?|2[3-6]\d{2})(?=$|[-_. ])", re.IGNORECASE
)
_ORGANISATIONS = re.compile(r"^(?:meta|facebook|google|microsoft|nvidia|ibm)[-_]", re.IGNORECASE)
_META_FP8 = re.compile(r"(?:^|/|models--)meta-llama(?:/|--)|^(?:\.{0,2}/.*/)?(?:meta-)?llama-3\.1-405b(?:-instruct)?-fp8$", re.IGNORECASE)
"""Meta's own FP8: its repositories, and the one model of 405B that is called so without a publisher."""
_DRAFT = re.compile(r"(?:^|[-_. ])(?:draft|speculator|eagle-?[23]?|medusa)(?=$|[-_. ])", re.IGNORECASE)
"""A draft model bears the name of the model that it drafts for, and has another shape."""
_SPOKEN = (
    ("通义千问", " qwen"), ("千问", " qwen"), ("百川", " baichuan"), ("深度求索", " deepseek"), ("书生浦语", " "), ("书生", " "), ("零一万物", " "),
    ("智谱", " "), ("蒸馏", " distill "), ("满血", " 671b "), ("量化", " "), ("版本", " "), ("模型", " "), ("版", " "),
)  # fmt: skip
"""Names and words of Chinese forums as the hub writes them."""
_OTHER_SHAPE = frozenset((
    "vl", "vlm", "vision", "multimodal", "omni", "audio", "ocr", "tts", "voxtral", "moe", "tiny", "mini", "nano", "small", "medium", "large", "air",
    "flash", "lite", "next", "pro", "plus", "turbo", "linear", "embedding", "embed", "reranker", "scout", "maverick", "draft",
))  # fmt: skip
"""Words that make it another model: no name without one stands for a model with it, nor the other way round."""
_TASK = frozenset(("coder", "code", "math"))


_SEPARATORS = {c: " " for c in range(128) if not chr(c).isalnum()}


def normal(name: str) -> str:
    """A name without its case and punctuation: `Qwen2.5_7B Instruct` and `qwen2.5-7b-instruct` are one. Dots between digits stay."""
    text = name.lower()
    if "." in text:
        text = re.sub(r"(?<=\d)\.(?=\d)", "·", text)
    return "-".join(text.translate(_SEPARATORS).split())


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, letters parted from the digits after them: `Qwen2.5-7B`, `qwen 2.5 7b` -> qwen, 2·5, 7b."""
    parted = re.sub(r"(?<=[a-z])(?=\d)", "-", normal(name))
    return tuple(w for w in re.sub(r"(?<=\d)(?=[a-z]{2})", "-", parted).split("-") if w)


def written(name: str) -> str:
    """A name as the hub would write it: without an address, a tag's colon, brackets, ModelScope's `2___5`, and Chinese words."""
    text = unicodedata.normalize("NFKC", name[:LONGEST_NAME])
    text = re.sub(r"^\w+://", "", text.strip())
    text = re.sub(r"/(?:tree|blob|resolve|raw|files|summary)(?:/.*)?$", "", text)
    text = re.sub(r"(?<=\d)___(?=\d)", ".", text)
    if not text.isascii():
        text = re.sub(r"(?<=[48])\s*位", "bit", text)
        for spoken, own in _SPOKEN:
            text = text.replace(spoken, own)
        text = re.sub(r"[^\x00-\x7f]+", " ", text)
    return re.sub(r"(?<=[^:/\\]{2})[:@]|[(),;\[\]]", " ", text).strip()


def untuned(name: str) -> str:
    """The last part of a name in small letters, without the words of tuning: `Qwen/Qwen2.5-7B-Instruct` is `qwen2.5-7b`."""
    return _TUNED.sub("", _TUNED.sub("", name.rpartition("/")[2])).lower()


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
    """The model that a name means. Tried in turn: the whole id, its last part, the same without words of quantisation; then without words of
    tuning and an organisation's prefix, as a part of a known name, and with a known name inside. From there on a size in the name must be the
    model's own."""
    own = written(name)
    tail = last_part(own)
    quant = _quantisation(own, tail)
    if quant and "fp4" in quant.lower() and re.search(r"(?:^|/|models--)nvidia(?:/|--)", name[:LONGEST_NAME], re.I):
        quant = f"modelopt {quant}"  # NVIDIA's own recipe: only the routed experts
    if quant and quant.lower() == "fp8" and _META_FP8.search(name[:LONGEST_NAME]):
        quant = "fbgemm_fp8"  # Meta's own FP8 leaves attention at 16 bits
    bare = _QUANT_WORDS.sub("", _QUANT_WORDS.sub("", tail))
    short = _ORGANISATIONS.sub("", bare)
    names = tuple((m.name, *m.aliases) for m in knowledge.models)
    index = _index(names)
    for key in dict.fromkeys(normal(t) for t in (own, tail, bare, short)):
        if key in index:
            return _one([knowledge.models[i] for i in index[key]], quant)
    if _DRAFT.search(tail):
        return ModelMatch(None, quant)
    sizes, plain = _sizes(words_of(bare)), _TUNED.sub("", _TUNED.sub("", bare))
    as_is, tuned = (bare, short), (plain, _ORGANISATIONS.sub("", plain))
    if not any(c.isdigit() for c in tail):  # every family has sizes: a name without one says too little, but what to ask back
        close = _one([knowledge.models[i] for i in sorted(_part_of(words_of(bare), names))], quant)
        return close if close.candidates else ModelMatch(None, quant)
    for stages, texts in (((_same, _without_dots, _part_of, _around), as_is), ((_same, _without_dots, _around), tuned)):
        for stage in stages:
            for text in texts:
                found = [knowledge.models[i] for i in sorted(stage(words_of(text), names)) if _agrees(knowledge.models[i], sizes)]
                if found:
                    return _one(found, quant)
    return ModelMatch(None, quant)


LONGEST_NAME = 400
"""Characters of a name that are looked at."""
_SIZE_WORD = re.compile(r"\d+(?:·\d+)?b")


def _sizes(words: tuple[str, ...]) -> set[str]:
    """Sizes that a name states, in words such as 7b; not those of active parameters (a3b) and of one expert (8x7b)."""
    pairs = pairwise(("", *words))
    return {w for before, w in pairs if _SIZE_WORD.fullmatch(w) and before not in ("a", "e") and not before.endswith("x")}


def _agrees(model: Model, sizes: set[str]) -> bool:
    """Is every size that the name states one of the model's: in its names, or its parameters within an eighth?"""
    known = {w for n in (model.name, *model.aliases) for w in words_of(n.rpartition("/")[2])}
    total = model.published_params_b or model.total_params_b or 0.0
    return all(s in known or abs(float(s[:-1].replace("·", ".")) - total) < 0.125 * total for s in sizes)


def _same(words: tuple[str, ...], names: _Names) -> set[int]:
    return set(_tuned_index(names).get(words, ()))


def _without_dots(words: tuple[str, ...], names: _Names) -> set[int]:
    """`qwen25-7b` and `Qwen2-5-7B` are Qwen2.5-7B."""
    return set(_joined_index(names).get("".join(words).replace("·", ""), ()))


def _part_of(words: tuple[str, ...], names: _Names) -> set[int]:
    """Models with a name that has all these words, and others: `Qwen3-235B`, `qwen3-4b-2507`, `deepseek r1 32b`. A word that makes it another
    model must not be among the others."""
    if len(words) < 2:
        return set()
    plain: set[int] = set()
    task: set[int] = set()
    for position, known in _known(names):
        others = set(known) - set(words)
        if others and len(known) > len(words) and len(set(known) & set(words)) == len(set(words)) and not others & _OTHER_SHAPE:
            (task if others & _TASK else plain).add(position)
    return plain or task


def _around(words: tuple[str, ...], names: _Names) -> set[int]:
    """Models whose name stands inside this one; of several the longest: `my-qwen2.5-7b-lora-merged`."""
    best = 0
    found: set[int] = set()
    for position, known in _known(names):
        if len(known) < 2 or len(known) < best or not any(c.isdigit() for w in known for c in w):
            continue
        at = next((i for i in range(len(words) - len(known) + 1) if words[i : i + len(known)] == known), None)
        if at is None:
            continue
        others = (*words[:at], "", *words[at + len(known) :])
        active = any(_SIZE_WORD.fullmatch(w) and before == "a" for before, w in pairwise(others))
        if active or _OTHER_SHAPE.intersection(others):
            continue
        found = {position} if len(known) > best else found | {position}
        best = len(known)
    return found


_Names = tuple[tuple[str, ...], ...]
"""The names of each model."""


@lru_cache(maxsize=2)
def _index(names: _Names) -> dict[str, list[int]]:
    """Whole names and their last parts -> positions of the models that bear them."""
    index: dict[str, list[int]] = {}
    for position, own in enumerate(names):
        for key in {k for alias in own for k in (normal(alias), normal(alias.rpartition("/")[2]))}:
            index.setdefault(key, []).append(position)
    return index


@lru_cache(maxsize=2)
def _known(names: _Names) -> list[tuple[int, tuple[str, ...]]]:
    """Every name's words, as it is and with the words of tuning (Instruct, chat, v0.1, 2507) left out."""
    found: dict[tuple[int, tuple[str, ...]], None] = {}
    for position, own in enumerate(names):
        for alias in own:
            last = alias.rpartition("/")[2]
            found |= {(position, words_of(t)): None for t in (last, _TUNED.sub("", _TUNED.sub("", last)))}
    return [(position, words) for position, words in found if words]


@lru_cache(maxsize=2)
def _tuned_index(names: _Names) -> dict[tuple[str, ...], list[int]]:
    index: dict[tuple[str, ...], list[int]] = {}
    for position, words in _known(names):
        index.setdefault(words, []).append(position)
    return index


@lru_cache(maxsize=2)
def _joined_index(names: _Names) -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for position, words in _known(names):
        index.setdefault("".join(words).replace("·", ""), []).append(position)
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
    """What a name says of its quantisation, in its own words."""
    for text in (tail, name):
        found = [m.group(0).strip("-_. ") for m in _QUANT_WORDS.finditer(text)]
        if found and quant_of(" ".join(found)):
            return " ".join(found)
        single = next((w for w in found if quant_of(w)), None)
        if single:
            return single
        glued = re.search(r"(?:^|[-_.])((?:fp8|awq|gptq|nvfp4|mxfp4|int4|int8|w[48]a(?:16|8)|gguf|bnb)[\w.-]*)$", text, re.I)
        if glued and quant_of(glued[1]):
            return glued[1]
    return None


_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(gib|gb|g|mib|mb|m)\b", re.IGNORECASE)
_VENDOR = re.compile(
    r"\b(?:nvidia|geforce|tesla|amd|instinct|radeon|intel|arc|graphics|gpu|card|class|generation|edition|\(r\)|\(tm\)|hbm\d?e?|sxm\d?|active|modified)\b",
    re.I,
)
_VARIANT = frozenset(("ti", "super", "laptop", "mobile", "xt", "xtx", "gre", "ada", "pro", "quadro", "nvl", "v2"))
"""Words that make it another card: they stand in both names, or in neither."""


def card_text(text: str) -> str:
    """A card as its maker writes it: without how many there are, `RTX4090` and `3090Ti` in words."""
    plain = re.sub(r"[^\x00-\x7f]+", " ", unicodedata.normalize("NFKC", re.sub(r"^\s*\d+\s*(?:[x×*]|张|卡|块)\s*|^\s*[单双]卡", "", text)))
    plain = re.sub(r"\s+[x*]\s*\d+(?=\s|$).*", "", plain)  # RTX 3090 x2
    plain = re.sub(r"(?i)\b(rtx|gtx|rx)(?=\d{4})", r"\1 ", plain)
    return re.sub(r"(?i)\b(\d{4})(ti|super|xtx|xt|gre)\b|\b([45]090)(d)\b", r"\1\3 \2\4", plain).strip()


_NUMERALS = {
    "单": 1, "一": 1, "双": 2, "两": 2, "二": 2, "三": 3, "四": 4, "六": 6, "八": 8,
    "single": 1, "dual": 2, "double": 2, "two": 2, "three": 3, "quad": 4, "four": 4, "six": 6, "eight": 8, "octa": 8,
}  # fmt: skip
_COUNTS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^\s*(\d{1,2})\s*[x×*]\s*(?=[^\d\s]|\d{4}|\d+(?:\.\d+)?\s*[gm])",  # 2x4090, 8 × H100, 2x24GB
        r"((?<!\d)\d{1,2}|[单一双两二三四六八])\s*[卡张块片路](?!\w*\d\s*[gm]i?b)",  # 双卡4090, A100 8卡
        r"^\s*(single|dual|double|two|three|quad|four|six|eight|octa)[\s-]+(?=\S)",  # dual 3090
        r"^\s*(\d{1,2})\s+(?=[a-z]{2}|[a-z]\d|\d{4}\b)(?!g(?:i?b)?\b|mi?b\b)",  # 2 RTX 3090, 4 A100
        r"\s*\(?\s*(?:(?<=[\s\dgbi)(])x|[×*])\s*(\d|1[0-6])\s*(?:gpus?|cards?)?\s*\)?(?=[\s,]|$)",  # 4090x2, H100*8, 4090 24g x 2
    )
)
"""How many cards a text names. A number after the name is at most 16: `(2x64)` in a name are sizes."""


def counted(text: str) -> tuple[int, str]:
    """(how many cards a text names, the text without that): `2x4090`, `双卡 4090`, `H100*8`, `H100,H100`. 1 and the text where it says nothing."""
    plain = unicodedata.normalize("NFKC", text[:LONGEST_NAME]).replace("✕", "x")
    parts = [p for p in re.split(r"\s*(?:[,+;&、]|\band\b|和)\s*", plain.strip()) if p]
    if len(parts) > 1 and len({normal(p) for p in parts}) == 1:
        return len(parts), parts[0]
    for pattern in _COUNTS:
        found = pattern.search(plain)
        if found:
            rest = (plain[: found.start()] + " " + plain[found.end() :]).strip()
            number = int(found[1]) if found[1].isdigit() else _NUMERALS[found[1].lower()]
            if number and rest:
                return number, rest
    return 1, text


def find_gpu(text: str, knowledge: Knowledge) -> GpuMatch:
    """The card that a text means and how many of it, or a size: `24` and `23.6GiB` are what CUDA reports, `24GB` and `24564MiB` are what the box
    and nvidia-smi say. A size that the card is not sold with counts for itself: nothing is said of another card."""
    if any(normal(text) == normal(a) for g in knowledge.gpus for a in (g.name, *g.aliases)):
        return _find_gpu(text, knowledge)
    count, one = counted(text)
    parts = [p for p in re.split(r"[,+;&、，]", one) if p.strip()]
    several = {m.gpu.name for p in parts if (m := _find_gpu(p, knowledge)).gpu} if len(parts) > 1 else set()
    if len(several) > 1:  # different cards: none of them stands for all, but a size that is said of each may
        sizes = {found[0] for found in _SIZE.finditer(one)}
        of_all = len(sizes) == 1 and (all(_SIZE.search(p) for p in parts) or re.search(r"\beach\b|[每均各]", one))
        return structs.replace(_find_gpu(sizes.pop(), knowledge), count=len(parts)) if of_all else GpuMatch(None)
    match = _find_gpu(one, knowledge)
    return structs.replace(match, count=count) if match.total_gib else match


def _find_gpu(text: str, knowledge: Knowledge) -> GpuMatch:
    outer = re.sub(r"\s*\([^()]*\)", "", text).strip()
    stripped = card_text(text)
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gib|gb|g|mib|mb|m)?", stripped, re.I)
    if number and (number[2] or float(number[1]) <= 1024 or float(number[1]) >= 10_000):  # 4090 is a name, 24 GiB, 24564 MiB
        value, unit = float(number[1]), (number[2] or ("" if float(number[1]) <= 1024 else "mib")).lower()
        if unit[:1] == "m":
            return GpuMatch(None, round(value / 1024 * DRIVER, 2))
        return GpuMatch(None, visible_of(value, knowledge.gpus) if unit == "gb" else value)
    size = _SIZE.search(stripped)
    wanted = float(size[1]) / (1024 if size[2][:1].lower() == "m" else 1) if size else None
    reported = size is not None and size[2].lower() == "gib"
    keys = {normal(re.sub(r"(?i)(\d)g\b", r"\1gb", t)) for t in (text, stripped, card_text(outer))}
    found = [g for g in knowledge.gpus if any(normal(a) in keys for a in (g.name, *g.aliases))]
    if not found:
        words = _words(_SIZE.sub(" ", stripped))
        scored = [(_fit(words, g), g) for g in knowledge.gpus]
        best = max((s for s, _ in scored), default=0.0)
        found = [g for s, g in scored if s == best and s > 0] or [
            g for s, g in ((_fit(_words(card_text(outer)), g), g) for g in knowledge.gpus) if s > 0
        ][:1]
        if not found and not _variants(words):  # `RTX 6000` alone is no card: Quadro, Ada and PRO are
            found = [g for g in knowledge.gpus if _fit(words, g, any_variant=True) > 0]
        if wanted is not None and found:
            sold = [g for g in found if abs(g.marketed_gb - wanted) < 0.12 * wanted]
            near = sold or [g for s, g in scored if s > 0 and abs(g.marketed_gb - wanted) < 0.05 * wanted and _telling(words) & _words(g.name)]
            found = near
    if not found:
        return GpuMatch(None, visible_of(wanted, knowledge.gpus) if wanted and not reported else wanted)
    if wanted is None:
        found = [g for g in found if "modified" not in g.name] or found  # a name alone means the card as it was sold
    sizes = {(g.marketed_gb, tuple(g.visible_gib)) for g in found}
    if len({g.marketed_gb for g in found}) > 1:
        return GpuMatch(None, None, tuple(g.name for g in found[:8]))
    gpu = found[0]
    others = tuple(g.name for g in found[1:4]) if len(sizes) > 1 else ()
    if wanted and (reported or (gpu.ecc and size is not None and size[2][:1].lower() == "m")):
        return GpuMatch(gpu, wanted if reported else round(wanted * DRIVER, 2), others)
    return GpuMatch(gpu, typical(gpu), others, spread_gib=round(max(gpu.visible_gib) - min(gpu.visible_gib), 2) if gpu.ecc else 0.0)


DRIVER = 0.985
"""CUDA's total as a share of nvidia-smi's (23.59 GiB of 24564 MiB, 79.15 of 81559, 44.4 of 46068)."""


def typical(gpu: Gpu) -> float:
    """What CUDA reports as total, in GiB: the middle of what was seen; with ECC on where that is what decides."""
    if gpu.ecc:
        return min(gpu.visible_gib)
    return round(sum(gpu.visible_gib) / len(gpu.visible_gib), 3)


def visible_of(marketed: float, gpus: Iterable[Gpu]) -> float:
    """GiB that CUDA reports for a card sold with so many GB: the median over the cards of that size, else 98.5 %."""
    sizes = sorted(typical(g) for g in gpus if g.marketed_gb == marketed and g.vendor == "NVIDIA")
    return sizes[len(sizes) // 2] if sizes else round(marketed * 0.985, 2)


def _words(text: str) -> set[str]:
    plain = re.sub(r"[^a-z0-9.]+", " ", _VENDOR.sub(" ", text.lower()))
    return {w for w in plain.split() if w}


def _telling(words: set[str]) -> set[str]:
    return {w for w in words if (any(c.isdigit() for c in w) and any(c.isalpha() for c in w) and w not in _VARIANT) or re.fullmatch(r"\d{4}", w)}


def _variants(words: set[str]) -> set[str]:
    """The words that make it another card. A workstation's Blackwell is a PRO, whether the name says so or not."""
    pro = {"pro"} if "blackwell" in words and any(re.fullmatch(r"\d[05]00", w) for w in words) else set()
    return words & _VARIANT | pro


def _fit(words: set[str], gpu: Gpu, any_variant: bool = False) -> float:
    """How well words name a card: every word with a digit must be one of its own; more shared words are better, unshared ones cost."""
    best, telling = 0.0, _telling(words)
    for alias in (gpu.name, *gpu.aliases):
        own = _words(_SIZE.sub(" ", card_text(alias)))
        shared = words & own
        if telling <= own and (any_variant or _variants(words) == _variants(own)) and any(any(c.isdigit() for c in w) for w in shared):
            best = max(best, len(shared) - 0.1 * len(own - words) - 0.3 * len(words - own))
    return best
