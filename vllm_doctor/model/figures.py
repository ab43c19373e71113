"""What counts as a figure: a number that can be calculated with."""

from __future__ import annotations

LARGEST = 2**60
"""Above any memory in bytes, any count and any length of time: what is larger was not measured."""


def figure(value: object) -> float | None:
    """A stated number that can be calculated with: finite, and of a size that a memory or a count can have."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST < value < LARGEST else None  # false for NaN as well
