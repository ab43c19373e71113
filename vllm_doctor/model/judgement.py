"""What the engine concludes, before it is put into words of a language."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from .case import Value, Window
from .observations import Ref, Scalar
from .report import Direction, Effect, Role, Severity, Status, Weight

Outcome = Literal["confirmed", "likely", "possible", "ruled_out", "not_indicated", "not_checked"]


Outlook = Literal["starts", "may-start", "has-room", "fails"]
"""Of a start that failed, after a change: at the cautious end of what is known, only as expected, with a pool that is not empty but nobody knows
whether it holds one request, or not."""


class Held(Struct, frozen=True):
    """An evidence item that is true. `rule` is its place in the cause (`for[0]`), `values` what its condition and its text refer to."""

    rule: str
    direction: Direction
    weight: Weight
    signals: tuple[str, ...]
    values: dict[str, Value]
    window: Window

    @property
    def refs(self) -> tuple[Ref, ...]:
        found = [r for v in self.values.values() for r in getattr(v, "refs", ())]
        return tuple(dict.fromkeys(found))[:3]


class Judgement(Struct, frozen=True):
    """A cause's status for (run, engine). `evidence` holds what is true, for and against; `missing` the unknown signals of open evidence."""

    cause: str
    variant: str | None
    run: str
    engine: int | None
    outcome: Outcome
    severity: Severity
    window: Window
    evidence: tuple[Held, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()  # (signal, key of knowledge/inputs.yaml)
    contradicted: bool = False
    explained_by: tuple[str, ...] = ()
    role: Role = "root-cause"

    @property
    def status(self) -> Status | None:
        return self.outcome if self.outcome in ("confirmed", "likely", "possible") else None


class Advice(Struct, frozen=True):
    """One remedy as it fits this case. `to` None with action `set` means that the value could not be computed; `to` without an action is the
    value of something that is no option of the server (the max_tokens of clients). `outlook` is known where a start failed."""

    remedy: str
    action: Literal["set", "remove"] | None = None
    option: str | None = None
    from_: Scalar | None = None
    to: Scalar | None = None
    values: dict[str, Value] = field(default_factory=dict)
    effect: tuple[Effect, ...] = ()
    outlook: Outlook | None = None
