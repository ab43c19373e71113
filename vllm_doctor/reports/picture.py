"""Static pictures in SVG: the timeline for readers without scripts and on paper, and the memory bar.

Everything is drawn with classes of the page's style sheet, because a strict content policy allows no style attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from html import escape

from ..language import format_value
from ..model.report import MemoryReport
from .chart import Chart, Line, Panel, clusters
from .ledger import part_name, rows_of
from .plain import cells, clean
from .words import Words

WIDTH, LEFT, RIGHT = 960, 68, 12
HEAD, PLOT, GAP, FOOT = 34, 84, 30, 22
POINTS = 220
"""Points of a line: one for each four units of the width."""
COLORS = 8
"""Line colours in the style sheet: c1 to c8."""


def timeline(chart: Chart, language: str, title: str, description: str) -> str:
    """The chart as one `<svg>`: panels below each other on one time axis."""
    height = HEAD + len(chart.panels) * (PLOT + GAP) + FOOT - GAP + 8
    inner = WIDTH - LEFT - RIGHT
    scale = inner / (chart.end - chart.start)

    def x(time: float) -> float:
        return round(LEFT + (time - chart.start) * scale, 1)

    bottom = HEAD + len(chart.panels) * (PLOT + GAP) - GAP
    out = [
        f'<svg class="timeline-picture" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="tp-title tp-desc">',
        f'<title id="tp-title">{escape(clean(title))}</title><desc id="tp-desc">{escape(clean(description))}</desc>',
    ]
    for phase in chart.phases:
        left, right = x(phase.start), x(phase.end)
        out.append(f'<rect class="phase {phase.kind}" x="{left}" y="{HEAD - 12}" width="{max(right - left, 1):.1f}" height="{bottom - HEAD + 12}"/>')
        if right - left > cells(phase.label) * 6.5:
            out.append(f'<text class="phase-label" x="{left + 3}" y="{HEAD - 2}">{escape(phase.label)}</text>')
    top = HEAD + 4
    for panel in chart.panels:
        out += _panel(panel, chart, top, scale, language)
        top += PLOT + GAP
    places = [x(mark.time) for mark in chart.marks]
    for at, mark in zip(places, chart.marks, strict=True):
        out.append(f'<line class="mark{" bad" if mark.bad else ""}" x1="{at}" x2="{at}" y1="{HEAD - 14}" y2="{bottom}"/>')
    for group in clusters(places, 34):
        out += _flag(places[group[0]], chart.marks[group[0]].number, chart.marks[group[-1]].number, any(chart.marks[i].bad for i in group))
    for time, label in ticks(chart.start, chart.end):
        out.append(f'<text class="tick" x="{x(time)}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    out.append("</svg>")
    return "".join(out)


def _flag(at: float, first: int, last: int, bad: bool) -> list[str]:
    """The numbers of events that coincide, on one flag; a failure's has a point."""
    label = str(first) if first == last else f"{first}–{last}"
    half = 4 + 3.5 * len(label)
    at = min(max(at, half), WIDTH - half)
    shape = f"M{at - half:g} 2h{2 * half:g}v12l{-half:g} 5l{-half:g} -5z" if bad else f"M{at - half:g} 2h{2 * half:g}v15h{-2 * half:g}z"
    name = "mark bad" if bad else "mark"
    return [f'<path class="{name}" d="{shape}"/><text class="mark-number" x="{at:g}" y="13.5" text-anchor="middle">{label}</text>']


def _panel(panel: Panel, chart: Chart, top: int, scale: float, language: str) -> list[str]:
    base = top + PLOT - 4
    tall = PLOT - 18

    def y(value: float) -> float:
        return round(base - value / panel.top * tall, 1)

    out = [f'<text class="panel-title" x="{LEFT}" y="{top + 10}">{escape(panel.title)}']
    if len(panel.lines) > 1:
        out += [f'<tspan class="key c{i % COLORS + 1}" dx="14">{_dash_key(i)} {escape(line.label)}</tspan>' for i, line in enumerate(panel.lines)]
    out.append("</text>")
    for share in (0.0, 0.5, 1.0):
        value = panel.top * share
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        text = escape(format_value(round(value, 2) if value > 10 else value, panel.unit, language).removesuffix(" tokens/s"))
        out.append(f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{text}</text>')
    for i, line in enumerate(panel.lines):
        out += _curve(line, i, chart.start, scale, y)
    return out


def _dash_key(i: int) -> str:
    return ("━", "╍", "┅")[i % 3]


def _curve(line: Line, i: int, start: float, scale: float, y: Callable[[float], float]) -> list[str]:
    """The band between lowest and highest, and the line through the highest: peaks are what a reader looks for."""
    runs: list[list[tuple[float, float, float]]] = [[]]
    slot = None
    for time, low, high in zip(line.times, line.low, line.high, strict=True):
        if low is None or high is None:
            runs.append([])
            slot = None
            continue
        at = round(LEFT + (time - start) * scale, 1)
        own = int((at - LEFT) * POINTS / (WIDTH - LEFT - RIGHT))
        if own == slot and len(line.times) > POINTS:
            before = runs[-1][-1]
            runs[-1][-1] = (before[0], min(before[1], low), max(before[2], high))
        else:
            runs[-1].append((at, low, high))
        slot = own
    out = []
    name = f"c{i % COLORS + 1} d{i % 3}"
    for run in runs:
        if not run:
            continue
        if any(low != high for _, low, high in run):
            there = " ".join(f"{at:g},{y(high):g}" for at, _, high in run)
            back = " ".join(f"{at:g},{y(low):g}" for at, low, _ in reversed(run))
            out.append(f'<polygon class="band {name}" points="{there} {back}"/>')
        if len(run) == 1:
            out.append(f'<circle class="dot {name}" cx="{run[0][0]:g}" cy="{y(run[0][2]):g}" r="2"/>')
        else:
            out.append(f'<polyline class="line {name}" points="{" ".join(f"{at:g},{y(high):g}" for at, _, high in run)}"/>')
    return out


_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def ticks(start: float, end: float, most: int = 9) -> list[tuple[float, str]]:
    """Round times between `start` and `end`, with their labels: the clock, or the date where a day or more lies between two."""
    step: float = next((s for s in _STEPS if (end - start) / s <= most), 86400)
    if (end - start) / step > most:
        step = 86400 * -(-(end - start) // (86400 * most))
    first = -(-start // step) * step
    result = []
    for n in range(int((end - first) // step) + 1):
        moment = datetime.fromtimestamp(first + n * step, timezone.utc)
        result.append((first + n * step, moment.strftime("%m-%d" if step >= 86400 else "%H:%M" if step >= 60 else "%H:%M:%S")))
    return result


def memory_bar(memory: MemoryReport, words: Words) -> str:
    """The memory of one GPU as a bar, or an empty text where fewer than two sizes are known. What is below zero is left to the table."""
    rows = [row for row in rows_of(memory, words) if row.bytes > 0]
    whole = max(memory.total_bytes or 0, sum(row.bytes for row in rows))
    if len(rows) + (memory.total_bytes is not None) < 2 or whole <= 0:
        return ""
    names = {row.part: part_name(words, row.part, lumped(memory)) for row in rows}
    label = words.listed(f"{names[row.part]} {words.value(row.bytes, 'bytes')}" for row in rows)
    out = [f'<svg class="memory-bar" viewBox="0 0 1000 66" role="img" aria-label="{escape(clean(label))}">']
    out.append('<rect class="part rest" x="0" y="22" width="1000" height="36"/>')
    at = 0.0
    for row in rows:
        wide = row.bytes / whole * 1000
        out.append(f'<rect class="part {row.part}" x="{at:.1f}" y="22" width="{wide:.1f}" height="36"/>')
        if wide > cells(names[row.part]) * 9 + 14:
            style = "on-part dark" if row.part == "headroom" else "on-part"
            out.append(f'<text class="{style}" x="{at + 8:.1f}" y="45">{escape(names[row.part])}</text>')
        at += wide
    inside = sum(row.bytes for row in rows if row.part not in ("outside", "headroom"))
    if memory.budget_bytes and inside <= memory.budget_bytes <= whole and not memory.outside_bytes:  # else the parts are not all within it
        x = memory.budget_bytes / whole * 1000
        anchor, dx = ("end", -6) if x > 500 else ("start", 6)
        text = words.colon(words._("budget of vLLM"), words.value(memory.budget_bytes, "bytes"))
        out.append(f'<line class="budget" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="62"/>')
        out.append(f'<text class="budget" x="{x + dx:.1f}" y="15" text-anchor="{anchor}">{escape(text)}</text>')
    out.append("</svg>")
    return "".join(out)


def lumped(memory: MemoryReport) -> bool:
    """Does the figure of the activations hold the memory outside PyTorch too?"""
    return memory.non_torch_bytes is None and memory.origins.get("activation_bytes") == "derived"
