"""The shapes of the YAML files under `rules/`. Unknown keys are refused; `load` turns violations into located errors."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from ..model.observations import Scalar
from ..model.report import Basis, RemedyKind, Severity, Weight

WhenText = str | list[Any] | dict[str, Any]


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence in each language. `{signal}` inserts a signal's value in its unit."""

    en: str
    zh: str

    def in_language(self, language: str) -> str:
        return self.zh if language == "zh" else self.en


class Applies(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rule holds. `version` is a specifier such as `>=0.8,<0.11`; an unknown version makes it unknown.
    `device` is vLLM's device word (`cpu`, `cuda`) or its negation (`!cpu`)."""

    version: str | None = None
    engine_generation: Literal["V0", "V1"] | None = None
    device: str | None = None


class Gives(Struct, frozen=True, forbid_unknown_fields=True):
    """How a named group becomes an observation. Without `field` the observation only marks that the line was seen."""

    field: str | None = None
    unit: Literal["", "bytes", "KiB", "MiB", "GiB", "kB", "s", "ms", "%", "ratio", "tokens", "count", "text"] = ""
    value: Scalar | None = None  # a constant, for lines whose wording is the information


class Sample(Struct, frozen=True, forbid_unknown_fields=True):
    """One wording: the line as the user has it and everything that must be read off it."""

    version: str
    line: str
    want: dict[str, Scalar]
    before: str = ""  # earlier lines, for records of several lines


class Format(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of line. `literal`s are looked for in raw bytes first; only then the regex or the named parser runs.

    `origin` are the `[file.py:` tokens that may print it (empty: any); it is documentation and breaks ties, not a condition:
    file names move between versions. `begins` marks a banner: a new part of the stream starts here."""

    id: str
    literal: str | list[str]
    samples: list[Sample]
    gives: dict[str, Gives] | list[str]
    origin: list[str] = field(default_factory=list)
    since: str | None = None
    until: str | None = None
    regex: str | None = None
    parser: str | None = None
    begins: Literal["api", "engine"] | None = None
    note: str = ""


class Threshold(Struct, frozen=True, forbid_unknown_fields=True):
    """A named limit with its unit in `value`, such as `85 %`. What nobody measured is `heuristic`."""

    value: str
    basis: Literal["mechanism", "measured", "heuristic"]
    reason: str
    source: str | None = None


class EvidenceRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One observation that speaks for or against a cause. `severity` replaces the cause's where this holds."""

    when: WhenText
    weight: Weight
    why: Text
    variant: str | None = None
    applies: Applies | None = None
    severity: Severity | None = None


class CauseTest(Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine must answer on a fixture or on lines given here. `since`/`until` count from the first observation."""

    name: str
    expect: Literal["confirmed", "likely", "possible", "ruled_out", "not_indicated", "not_checked"]
    case: str | None = None
    log: str | None = None
    since: str | None = None
    until: str | None = None
    missing: list[str] | None = None


class NotRemedyRule(Struct, frozen=True, forbid_unknown_fields=True):
    """Advice that is often given for this cause and does not help, with the reason."""

    flag: str
    because: Text
    when: WhenText | None = None


class Cause(Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    """One cause: evidence for and against, thresholds with reasons, remedies, tests."""

    id: str
    maturity: Literal["stable", "testing", "experimental"]
    severity: Severity
    title: Text
    summary: Text
    sources: list[str]
    for_: list[EvidenceRule]
    tests: list[CauseTest]
    applies: Applies | None = None
    thresholds: dict[str, Threshold] = field(default_factory=dict)
    against: list[EvidenceRule] = field(default_factory=list)
    explains: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    not_remedies: list[NotRemedyRule] = field(default_factory=list)
    false_positives: list[str] = field(default_factory=list)


class ChangeRule(Struct, frozen=True, forbid_unknown_fields=True):
    """The lever. Exactly one of `flag` and `env`; `to` is a fixed value, `solve` in the remedy computes one."""

    flag: str | None = None
    env: str | None = None
    action: Literal["set", "remove"] = "set"
    to: Scalar | None = None


class EffectRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What is predicted, in words, until a model computes it."""

    quantity: str
    unit: str
    basis: Basis


class Remedy(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to change. `when` bounds it to cases where it helps; version bounds of flags live in `knowledge/flags.yaml` only."""

    id: str
    title: Text
    kind: RemedyKind
    risk: Text
    verify: Text
    sources: list[str]
    change: ChangeRule | None = None
    solve: str | None = None
    when: WhenText | None = None
    applies: Applies | None = None
    effect: list[EffectRule] = field(default_factory=list)


class FlagDefault(Struct, frozen=True, forbid_unknown_fields=True):
    """A default with the versions and engine it holds for. `values` lists all possible ones where the hardware decides."""

    values: list[Scalar]
    since: str | None = None
    until: str | None = None
    engine_generation: Literal["V0", "V1"] | None = None
    device: str | None = None


class Flag(Struct, frozen=True, forbid_unknown_fields=True):
    """A launch option or environment variable: the versions that have it, its defaults, what it does."""

    name: str
    first_version: str
    last_version: str
    default: str
    effect: str
    notes: str = ""
    env: bool = False
    aliases: list[str] = field(default_factory=list)
    defaults: list[FlagDefault] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """A Prometheus family of vLLM and the name it has here (`signal`; empty where nothing uses it yet)."""

    name: str
    type: Literal["gauge", "counter", "histogram", "summary", "info"]
    first_version: str
    last_version: str
    meaning: str
    signal: str = ""
    unit: Literal["", "ms"] = ""
    notes: str = ""


class Input(Struct, frozen=True, forbid_unknown_fields=True):
    """Something a user can attach. Its id is what `Unknown.missing` names."""

    id: str
    how_to_get: Text


class RuleSet(Struct, frozen=True):
    """Everything under `rules/`, checked."""

    version: str
    formats: list[Format]
    causes: list[Cause]
    remedies: list[Remedy]
    flags: list[Flag]
    metrics: list[Metric]
    inputs: list[Input]
    extra: list[str] = field(default_factory=list)  # notes on user rules that replaced shipped ones
