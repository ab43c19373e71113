"""Launch options as one run sees them: does its version have and heed them, what is in force, what must not be combined.

Version bounds come from `knowledge/flags.yaml` alone. With an unknown version the answer is the one that holds for every possible version.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..diagnosis.judge import applies
from ..model.case import Run
from ..model.observations import Scalar
from ..ruleset.schema import Flag
from ..versions import generation, has_flag, parse, satisfies

TRUE_WORDS = {"true", "1", "yes", "on"}
OFF_WORDS = {"false", "0", "no", "off", "none", "null", "", "0.0"}
ENGINE_SPANS = {"V0": ("0.2.7", "0.10.2"), "V1": ("0.6.4", "0.33.0"), "": ("0.2.7", "0.33.0")}
"""Versions that a run of unknown version can have: V0 ended with 0.10.2 and V1 began with 0.6.4."""
STATED = {"--gpu-memory-utilization": "memory.utilization"}
"""Options whose value a line about something else states."""
SEGMENTS = "expandable_segments:true"
"""What the conflicts of the allocator's variables are about."""


def usable(flag: Flag, run: Run) -> bool:
    """Does every version that this run can be have the option, and heed it?"""
    answer = has_flag(run.version, flag.first_version, flag.last_version)
    if answer is None and run.version is None:
        low, high = ENGINE_SPANS[generation(run) or ""]
        answer = all(has_flag(end, flag.first_version, flag.last_version) is True for end in (low, high))
    return answer is True and (not flag.effective or any(applies(scope, run) is True for scope in flag.effective))


def accepts(flag: Flag, value: Scalar | None, run: Run) -> bool:
    """Does every version that this run can be know the value?"""
    bounds = flag.value_versions.get(str(value).lower())
    return bounds is None or satisfies(run.version, bounds) is True


def present(flag: Flag, run: Run) -> Scalar | None:
    """The value that the user gave for an option, under any of its names; None where it was not given."""
    given = run.flags()
    for name in (flag.name, *flag.aliases):
        key = name.lstrip("-")
        if key in given:
            return given[key]
    if run.launch and flag.env and flag.name in run.launch.environment:
        return run.launch.environment[flag.name]
    return None


def switched_on(value: Scalar | None) -> bool:
    """Is an option in use? Logs of old versions print all options, unset ones too."""
    return value is not None and str(value).strip().lower() not in OFF_WORDS


def in_force(flag: Flag, run: Run) -> Scalar | None:
    """The value that holds: as given, as the server printed it, or this version's default where there is only one it can be."""
    given = present(flag, run)
    if given is not None:
        return None if str(given).strip().lower() == "nan" else given
    for name in (f"config.{flag.name.lstrip('-')}", *([STATED[flag.name]] if flag.name in STATED else [])):
        printed = run.fact(name)
        if printed is not None:
            return printed.value
    return default_of(flag, run)


def default_of(flag: Flag, run: Run) -> Scalar | None:
    """The default of this version, engine and device; None where several are possible or the run may have set the option out of sight."""
    if flag.env or not (run.has_banner or run.launch):
        return None
    if parse(run.version) is None and any(d.since or d.until for d in flag.defaults):
        return None
    own, device = generation(run), run.text("device.type")
    possible: list[Scalar] = []
    for default in flag.defaults:
        bounds = ",".join([*([f">={default.since}"] if default.since else []), *([f"<={default.until}"] if default.until else [])])
        if bounds and satisfies(run.version, bounds) is not True:
            continue
        if default.engine_generation and own not in (None, default.engine_generation):
            continue
        if default.device and default.device != (device or "cuda"):
            continue
        possible += [v for v in default.values if v not in possible or isinstance(v, bool)]
    kinds = {str(v).lower() for v in possible}
    return possible[0] if len(kinds) == 1 and not str(possible[0]).startswith(("max(", "min(")) else None


def clashes(flag: Flag, to: Scalar | None, run: Run, flags: Mapping[str, Flag]) -> str | None:
    """The option in use that must not be combined with `flag` set to `to`, if there is one. Where the version is unknown, a conflict of
    any version counts."""
    if flag.name.endswith("ALLOC_CONF") and SEGMENTS not in str(to).lower():
        return None
    for text in flag.conflicts:
        name, _, bounds = text.partition(" ")
        other = flags.get(name)
        value = present(other, run) if other else None
        if not switched_on(value) or (bounds and satisfies(run.version, bounds) is False):
            continue
        if name.endswith("ALLOC_CONF") and SEGMENTS not in str(value).lower():
            continue
        return name
    return None


def same(a: Scalar, b: Scalar) -> bool:
    """Do two values mean the same to vLLM? 0.9 is 0.90, and `--flag` is `true`."""
    if isinstance(a, bool) or isinstance(b, bool):
        return (str(a).lower() in TRUE_WORDS and str(b).lower() in TRUE_WORDS) or str(a).lower() == str(b).lower()
    try:
        return abs(float(a) - float(b)) < 1e-9
    except ValueError:
        return str(a).strip().lower() == str(b).strip().lower()
