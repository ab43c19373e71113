"""The `when` language: `signal OP value unit` or `signal OP $threshold`; a list means all, `{any: [...]}` means one of. Nothing else.

Values are brought to the signal's catalogue unit here, so that what compares later are plain numbers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from ..model.catalogue import SIGNALS, Unit
from .schema import Threshold, WhenText

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip

UNITS: dict[str, dict[str, float]] = {
    "count": {"count": 1},
    "tokens": {"tokens": 1},
    "bytes": {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "s": {"s": 1, "ms": 1e-3, "min": 60},
    "ratio": {"%": 1e-2, "ratio": 1},
    "times": {"times": 1, "x": 1},
    "tokens/s": {"tokens/s": 1},
    "per_second": {"per_second": 1},
    "per_minute": {"per_minute": 1},
}
"""For each catalogue unit, the spellings a rule may use and their factor."""

_COMPARISON = re.compile(r"^\s*([a-z0-9_.]+)\s*(>=|<=|==|!=|>|<)\s*(?:\$([a-z_]+)|(-?[\d.]+)\s*([A-Za-z%/_]+))\s*$")


class Comparison(Struct, frozen=True):
    """One comparison, in the signal's base unit."""

    signal: str
    op: str
    value: float


class All(Struct, frozen=True):
    items: tuple[Condition, ...]


class Any_(Struct, frozen=True):
    items: tuple[Condition, ...]


Condition = Comparison | All | Any_


class ConditionError(ValueError):
    """A `when` that does not parse; the loader adds file and line."""


def parse_quantity(text: str, unit: Unit, what: str) -> float:
    """`85 %` -> 0.85 for a ratio. Raises ConditionError for a unit that does not belong to the signal."""
    found = re.fullmatch(r"\s*(-?[\d.]+)\s*([A-Za-z%/_]+)\s*", text)
    if not found:
        raise ConditionError(f"{what}: {text!r} is not a number with a unit")
    factor = UNITS.get(unit, {}).get(found[2])
    if factor is None:
        raise ConditionError(f"{what} is in {unit}: {found[2]!r} is not one of {', '.join(UNITS.get(unit, {}))}")
    return float(found[1]) * factor


def parse(when: WhenText, thresholds: Mapping[str, Threshold]) -> Condition:
    """The condition of a rule item. Raises ConditionError."""
    if isinstance(when, list):
        return All(tuple(parse(item, thresholds) for item in when))
    if isinstance(when, dict):
        if set(when) != {"any"} or not isinstance(when["any"], list):
            raise ConditionError("a mapping in `when` may only be {any: [...]}")
        return Any_(tuple(parse(item, thresholds) for item in when["any"]))
    found = _COMPARISON.match(when) if isinstance(when, str) else None
    if not found:
        raise ConditionError(f"{when!r} is not `signal OP value unit`")
    signal, op, name, number, unit = found.groups()
    declared = SIGNALS.get(signal)
    if declared is None:
        raise ConditionError(f"no signal is called {signal!r}{_nearest(signal)}")
    if name is None:
        return Comparison(signal, op, parse_quantity(f"{number} {unit}", declared.unit, signal))
    if name not in thresholds:
        raise ConditionError(f"no threshold is called {name!r}")
    return Comparison(signal, op, parse_quantity(thresholds[name].value, declared.unit, f"{signal} (from ${name})"))


def comparisons(condition: Condition) -> Iterator[Comparison]:
    """All comparisons, in the order written."""
    if isinstance(condition, Comparison):
        yield condition
    else:
        for item in condition.items:
            yield from comparisons(item)


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(SIGNALS)


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _names(), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def signals_in(text: str) -> list[str]:
    """Names inserted in a sentence as `{name}`."""
    return re.findall(r"\{([a-z0-9_.]+)\}", text)
