"""vLLM versions as values: which rule applies, which flag exists. An unknown version makes every such question unknown."""

from __future__ import annotations

from functools import lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from .model.case import Run
from .model.observations import Series

OLDEST, NEWEST = Version("0.2.7"), Version("0.33.0")
"""First and last release whose sources were read: outside, the nearest one stands for the rest."""
FIRST_WITHOUT_V0, FIRST_WITH_V1 = Version("0.11.0"), Version("0.6.4")


@lru_cache(maxsize=64)
def parse(text: str | None) -> Version | None:
    """A vLLM version, or None. Local parts and `v` are dropped: `v0.20.2.dev3+gabc` counts as 0.20.2.dev3."""
    if not text:
        return None
    try:
        return Version(text.strip().lstrip("v").partition("+")[0])
    except InvalidVersion:
        return None


def satisfies(text: str | None, specifier: str) -> bool | None:
    """Does the version satisfy e.g. `>=0.8,<0.11`? None where the version is unknown or no version."""
    version = parse(text)
    if version is None:
        return None
    try:
        return SpecifierSet(specifier).contains(version.base_version if version.is_prerelease else version, prereleases=True)
    except InvalidSpecifier:
        return None


def has_flag(text: str | None, first: str, last: str) -> bool | None:
    """Does this version have an option sampled in releases first..last? The bounds are sampled, so both ends of the table are open;
    None where the version is unknown and not every release has it."""
    low, high = parse(first), NEWEST if last == "open" else parse(last)
    if low is None or high is None:
        return True  # not a vLLM version: an option of torch, say
    everywhere = low <= OLDEST and high >= NEWEST
    version = parse(text)
    if version is None:
        return True if everywhere else None
    version = Version(version.base_version)
    return (low <= OLDEST or low <= version) and (high >= NEWEST or version <= high)


def generation(run: Run) -> str | None:
    """V0 or V1: as the engine names itself, by the version where only one exists, or by words that only one of them prints."""
    stated = run.text("engine.generation")
    if stated in ("V0", "V1"):
        return stated
    version = parse(run.version)
    if version is not None and version >= FIRST_WITHOUT_V0:
        return "V1"
    if version is not None and version < FIRST_WITH_V1:
        return "V0"
    series: dict[tuple[str, int], Series] = {}
    for track in run.tracks:
        series.update(track.series)
    names = {name for name, _ in series}
    if "requests.swapped" in names or "scheduler.preempted" in run.events:
        return "V0"
    if (
        "requests.waiting" in names
        and run.has_log
        and any("Waiting:" in p.ref.text for (n, _), s in series.items() if n == "requests.waiting" for p in s.points()[:1])
    ):
        return "V1"
    return None
