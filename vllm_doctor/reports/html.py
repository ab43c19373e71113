"""The report as one page: everything inside, nothing fetched, readable without scripts.

The page carries its own content policy. It names the one script and the one style sheet by their hashes, so that text that came in with a
log could not run even if it escaped the escaping.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.report import EvidenceReport, Finding, Line, MemoryReport, Report
from . import picture
from .changes import change_lines, clean_lines, launch_rows, typed
from .chart import chart, iso
from .ledger import part_name, rows_of
from .plain import clean, code_pieces, focus, moment, quote, source_name, span
from .telling import Telling, ranked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jinja2 import Template

TEMPLATES = Path(__file__).resolve().parent / "templates"
LANG = {"en": "en", "zh": "zh-CN"}


class Assets(NamedTuple):
    css: str
    chart_css: str
    script: str
    chart_script: str


def render(report: Report) -> str:
    """The page as text, to be written as UTF-8. The same report gives the same page."""
    view = _View(report)
    return _template().render(view.context()) + "\n"


def policy(*, script: str, css: str) -> str:
    """The Content-Security-Policy under which exactly this script and this style sheet work."""
    return f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(css)}'; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _assets() -> Assets:
    vendor = TEMPLATES / "vendor" / "uplot"

    def read(path: Path) -> str:
        return path.read_text(encoding="utf-8").strip()

    return Assets(read(TEMPLATES / "report.css"), read(vendor / "uPlot.min.css"), read(TEMPLATES / "report.js"), read(vendor / "uPlot.iife.min.js"))


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def harmless(value: Any) -> Any:
        """What is shown has no control, bidirectional or invisible characters, wherever in the template it stands."""
        return value if isinstance(value, Markup) else clean(str(value))

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=harmless, trim_blocks=True, auto_reload=False
    )
    return environment.get_template("report.html")


class _View:
    """What the template shows, computed. Functions that it calls are methods and imports of this module."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.t = Telling(report)
        self._ = self.t._
        self.chart = chart(self.t)
        self.folder = _shared_folder(report)

    def context(self) -> dict[str, Any]:
        from markupsafe import Markup

        report, t, lead, assets = self.report, self.t, self.t.lead, _assets()
        script = assets.script if self.chart is None else f"{assets.chart_script}\n{assets.script}"
        css = assets.css if self.chart is None else f"{assets.chart_css}\n{assets.css}"
        memory = self.memory()
        others = [f for f in report.findings if f is not lead]
        unchecked = self.unchecked()
        open_ = report.verdict != "problem"
        drawn = self.chart
        return {
            "_": self._, "t": t, "report": report, "lead": lead, "lang": LANG.get(report.language, "en"),
            "policy": policy(script=script, css=css), "css": Markup(css), "script": Markup(script),
            "tone": self.tone(), "tone_of": _tone, "verdict": self.verdict(), "verdict_is_open": open_,
            "answer_title": lead.title if lead and not open_ else report.summary, "summary": self.summary(),
            "contents": self.contents(memory, others, unchecked),
            "chart": drawn, "span_text": self.span_text(), "phase_names": self.phase_names(),
            "picture": Markup(self.static_picture()), "data": Markup(self.data()), "figures": self.figures(), "events": self.events(),
            "memory": memory, "others": others, "unchecked": unchecked, "commands": self.commands(),
            "titles": self.titles, "kinds": lambda s: [t.kind(k) for k in s.kinds],
            "pieces": code_pieces, "place": self.place, "full_name": _full_name, "quote": quote,
            "moment": moment, "span": span, "ranked": ranked, "focus": _focus, "lacking": t.lacking,
            "diff": change_lines, "typed": typed, "is_link": _is_link, "lines": _lines, "command_in": _command_in,
        }  # fmt: skip

    def tone(self) -> str:
        if self.report.verdict == "healthy":
            return "good"
        return _tone(self.t.lead) if self.report.verdict == "problem" and self.t.lead else "unsure"

    def verdict(self) -> str:
        _, lead = self._, self.t.lead
        if self.report.verdict == "problem" and lead:
            return f"{self.t.status(lead.status)} · {_('severity {level}').format(level=self.t.severity(lead.severity))}"
        return _("healthy") if self.report.verdict == "healthy" else _("cannot tell")

    def summary(self) -> str:
        lead = self.t.lead
        return lead.summary if lead and lead.summary != lead.title and self.report.verdict == "problem" else ""

    def contents(self, memory: Sequence[object], others: Sequence[Finding], unchecked: Sequence[object]) -> list[tuple[str, str]]:
        _, r, lead = self._, self.report, self.t.lead
        entries = [
            ("why", _("Why"), lead), ("do", _("What to do"), lead and (lead.remedies or lead.not_remedies)),
            ("timeline", _("Timeline"), self.chart or r.timeline), ("memory", _("Memory"), memory), ("also", _("Also found"), others),
            ("ruled-out", _("Ruled out"), r.ruled_out or r.not_indicated), ("not-checked", _("Not checked"), unchecked),
            ("attach", _("What to attach next"), r.attach_next), ("input", _("About the input"), True),
        ]  # fmt: skip
        return [(name, title) for name, title, there in entries if there]

    def place(self, line: Line) -> str:
        name = line.source.removeprefix(self.folder) if self.folder != "/" else line.source
        return source_name(name, 60) + (f":{line.line}" if line.line else "")

    def titles(self, ids: Iterable[str]) -> list[str]:
        known = {f.id: f.title for f in self.report.findings}
        return [known.get(i, i) for i in ids]

    def unchecked(self) -> list[tuple[list[str], tuple[str, ...]]]:
        groups: dict[tuple[str, ...], list[str]] = {}
        for item in self.report.not_checked:
            groups.setdefault(tuple(dict.fromkeys(m.how_to_get for m in item.needs)), []).append(item.title)
        return [(names, needs) for needs, names in groups.items()]

    def commands(self) -> list[dict[str, Any]]:
        run = self.t.lead.run if self.t.lead else None
        chosen = [c for c in self.report.commands if c.run == run and c.after.strip() != c.before.strip()][:1]
        return [{"after": "\n".join(clean_lines(c.after)), "rows": launch_rows(c.after), "before_rows": launch_rows(c.before)} for c in chosen]

    # -- the timeline

    def span_text(self) -> str:
        return "" if self.chart is None else span(iso(self.chart.start), iso(self.chart.end))

    def phase_names(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((p.label, p.kind) for p in self.chart.phases)) if self.chart else []

    def static_picture(self) -> str:
        if self.chart is None:
            return ""
        text = "; ".join(f"{row[0]}: {row[1]} – {row[3]}" for row in self.figures())
        return picture.timeline(self.chart, self.report.language, self._("Timeline"), text)

    def figures(self) -> list[tuple[str, ...]]:
        """Each line in numbers, for those who do not see the picture."""
        rows: list[tuple[str, ...]] = []
        for panel in self.chart.panels if self.chart else ():
            for line in panel.lines:
                means = [v for v in line.mean if v is not None]
                high = max(v for v in line.high if v is not None)
                at = line.times[line.high.index(high)]
                low = min(v for v in line.low if v is not None)
                name = line.label if line.label == panel.title else self.t.colon(panel.title, line.label)
                show = [self.t.value(v, panel.unit) for v in (low, sum(means) / len(means), high)]
                rows.append((name, *show, moment(iso(at), self.t.day)))
        return rows

    def events(self) -> list[tuple[int | None, bool, Any]]:
        """Events in their order, with the number under which the chart shows them."""
        marks = {id(m.entry): m for m in self.chart.marks} if self.chart else {}
        return [(m.number if m else None, bool(m and m.bad), e) for e in self.report.timeline for m in (marks.get(id(e)),)]

    def data(self) -> str:
        """The chart as JSON in which no character can end the element that holds it."""
        drawn, _ = self.chart, self._
        if drawn is None:
            return ""
        zero = drawn.start

        def numbers(values: Sequence[float | None]) -> list[float | None]:
            return [None if v is None else _short(v) for v in values]

        def packed(line: Any) -> dict[str, Any]:
            steps = [b - a for a, b in pairwise([zero, *line.times])]
            whole: dict[str, Any] = {"label": line.label, "steps": [_short(round(s, 3), 9) for s in steps], "high": numbers(line.high)}
            if line.low != line.high:
                whole |= {"low": numbers(line.low), "mean": numbers(line.mean)}
            return whole

        content = {
            "zero": zero, "end": round(drawn.end - zero, 3), "language": LANG.get(self.report.language, "en"),
            "panels": [{"title": p.title, "unit": p.unit, "top": p.top, "lines": [packed(line) for line in p.lines]} for p in drawn.panels],
            "marks": [{"n": m.number, "t": round(m.time - zero, 3), "text": m.text, "bad": m.bad} for m in drawn.marks],
            "phases": [{"kind": p.kind, "from": round(p.start - zero, 3), "to": round(p.end - zero, 3), "label": p.label} for p in drawn.phases],
            "words": {"copied": _("Copied"), "cannot_copy": _("Select the text and copy it"), "shown": _("shown: {span}")},
        }  # fmt: skip
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

    # -- memory

    def memory(self) -> list[dict[str, Any]]:
        """Ledgers of the run that the report is about, one for GPUs that read the same."""
        groups: dict[tuple[Any, ...], list[MemoryReport]] = {}
        for m in self.report.memory:
            if self.t.run is None or m.run == self.t.run.id:
                key = tuple(repr(getattr(m, f)) for f in m.__struct_fields__ if f not in ("gpu", "refs"))
                groups.setdefault(key, []).append(m)
        ledgers = [self.ledger(members) for members in groups.values()]
        return [one for one in ledgers if one["rows"] or one["notes"]]

    def ledger(self, members: Sequence[MemoryReport]) -> dict[str, Any]:
        from markupsafe import Markup

        _, t, m = self._, self.t, members[0]
        gpus = [str(x.gpu) for x in members if x.gpu is not None]
        named = [(r.part, part_name(t, r.part, picture.lumped(m)), r.bytes, r.note) for r in rows_of(m, t)]
        named += [(part, name, value, "") for part, name, value in (
            ("budget", _("budget of vLLM"), m.budget_bytes), ("total", _("total"), m.total_bytes),
        ) if value is not None]  # fmt: skip
        total = m.total_bytes
        rows = [(part, name, t.value(v, "bytes"), t.value(v / total, "ratio") if total else "", note) for part, name, v, note in named]
        fits = t.memory_lines(m)
        return {
            "title": _("GPU {numbers}").format(numbers=", ".join(gpus)) if gpus else f"{_('server')} {m.run}",
            "bar": Markup(picture.memory_bar(m, t)), "rows": rows, "notes": fits[-1:] if m.kv_tokens is not None or m.requests_that_fit else [],
            "refs": list(dict.fromkeys(m.refs.values())),
        }  # fmt: skip


def _short(value: float, digits: int = 4) -> float:
    """The number with so many digits, and without a point where it is whole."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _tone(found: Finding) -> str:
    return {"critical": "bad", "high": "bad", "medium": "warn"}.get(found.severity, "info")


def _full_name(line: Line) -> str:
    return source_name(line.source, 400) + (f":{line.line}" if line.line else "")


def _shared_folder(report: Report) -> str:
    """The folder that all sources lie in, with its slash: it would only lengthen every reference."""
    names = [s.name for s in report.sources]
    return posixpath.commonprefix([n.rpartition("/")[0] + "/" for n in names]).rpartition("/")[0] + "/" if len(names) > 1 else ""


def _focus(item: EvidenceReport) -> list[str]:
    return focus(item.signal, item.text)


def _lines(text: str) -> str:
    """A text of several lines, harmless like every other, for an attribute."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(row) for row in clean_lines(text))


def _is_link(text: str) -> bool:
    return re.fullmatch(r"https?://[\w.-]+(:\d+)?(/[\w./~%#?&=+,:@-]*)?", text) is not None


def _command_in(text: str) -> str:
    """The first thing in backticks: what to run."""
    return next((piece for piece, code in code_pieces(text) if code), "")
