"""The Report: the one result, from which text, JSON, Markdown, HTML and SARIF are rendered.

These types *are* the published JSON (schema_version 1, DESIGN section 5). Units: bytes, seconds, ratio 0-1, tokens/s; times ISO 8601,
without zone where the input names none. Texts are in the language the report was made for.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

SCHEMA_VERSION = "1"

Verdict = Literal["problem", "healthy", "inconclusive"]
Severity = Literal["critical", "high", "medium", "low", "info"]
Status = Literal["confirmed", "likely", "possible"]
Role = Literal["root-cause", "contributing", "symptom"]
Direction = Literal["for", "against"]
Weight = Literal["decisive", "strong", "moderate", "weak"]
RemedyKind = Literal["flag", "env", "client", "infra", "upgrade", "code"]
Basis = Literal["measured", "model", "rule-of-thumb"]
Number = int | float
Range = Number | list[Number] | None


class Tool(Struct, frozen=True):
    name: str
    version: str
    rules_version: str


class Line(Struct, frozen=True):
    """A quoted line of an input; number 0 is the input as a whole. `before` and `after` are its neighbours, where they were kept."""

    source: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class SourceReport(Struct, frozen=True):
    name: str
    kinds: tuple[str, ...]
    bytes: int
    lines: int
    first_time: str | None = None
    last_time: str | None = None


class RunReport(Struct, frozen=True):
    id: str
    vllm_version: str | None
    engine_generation: Literal["V0", "V1"] | None
    model: str | None
    gpus: tuple[str, ...]
    flags: dict[str, Any]
    launch_command: str | None
    started: str | None
    ended: str | None
    end: Literal["running", "stopped", "crashed", "unknown"]


class RequestsThatFit(Struct, frozen=True):
    tokens_per_request: Number
    requests: Number
    basis: Basis


class MemoryReport(Struct, frozen=True):
    """One GPU's account. The parts sum to the total: total = outside + weights + activation + non-torch + graphs + KV + headroom, an unknown
    one counting as 0 and lying in the headroom. `origins` says of each figure whether a line prints it, or it is derived from such; where
    `activation` holds non-torch memory as well, `non_torch` is null. `predicted` is what the memory model gives for the same set-up with
    nothing measured."""

    run: str
    gpu: int | None = None
    total_bytes: int | None = None
    outside_bytes: int | None = None
    budget_bytes: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graphs_bytes: int | None = None
    kv_bytes: int | None = None
    headroom_bytes: int | None = None
    kv_bytes_per_token: Number | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    requests_that_fit: dict[str, RequestsThatFit] = field(default_factory=dict)
    refs: dict[str, Line] = field(default_factory=dict)
    origins: dict[str, Literal["printed", "derived", "default"]] = field(default_factory=dict)
    predicted: dict[str, int] = field(default_factory=dict)


class EvidenceReport(Struct, frozen=True):
    text: str
    direction: Direction
    weight: Weight
    signal: str | None = None
    value: float | None = None
    unit: str | None = None
    refs: tuple[Line, ...] = ()


class MissingReport(Struct, frozen=True):
    signal: str
    how_to_get: str


class Change(Struct, frozen=True, rename={"from_": "from"}):
    """`set` with `to` null: the value is unknown. `remove`: drop the option. Absent for advice that changes no option."""

    action: Literal["set", "remove"]
    flag: str
    from_: str | None = None
    to: str | None = None


class Effect(Struct, frozen=True):
    quantity: str
    unit: str
    before: Range
    after: Range
    basis: Basis


class RemedyReport(Struct, frozen=True):
    id: str
    title: str
    kind: RemedyKind
    change: Change | None
    effect: tuple[Effect, ...]
    risk: str
    verify: str
    sources: tuple[str, ...]


class NotRemedy(Struct, frozen=True):
    flag: str
    because: str


class Finding(Struct, frozen=True):
    id: str
    variant: str | None
    run: str | None
    engine: int | None
    severity: Severity
    status: Status
    confidence: float | None
    role: Role
    explained_by: tuple[str, ...]
    title: str
    summary: str
    first_time: str | None
    last_time: str | None
    ongoing: bool | None
    evidence: tuple[EvidenceReport, ...]
    missing: tuple[MissingReport, ...]
    remedies: tuple[RemedyReport, ...]
    not_remedies: tuple[NotRemedy, ...]


class RuledOut(Struct, frozen=True):
    id: str
    run: str | None
    title: str
    because: tuple[EvidenceReport, ...]


class NotChecked(Struct, frozen=True):
    id: str
    title: str
    needs: tuple[MissingReport, ...]


class Command(Struct, frozen=True):
    run: str
    before: str
    after: str
    diff: str


class SeriesReport(Struct, frozen=True):
    run: str
    engine: int
    signal: str
    unit: str
    bucket_seconds: int
    points: list[tuple[str, float, float, float]]  # time, min, mean, max


class IssueReport(Struct, frozen=True):
    code: str
    message: str
    ref: Line | None = None


class TimelineEntry(Struct, frozen=True):
    time: str | None
    run: str | None
    kind: str
    text: str
    ref: Line | None = None


class Report(Struct, frozen=True):
    """The result of an analysis. `findings` is ranked: the first is the answer."""

    tool: Tool
    redacted: bool
    verdict: Verdict
    summary: str
    schema_version: str = SCHEMA_VERSION
    language: str = "en"
    sources: tuple[SourceReport, ...] = ()
    runs: tuple[RunReport, ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    not_indicated: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    attach_next: tuple[MissingReport, ...] = ()
    commands: tuple[Command, ...] = ()
    series: tuple[SeriesReport, ...] = ()
    issues: tuple[IssueReport, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows: the page, in a frame of its own, so that neither styles the other."""
        from html import escape

        from ..reports.html import render

        page = escape(render(self), quote=True)
        return f'<iframe srcdoc="{page}" title="vllm-doctor" sandbox="allow-scripts" width="100%" height="720" style="border: 0"></iframe>'
