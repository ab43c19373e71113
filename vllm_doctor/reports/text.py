"""The terminal report, in the order of a reader who has never seen one and has a server down: what it is, why, what to do, and how
far to trust it. Pure: a Report in, a string out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.report import EvidenceReport, Finding, Line, MemoryReport, NotRemedy, RemedyReport, Report
from . import Links
from .changes import launch_rows
from .chart import iso
from .ledger import FILLS, draw, rows_of
from .page import Page
from .plain import cells, focus, moment, quote, quote_rows, source_name, span
from .spark import FEWEST, peak, span_of, spark
from .telling import Telling, ranked

_URGENT = ("critical", "high", "medium")
_SEVERITY_STYLE = {"critical": "bold red", "high": "bold red", "medium": "bold yellow", "low": "cyan", "info": "cyan"}
_COURSE = {"requests.running": "cyan", "requests.waiting": "yellow", "kv_cache.usage": "magenta"}
"""Series that are drawn, with their colours."""
_LISTED = 6
"""Entries of a secondary list that are shown unless everything is asked for."""


def render(report: Report, *, width: int = 100, color: bool = False, detail: int = 0, links: Links | None = None) -> str:
    """The report as text of at most `width` cells per line (only commands to copy and unbroken names may be longer).

    `color` adds ANSI colours; with it, `links` gives the URI that a source's name opens, or None. `detail` is -1 for the answer and what
    to do, 0, or 1 for every line of evidence with its neighbours.
    """
    page = Page(width)
    view = _View(page, report, detail, links)
    view.header()
    view.answer()
    if detail >= 0:
        view.course()
        view.memory()
        view.further()
        view.ruled_out()
        view.not_checked()
    view.attach_next()
    if detail >= 0:
        view.issues()
    if detail > 0:
        view.timeline()
    view.footer()
    return page.render(color)


REMEDIES, EFFECTS, NOTS = 4, 3, 3
"""How much advice a tired reader gets at first: the best remedies, the effects that decide, the commonest wrong advice. -v has all."""


class _View(Telling):
    """One rendering: the page, and how much of the report goes on it."""

    def __init__(self, page: Page, report: Report, detail: int, links: Links | None) -> None:
        super().__init__(report)
        self.links = links
        self.page, self.detail = page, detail
        self.explained: set[str] = set()

    # -- sections

    def header(self) -> None:
        self.page.text(" · ".join(self.about()), indent=0, style="bold")
        if self.lives():
            self.page.text(self.lives(), indent=0)
        if self.report.sources:
            self.page.text(" · ".join(self.sources()), indent=0, style="dim", lead=self._("read") + "  ", lead_style="dim")

    def answer(self) -> None:
        _, report, page = self._, self.report, self.page
        page.blank()
        if report.verdict == "healthy":
            text = report.summary or _("Nothing wrong found — and trouble would have shown.")
            page.text(text, indent=0, lead="● ", style="bold green", lead_style="green")
            return
        if report.verdict == "inconclusive":
            page.text(report.summary or _("Cannot tell."), indent=0, lead="● ", style="bold yellow", lead_style="yellow")
            if self.lead is None:
                return
            if self.lead.status == "possible":
                page.heading(_("CLOSEST LEAD"), _("worth a look, not an answer"))
            else:
                page.heading(_("WHAT THE INPUT SHOWS"))
        if self.lead:
            self.finding(self.lead)

    def finding(self, found: Finding) -> None:
        """The answer in full."""
        _, page = self._, self.page
        style = _SEVERITY_STYLE[found.severity]
        label = self.listed([self.status(found.status), self.severity(found.severity)]).upper()
        page.text(found.title, indent=0, lead=f"● {label}  ", lead_style=style, style="bold", hang=2)
        self.explained.add(found.status)
        page.text(" · ".join([*self.where(found), self.meaning(found.status)]), style="dim")
        if found.summary and found.summary != found.title:
            page.text(found.summary)
        self.why(found)
        self.what_to_do(found)

    def why(self, found: Finding) -> None:
        _, page = self._, self.page
        if not found.evidence and not found.missing:
            return
        page.heading(_("WHY"))
        items = ranked(found.evidence)
        shown = items if self.detail >= 0 else items[:1]
        for item in shown:
            lead = "+ " if item.direction == "for" else _("- against it: ")
            page.text(self.noted(item.text, self.weight(item.weight)), lead=lead, hang=2, lead_style="" if item.direction == "for" else "yellow")
            self.refs(item)
        if self.detail < 0 or not found.missing:
            return
        known = {m.how_to_get for m in self.report.attach_next}
        below = [label for m in found.missing if m.how_to_get in known and (label := self.lacking(m.signal))]
        if below:
            page.text(_("not known: {signals} (see what to attach, below)").format(signals=self.listed(dict.fromkeys(below))), lead="? ", style="dim")
        elif any(m.how_to_get in known for m in found.missing):
            page.text(_("more would be known with what to attach, below"), lead="? ", style="dim")
        told: dict[str, None] = {}
        for m in found.missing:
            if m.how_to_get not in known:
                label = self.lacking(m.signal)
                text = _("not known: {signal}. To find out: {how}") if label else _("To find out more: {how}")
                told[text.format(signal=label, how=m.how_to_get)] = None
        for text in told:
            page.text(text, lead="? ", style="dim")

    def refs(self, item: EvidenceReport) -> None:
        terms = focus(item.signal, item.text)
        for i, ref in enumerate(item.refs):
            if i and self.detail <= 0:
                rest = self.listed(f"{source_name(r.source, 40)}:{r.line}" for r in item.refs[i:])
                self.page.text(self._("also at {places}").format(places=rest), indent=6, style="dim")
                return
            if self.detail > 0 and (ref.before or ref.after):
                self.context(ref, 6, terms)
            else:
                self.quoted(ref, 6, terms)

    def place_style(self, ref: Line) -> str:
        target = self.links(ref.source) if self.links else None
        return f"cyan link {target}" if target else "cyan"

    def context(self, ref: Line, indent: int, terms: Iterable[str]) -> None:
        """A line between its neighbours."""
        room = self.page.width - indent - 4
        self.page.raw(f"{source_name(ref.source, room - 9)}:{ref.line}", indent, self.place_style(ref))
        for text in ref.before:
            self.page.raw(quote(text, room), indent + 4, "dim")
        for i, row in enumerate(quote_rows(ref.text, room, terms)):
            self.page.raw(("  " if i else "> ") + row, indent + 2)
        for text in ref.after:
            self.page.raw(quote(text, room), indent + 4, "dim")

    def quoted(self, ref: Line, indent: int, terms: Sequence[str] = ()) -> None:
        """Where a line is, and the line; on a row of its own where it would have to be cut beside its place."""
        place = f"{source_name(ref.source, self.page.width - indent - 9)}:{ref.line}"
        room = self.page.width - indent - cells(place) - 2
        beside = quote(ref.text, room, terms)
        if room >= 20 and beside == quote(ref.text, 100_000):
            self.page.lines.append([(" " * indent, ""), (place, self.place_style(ref)), ("  " + beside, "")])
            return
        self.page.raw(place, indent, self.place_style(ref))
        for row in quote_rows(ref.text, self.page.width - indent - 2, terms):
            self.page.raw(row, indent + 2)

    def what_to_do(self, found: Finding) -> None:
        _, page = self._, self.page
        if not found.remedies and not found.not_remedies:
            return
        page.heading(_("WHAT TO DO"), _("best first, one change at a time") if len(found.remedies) > 1 else "")
        remedies, nots = (found.remedies, found.not_remedies) if self.detail > 0 else (found.remedies[:REMEDIES], found.not_remedies[:NOTS])
        for number, remedy in enumerate(remedies, 1):
            self.remedy(number, remedy)
        for other in nots:
            self.not_remedy(other)
        rest = len(found.remedies) - len(remedies) + len(found.not_remedies) - len(nots)
        if rest:
            page.text(_("more advice with -v: {n}").format(n=rest), style="dim")
        if self.detail >= 0:
            self.command(found)

    def remedy(self, number: int, remedy: RemedyReport) -> None:
        _, page = self._, self.page
        page.text(remedy.title, lead=f"{number}. ", style="bold", lead_style="bold")
        change = self.change(remedy)
        if change:
            page.raw(change, 7, "green")
        rows = [(_("effect"), self.effect(e)) for e in (remedy.effect if self.detail > 0 else remedy.effect[:EFFECTS])]
        rows += [(label, text) for label, text in ((_("risk"), remedy.risk), (_("check"), remedy.verify)) if text]
        if self.detail > 0 and remedy.sources:
            rows.append((_("source"), self.listed(remedy.sources)))
        wide = max((cells(label) for label, _text in rows), default=0) + 2
        previous = ""
        for label, text in rows:
            page.text(text, indent=5, lead="" if label == previous else label, hang=wide, lead_style="dim")
            previous = label

    def not_remedy(self, other: NotRemedy) -> None:
        text = self.colon(other.flag, other.because)
        self.page.text(text, lead=self._("not") + " ", lead_style="bold yellow")

    def command(self, found: Finding) -> None:
        """The whole launch command after the changes, one option per line, ready to paste."""
        command = next((c for c in self.report.commands if c.run == found.run and c.after.strip() != c.before.strip()), None)
        if command is None:
            return
        self.page.text(self._("the launch command after the first change with a value:"))
        rows = launch_rows(command.after)
        own = "\n" in command.after.strip()  # the user's own lines keep their indents
        for i, row in enumerate(rows):
            self.page.raw(row, 5 if i == 0 or own else 7, "green")

    def course(self) -> None:
        """Running, waiting and KV usage over time, in one row each. The scale stands beside each row."""
        _, page, run = self._, self.page, self.run
        engine = self.lead.engine if self.lead and self.lead.engine is not None else None
        own = [s for s in self.report.series if run and s.run == run.id and engine in (None, s.engine) and len(s.points) >= FEWEST]
        chosen = [next((s for s in own if s.signal == signal), None) for signal in _COURSE]
        rows = [(s, top) for s in chosen if s is not None and (top := peak(s)) is not None]
        across = span_of(s for s, _top in rows)
        if across is None:
            return
        label = max(cells(self.signal(s.signal)) for s, _top in rows) + 2
        scales = [self.scale(s.unit, top) for s, top in rows]
        room = min(max(self.page.width - 4 - label - max(map(cells, scales)), 8), 60)
        when = span(iso(across[0]), iso(across[1]), self.day)
        page.heading(_("OVER TIME"), _("{span}; each step shows its highest value").format(span=when))
        for (series, top), scale in zip(rows, scales, strict=True):
            name = self.signal(series.signal)
            bars = spark(series, *across, 1.0 if series.unit == "ratio" else top, room)
            row = [("  ", ""), (name + " " * (label - cells(name)), ""), (bars, _COURSE[series.signal]), ("  " + scale, "dim")]
            page.lines.append(row)

    def scale(self, unit: str, top: float) -> str:
        """From the lowest bar to the highest; a share is always drawn on 0 to 100 %."""
        if unit == "ratio" and self.page.width < 60:
            return "0 – 100 %"
        if unit == "ratio":
            return self._("0 – 100 %, highest {value}").format(value=self.value(top, unit))
        return f"0 – {self.value(top, unit)}"

    def memory(self) -> None:
        """Where the memory went, as a bar and a table, and how many requests fit; once for GPUs that read the same."""
        _, page = self._, self.page
        groups: dict[tuple[object, ...], list[MemoryReport]] = {}
        for memory in self.report.memory:
            lines = tuple(self.memory_lines(memory))
            if lines and (self.run is None or memory.run == self.run.id):
                groups.setdefault((*lines, *(getattr(memory, f"{part}_bytes") for part in FILLS)), []).append(memory)
        if groups:
            page.heading(_("MEMORY"))
        for members in groups.values():
            first, numbers = members[0], [str(m.gpu) for m in members if m.gpu is not None]
            label = _("GPU {numbers}").format(numbers=", ".join(numbers)) + "  " if numbers else ""
            lines, rows = tuple(self.memory_lines(first)), rows_of(first, self)
            drawn = first.total_bytes is not None and len(rows) > 2
            if drawn:
                head = _("{total} in all, of which vLLM may use {budget}") if first.budget_bytes is not None else _("{total} in all")
                total, budget = self.value(first.total_bytes, "bytes"), self.value(first.budget_bytes, "bytes")
                page.text(head.format(total=total, budget=budget), lead=label, hang=cells(label))
                lumped = first.non_torch_bytes is None and first.origins.get("activation_bytes") == "derived"
                draw(page, self, rows, first.total_bytes, lumped=lumped)
            for i, line in enumerate(lines[1:] if drawn else lines):
                page.text(line, lead="" if i or drawn else label, hang=0 if drawn else cells(label))

    def further(self) -> None:
        """The other findings, short. The same cause on several engines is one entry."""
        _, page = self._, self.page
        rest = [f for f in self.report.findings if f is not self.lead]
        if not rest:
            return
        page.heading(_("ALSO FOUND"))
        groups: dict[tuple[str, str | None, str | None, str, str], list[Finding]] = {}
        for found in rest:
            groups.setdefault((found.id, found.variant, found.run, found.status, found.severity), []).append(found)
        for members in list(groups.values())[: None if self.detail > 0 else _LISTED]:
            self.short(members)
        if self.detail <= 0 and len(groups) > _LISTED:
            page.text(_("and {n} more, with -v").format(n=len(groups) - _LISTED), style="dim")
        for status in ("confirmed", "likely", "possible"):
            if status not in self.explained and any(f.status == status for f in rest):
                page.text(self.meaning(status), style="dim")

    def short(self, members: list[Finding]) -> None:
        _, page, found = self._, self.page, members[0]
        label = self.listed([self.status(found.status), self.severity(found.severity)])
        page.text(found.title, lead=f"{label}  ", lead_style=_SEVERITY_STYLE[found.severity], hang=4)
        where = [found.id + (f" / {found.variant}" if found.variant else "")]
        engines = sorted({f.engine for f in members if f.engine is not None})
        if len(engines) > 1:
            where.append(_("engines {numbers}").format(numbers=", ".join(map(str, engines))))
        when = span(min((f.first_time for f in members if f.first_time), default=None), found.last_time, self.day)
        where += [when] if when else []
        if found.explained_by:
            titles = {f.id: f.title for f in self.report.findings}
            where.append(_("follows from: {causes}").format(causes=self.listed(titles.get(i, i) for i in found.explained_by)))
        page.text(" · ".join(where), indent=6, style="dim")
        if found.explained_by:
            return
        shown = ranked(e for e in found.evidence if e.direction == "for")[:1]
        for item in shown:
            page.text(item.text, indent=6, lead="+ ")
            for ref in item.refs[:1]:
                self.quoted(ref, 8, (item.signal or "").split("."))
        if found.severity in _URGENT and found.remedies:
            remedy = found.remedies[0]
            page.text(self.colon(_("to do"), remedy.title), indent=6)
            if self.change(remedy):
                page.raw(self.change(remedy), 8, "green")

    def ruled_out(self) -> None:
        _, page = self._, self.page
        if not self.report.ruled_out and not self.report.not_indicated:
            return
        page.heading(_("RULED OUT"))
        for item in self.report.ruled_out:
            because = item.because[0].text if item.because else ""
            page.text(self.colon(item.title, because) if because else item.title, lead="- ")
        if self.report.not_indicated:
            n = len(self.report.not_indicated)
            text = _("no sign of: {causes}").format(causes=self.listed(self.report.not_indicated))
            page.text(
                text if self.detail > 0 or n <= 3 else _("looked for without a sign of it: {n} other causes (-v names them)").format(n=n), style="dim"
            )

    def not_checked(self) -> None:
        """Causes grouped by what they need, which is what a reader can act on."""
        _, page = self._, self.page
        groups: dict[tuple[str, ...], list[str]] = {}
        for item in self.report.not_checked:
            groups.setdefault(tuple(dict.fromkeys(m.how_to_get for m in item.needs)), []).append(item.title)
        if not groups:
            return
        page.heading(_("NOT CHECKED"), _("the input cannot show these, either way"))
        for needs, titles in list(groups.items())[: None if self.detail > 0 else _LISTED]:
            text = _("; ").join(titles)
            page.text(_("{causes} — needs: {needs}").format(causes=text, needs=_("; ").join(needs)) if needs else text, lead="- ")
        if self.detail <= 0 and len(groups) > _LISTED:
            page.text(_("and {n} more, with -v").format(n=len(groups) - _LISTED), style="dim")

    def attach_next(self) -> None:
        if not self.report.attach_next:
            return
        self.page.heading(self._("WHAT TO ATTACH NEXT"))
        for number, item in enumerate(self.report.attach_next, 1):
            self.page.text(item.how_to_get, lead=f"{number}. ")

    def issues(self) -> None:
        _, page = self._, self.page
        if not self.report.issues:
            return
        page.heading(_("ABOUT THE INPUT"))
        for issue in self.report.issues[: None if self.detail > 0 else _LISTED]:
            place = ""
            if issue.ref is not None and (issue.ref.line or issue.ref.source not in issue.message):
                place = source_name(issue.ref.source, 40) + (f":{issue.ref.line}" if issue.ref.line else "") + "  "
            page.text(self.noted(issue.message, issue.code), lead="! " + place, lead_style="yellow", hang=4)
        if self.detail <= 0 and len(self.report.issues) > _LISTED:
            page.text(_("and {n} more, with -v").format(n=len(self.report.issues) - _LISTED), style="dim")

    def timeline(self) -> None:
        if not self.report.timeline:
            return
        self.page.heading(self._("TIMELINE"))
        for entry in self.report.timeline:
            when = moment(entry.time, self.day) or "-"
            place = f" ({source_name(entry.ref.source, 40)}:{entry.ref.line})" if entry.ref else ""
            self.page.text(entry.text + place, lead=when + "  ")

    def footer(self) -> None:
        _, page = self._, self.page
        page.blank()
        if self.lead:
            page.text(_("more on this cause: vllm-doctor explain {id}").format(id=self.lead.id), indent=0, style="dim")
        if self.report.redacted:
            page.text(_("Redacted: keys, prompts, user names and addresses are masked. Still read it before you post it."), indent=0, style="dim")
        else:
            page.text(_("NOT redacted: this may show keys, prompts and hosts. Do not post it."), indent=0, style="bold yellow")
