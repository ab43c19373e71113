"""The options of vLLM that `plan` is given beside its own: which of them exist in a version, which bear on memory, and how they are passed on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from ..capacity.generations import engine_of, release_of
from ..capacity.weights import QUANT_BITS, quant_of
from ..ruleset.schema import Flag
from ..versions import FIRST_WITH_V1, FIRST_WITHOUT_V0, NEWEST, OLDEST, has_flag, satisfies
from .common import Misuse

if TYPE_CHECKING:
    from ..capacity.refusals import Note
    from ..capacity.setup import Setup

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
KV_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "int8", "nvfp4", "int8_per_token_head",
    "fp8_per_token_head",
)  # fmt: skip
BLOCK_SIZES = (1, 8)
METHODS = frozenset(
    (
        "aqlm",
        "awq",
        "awq_marlin",
        "bitblas",
        "bitsandbytes",
        "deepspeedfp",
        "experts_int8",
        "fbgemm_fp8",
        "fp8",
        "gguf",
        "gptq",
        "gptq_bitblas",
        "gptq_marlin",
        "gptq_marlin_24",
        "hqq",
        "marlin",
        "modelopt",
        "modelopt_fp4",
        "mxfp4",
        "ptpc_fp8",
        "quark",
        "squeezellm",
    )
)
"""Values of --quantization whose bits per weight are known."""
IDLE = frozenset(
    (
        "--swap-space",
        "--enable-prefix-caching",
        "--disable-log-stats",
        "--disable-log-requests",
        "--enable-log-requests",
        "--max-log-len",
        "--scheduling-policy",
        "--scheduler-delay-factor",
        "--preemption-mode",
        "--use-v2-block-manager",
        "--multi-step-stream-outputs",
        "--api-server-count",
        "--disable-frontend-multiprocessing",
        "--disable-async-output-proc",
        "--long-prefill-token-threshold",
        "--max-num-partial-prefills",
        "--max-long-partial-prefills",
        "--prefill-schedule-interval",
        "--stream-interval",
        "--max-num-queued-reqs",
        "--max-num-queued-tokens",
        "--shutdown-timeout",
        "--safetensors-load-strategy",
        "--max-parallel-loading-workers",
        "--enable-logging-iteration-details",
        "--kv-cache-metrics",
        "--show-hidden-metrics-for-version",
        "--max-cpu-loras",
    )
)
"""Options that leave the GPU's memory as it is."""
HUNGRY = frozenset(
    (
        "--enable-lora",
        "--max-loras",
        "--max-lora-rank",
        "--limit-mm-per-prompt",
        "--speculative-config",
        "--speculative-model",
        "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size",
        "--cuda-graph-sizes",
        "--compilation-config",
        "--mm-ipc-gpu-memory-gb",
        "--num-scheduler-steps",
        "--kv-transfer-config",
        "--performance-mode",
        "--mm-processor-kwargs",
        "--enable-eplb",
        "--enable-dbo",
        "--enable-prompt-embeds",
    )
)
"""Options that take memory of the GPU, or can."""
LIFTING = frozenset(("--rope-scaling", "--rope-theta", "--hf-overrides"))
"""With one of these the model's own limit on the length is not what its config.json says."""


def version_as_typed(text: str | None) -> str | None:
    """A version without the name before it, as pip, images and people write it: `vllm==0.9.1`, `vllm/vllm-openai:v0.9.1`, `vLLM 0.9.1`."""
    return text and re.sub(r"^\s*vllm(?:[/_-]\w+)*(?:\s*(?:===?|[:@-])\s*|\s+)(?:version\s+)?(?=v?\d)|^\s+|\s+$", "", text, flags=re.IGNORECASE)


class Pasted(Struct, frozen=True):
    """Options as they were typed: (name in the knowledge or as typed, its words), and names close to one that `plan` has."""

    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    close: tuple[tuple[str, str], ...] = ()

    @property
    def lifts_limit(self) -> bool:
        return any(name in LIFTING for name, _ in self.options)


def read(words: Sequence[str], flags: Iterable[Flag], own: Sequence[str], ctx: click.Context) -> Pasted:
    """The words left over, by option. `own` are the names of plan's options. Raises UsageError for a value without an option."""
    import difflib

    known = {n: f.name for f in flags for n in (f.name, *f.aliases)}
    found: list[tuple[str, list[str]]] = []
    close = []
    for word in words:
        if re.match(r"-{1,2}[A-Za-z]", word):
            typed = word.partition("=")[0]
            hyphened = typed.replace("_", "-")
            # a switch has its opposite, --no-X, in the releases that have it at all; what bears on memory has a name of its own
            name = known.get(hyphened) or known.get(hyphened.replace("--no-", "--", 1) if hyphened not in own else "", typed)
            found.append((name, [word]))
            near = [] if name in known or name in IDLE | HUNGRY else difflib.get_close_matches(name, [*own, *known], n=1, cutoff=0.86)
            close += [(name, n) for n in near]
        elif found:
            found[-1][1].append(word)
        else:
            raise click.UsageError(f"unexpected argument {word!r}", ctx)
    return Pasted(tuple((n, tuple(w)) for n, w in found), tuple(dict.fromkeys(close)))


def carried(pasted: Pasted, setup: Setup, flags: Iterable[Flag]) -> tuple[tuple[str, ...], list[Note]]:
    """(words for the command, notes). What the version lacks is left out."""
    table, version = {f.name: f for f in flags}, str(release_of(setup.version) or NEWEST)
    close = dict(pasted.close)
    words: list[str] = []
    notes: list[Note] = []
    plain: list[str] = []
    for name, typed in pasted.options:
        flag = table.get(name)
        if flag and has_flag(version, flag.first_version, flag.last_version) is False:
            notes.append(("no-such-option", {"flag": name, "version": version}))
            continue
        words += typed
        if name in close:
            notes.append(("perhaps-meant", {"flag": name, "close": close[name]}))
        elif name in IDLE:
            notes.append(("no-effect", {"flag": name}))
        elif name in HUNGRY:
            notes.append(("takes-memory", {"flag": name}))
        else:
            plain.append(name)
    if plain:
        notes.append(("not-modelled", {"flag": ", ".join(dict.fromkeys(plain))}))
    return tuple(words), [n for i, n in enumerate(notes) if n not in notes[:i]]


def existing(setup: Setup, names: Iterable[str], flags: Iterable[Flag]) -> None:
    """Raises Misuse for an option that the figures rest on and the version lacks, or an engine that it lacks."""
    version = release_of(setup.version) or NEWEST
    table = {n: f for f in flags for n in (f.name, *f.aliases)}
    base = type(version)(version.base_version)
    if engine_of(setup) == "V0" and base >= FIRST_WITHOUT_V0:
        raise Misuse("--engine V0: vLLM {version} has V1 only (from {first})", version=version, first=FIRST_WITHOUT_V0)
    if engine_of(setup) == "V1" and base < FIRST_WITH_V1:
        raise Misuse("--engine V1: vLLM {version} has V0 only (V1 from {first})", version=version, first=FIRST_WITH_V1)
    for name in names:
        flag = table.get(name)
        if flag and has_flag(version.base_version, flag.first_version, flag.last_version) is False:
            raise Misuse(
                "{option}: vLLM {version} has no such option (known from {first} to {last})",
                option=name,
                version=version,
                first=flag.first_version,
                last=flag.last_version,
            )
        bounds = flag.value_versions.get(setup.kv_cache_dtype) if flag and name == "--kv-cache-dtype" else None
        if bounds and satisfies(version.base_version, bounds) is False:
            raise Misuse(
                "{option} {value}: vLLM {version} does not know it (from {first})",
                option=name,
                value=setup.kv_cache_dtype,
                version=version,
                first=bounds.lstrip(">="),
            )


def outside(setup: Setup) -> list[Note]:
    """A note where the version is newer or older than what was read."""
    version = release_of(setup.version)
    if version is None or OLDEST <= type(version)(version.base_version) <= NEWEST:
        return []
    return [("version-outside", {"version": str(setup.version), "nearest": str(NEWEST if version > NEWEST else OLDEST)})]


def quantisation_known(text: str) -> bool:
    """Is the quantisation one whose bits are known? Every word of it must be one that names a kind."""
    low = text.strip().lower()
    if low in ("none", "auto"):
        return True
    words = {w for key in (*QUANT_BITS, *METHODS) for w in re.split(r"[-_. ]", key)} | {"w4a16", "compressed", "tensors", "block", "dynamic"}
    return quant_of(low) is not None and (low in QUANT_BITS or set(re.split(r"[-_. ]", low)) <= words)


def method(text: str) -> str | None:
    """The value of --quantization for a kind: "" where none is needed, None where vLLM has no such value and the checkpoint must say it."""
    low = text.strip().lower()
    if low in ("none", "auto"):
        return ""
    if low in METHODS:
        return low
    found = quant_of(low)
    return "gguf" if found and re.match(r"i?q\d", found[0]) else None
