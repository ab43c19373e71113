"""A memory ledger as a bar and a table, for every output that shows one: parts in order, their share, and where each figure is from.

The bar is made of characters, so that it reads without colours: each part has its own fill.
"""

from __future__ import annotations

from msgspec import Struct

from ..model.report import MemoryReport
from .page import Page, Piece
from .plain import cells
from .words import Words

FILLS: dict[str, tuple[str, str]] = {
    "outside": ("╳", "magenta"),
    "weights": ("█", "blue"),
    "activation": ("▓", "yellow"),
    "non_torch": ("▒", "yellow"),
    "graphs": ("≡", "cyan"),
    "kv": ("░", "green"),
    "headroom": ("·", "dim"),
}
"""Part -> its character in the bar and its colour."""


class Row(Struct, frozen=True):
    """A part of the account: bytes, and a note such as its range or its origin. `shown` is how the bytes are written, where not in full."""

    part: str
    bytes: int
    note: str = ""
    shown: str = ""


def part_name(words: Words, part: str, lumped: bool = False) -> str:
    """A part in words; `lumped` where activation stands for activation and non-torch memory together."""
    _ = words._
    if part == "activation" and lumped:
        return _("activations and memory outside PyTorch")
    return {
        "outside": _("other processes and CUDA context"),
        "weights": _("weights"),
        "activation": _("activations (peak)"),
        "non_torch": _("outside PyTorch"),
        "graphs": _("CUDA graphs"),
        "kv": _("KV cache"),
        "headroom": _("left over"),
    }[part]


def bar(rows: list[Row], total: int, width: int) -> list[Piece]:
    """Pieces of one line, `width` cells in all, in proportion to the parts; every part above zero gets at least one cell where there is
    room. Parts below zero (an overcommitted card) are left out."""
    shown = [r for r in rows if r.bytes > 0]
    if not shown or total <= 0 or width < len(shown):
        return []
    scale = width / max(total, sum(r.bytes for r in shown))
    sizes = [max(1, round(r.bytes * scale)) for r in shown]
    while sum(sizes) > width:
        sizes[sizes.index(max(sizes))] -= 1
    return [(FILLS[r.part][0] * n, FILLS[r.part][1]) for r, n in zip(shown, sizes, strict=True)]


def rows_of(memory: MemoryReport, words: Words) -> list[Row]:
    """The parts of a report's account, each with its line, or that it is derived, and the model's figure where there is one too."""
    result = []
    for part in FILLS:
        value = getattr(memory, f"{part}_bytes")
        if value is None:
            continue
        name = f"{part}_bytes"
        notes = []
        ref = memory.refs.get(name)
        if memory.origins.get(name) == "printed" and ref:
            notes.append(f"{ref.source.rpartition('/')[2]}:{ref.line}")
        elif name in memory.origins:
            notes.append(words._("derived"))
        predicted = memory.predicted.get(name)
        if predicted is not None:
            notes.append(words._("model says {value}").format(value=words.value(predicted, "bytes")))
        result.append(Row(part, value, words.listed(notes)))
    return result


def draw(page: Page, words: Words, rows: list[Row], total: int | None, indent: int = 2, lumped: bool = False) -> None:
    """Bar and table. Without a total there is no bar, and no shares."""
    if total:
        pieces = bar(rows, total, min(page.width - indent - 2, 76))
        if pieces:
            page.lines.append([(" " * indent, ""), *pieces])
    names = {r.part: part_name(words, r.part, lumped) for r in rows}
    wide = max((cells(n) for n in names.values()), default=0)
    values = {r.part: r.shown or words.value(r.bytes, "bytes") for r in rows}
    right = max((cells(v) for v in values.values()), default=0)
    for row in rows:
        fill, style = FILLS[row.part]
        name, value = names[row.part], values[row.part]
        share = words.value(row.bytes / total, "ratio") if total and row.bytes >= 0 else ""
        text = f"{name}{' ' * (wide - cells(name) + 2)}{' ' * (right - cells(value))}{value}"
        text += f"  {' ' * max(0, 5 - cells(share))}{share}" if share else ""
        page.lines.append([(" " * indent, ""), (fill + " ", style), (text, ""), ("  " + row.note if row.note else "", "dim")])
