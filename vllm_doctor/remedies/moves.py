"""One change of a what-if before anything is made of it, and what a solver says its value should be."""

from __future__ import annotations

from msgspec import Struct

from ..model.case import Known, Unknown
from ..model.figures import figure
from ..model.observations import Scalar

Solved = Known | Unknown | str | None
"""`Unknown` shows the lever without a number; `None`: it has no room here and is not shown; a text is a value that is no number."""


class Move(Struct, frozen=True):
    """An option of the server, or another lever of `levers.LEVERS`. `from_` is the value in force, where it is known."""

    lever: str
    to: Scalar | None = None
    from_: Scalar | None = None
    remove: bool = False

    @property
    def number(self) -> float | None:
        return number(self.to)


def number(value: Scalar | None) -> float | None:
    """The value as a finite number; None for words and switches."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return figure(float(value))
    except (ValueError, OverflowError):
        return None
