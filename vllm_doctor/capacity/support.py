"""Whether a version can run a set-up at all, whatever its memory: the card's age, the card's arithmetic for a quantisation, the model's age.
Data: rules/knowledge/{methods,architectures}.yaml. Pure but for reading them once."""

from __future__ import annotations

from functools import lru_cache

from packaging.version import Version

from ..ruleset.load import load_knowledge
from ..ruleset.schema import Architecture, Method
from .defaults import version_of
from .generations import release_of
from .setup import Setup
from .weights import quantisation

LEAST_CAPABILITY = 7.0
"""Of an NVIDIA GPU: the notes of older cards in rules/knowledge/gpus.yaml name it as vLLM's minimum."""
FIRST_FALLBACK = Version("0.7.2")
"""First release that runs text models without a class of its own through Transformers (release notes). It is for dense ones."""


@lru_cache(maxsize=1)
def _methods() -> dict[str, Method]:
    return {m.name: m for m in load_knowledge().methods}


@lru_cache(maxsize=1)
def _architectures() -> dict[str, Architecture]:
    return {a.name: a for a in load_knowledge().architectures}


def method_of(setup: Setup) -> Method | None:
    """What is known of the quantisation in force; None without one, and for one that is not listed."""
    text, table = (setup.quantization or "").strip().lower(), _methods()
    if text in table:
        return table[text]
    kind = quantisation(setup)[0]
    if kind and (text or setup.model.checkpoint_dtype or "").startswith("mxfp4"):
        kind = "mxfp4"  # what the experts are in decides, whatever else there is
    if kind in ("gptq", "gptq-int8") and "gptq" not in text and any(word in text for word in ("compressed", "w4a16", "w8a16")):
        kind = "w4a16"
    return table.get(kind) or (table["gguf"] if kind.startswith(("q", "iq")) else None)


def needed(method: Method, version: Version) -> float | None:
    """The least compute capability for a method in a version; None for a version before the first one known."""
    held = [need for since, need in method.needs.items() if Version(since) <= version]
    return held[-1] if held else None


def lacking(setup: Setup) -> tuple[str, float, float, str] | None:
    """(method, capability that it needs, the card's, first release in which the card's is enough or "") where the card lacks what the
    quantisation needs. None where it has it, or where one of them is not known."""
    own, method = setup.capability, method_of(setup)
    if own is None or method is None:
        return None
    need = needed(method, version_of(setup))
    if need is None or own >= need:
        return None
    later = next((since for since, least in method.needs.items() if Version(since) > version_of(setup) and own >= least), "")
    return method.name, need, own, later


def first_release(setup: Setup) -> str:
    """The first release that knows the model, where the set-up's is stated and older; "" otherwise."""
    known, version = _architectures().get(setup.model.architecture), release_of(setup.version)
    return known.since if known and version and Version(version.base_version) < Version(known.since) else ""


def falls_back(setup: Setup) -> bool:
    """May this version run the model through Transformers, without knowing it?"""
    return version_of(setup) >= FIRST_FALLBACK and setup.model.kind == "dense"
