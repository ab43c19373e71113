"""The report as Markdown for a GitHub issue or a chat: the answer in a few lines, evidence in code blocks, the rest folded.

What comes from an input is text, never markup: it stands in code, or its marks are escaped. Mentions, references and bare addresses
would be turned into links by GitHub even when escaped, so they stand in code too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..model.report import EvidenceReport, Finding, Line, RemedyReport, Report
from .changes import change_lines, launch_rows
from .plain import clean, code_pieces, cut, focus, moment, quote, source_name
from .telling import Telling, ranked

LINE = 300
"""Cells of a quoted line; longer ones make an issue unreadable, and the JSON report has them whole."""
CHAT_EVIDENCE, CHAT_REMEDIES = 3, 2


def render(report: Report, *, detail: int = 0) -> str:
    """GitHub's Markdown. `detail` below 0 gives a message for a chat, without HTML and in a few lines; above 0 adds the timeline."""
    view = _View(report)
    lines = view.chat() if detail < 0 else view.issue(detail)
    return "\n".join(lines).strip("\n") + "\n"


_LINKED = re.compile(
    r"@[\w-]+(?:/[\w-]+)?"  # people and teams
    r"|(?:\b[\w.-]+/[\w.-]+)?#\d+\b|\bGH-\d+\b"  # issues
    r"|:[a-z+-][\w+-]*:(?!\w)"  # emoji
    r"|\b(?:[a-z][a-z0-9+.-]{1,20}:/{0,2}|www\.)[^\s\u1100-\uffef]+",  # addresses of any scheme
    re.IGNORECASE,
)
_MARKS = re.compile(r"[\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_])")  # an underscore between letters is only an underscore
_OPENING = re.compile(r"[#+=-]+(?=\s|$)|\d+(?=[.)](?:\s|$))")
"""What would make a heading, a rule or a list at the start of a line."""


def code(text: str) -> str:
    """A code span that shows `text` as it is, whatever backticks it holds."""
    text = clean(text).strip()
    if not text:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """One line of text in which only pairs of backticks mean anything."""
    out = []
    for piece, is_code in code_pieces(clean(text)):
        if is_code:
            out.append(code(piece))
            continue
        at = 0
        for found in _LINKED.finditer(piece):
            out += [_escaped(piece[at : found.start()], not out), code(found[0])]
            at = found.end()
        out.append(_escaped(piece[at:], not out))
    return "".join(out).strip()


def _escaped(text: str, first: bool) -> str:
    escaped = _MARKS.sub(lambda found: "\\" + found[0], text)
    opening = _OPENING.match(text.lstrip()) if first else None
    if opening is None:
        return escaped
    stripped = escaped.lstrip()
    return stripped[: opening.end()] + "\\" + stripped[opening.end() :] if opening[0].isdigit() else "\\" + stripped


def block(rows: Iterable[str], language: str = "", indent: int = 0) -> list[str]:
    """A fenced block whose fence is longer than any row of backticks within."""
    rows = [clean(row) for row in rows]
    fence = "`" * max(3, *(len(run) + 1 for row in rows for run in re.findall(r"`+", row)), 3)
    pad = " " * indent
    return [pad + fence + language, *(pad + row for row in rows), pad + fence]


class _View(Telling):
    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.open = report.verdict != "problem"

    # -- two forms

    def chat(self) -> list[str]:
        """What fits a message: answer, the strongest evidence, the next steps."""
        _, lead = self._, self.lead
        out = [self.headline(), "", self.about_line()]
        if lead:
            if lead.summary and lead.summary != lead.title and not self.open:
                out += ["", prose(lead.summary)]
            for item in [e for e in ranked(lead.evidence) if e.direction == "for"][:CHAT_EVIDENCE]:
                text = prose(item.text)
                out.append(f"- {self.at(text, item.refs[0] if item.refs else None)}")
            if lead.remedies:
                out += ["", f"**{_('What to do')}**"]
            for number, remedy in enumerate(lead.remedies[:CHAT_REMEDIES], 1):
                change = self.change(remedy)
                title = prose(remedy.title)
                out.append(f"{number}. {self.colon(title, code(' '.join(change.split()))) if change else title}")
        if self.report.attach_next and (self.open or not lead):
            out += ["", f"**{_('What to attach next')}**", *(f"- {prose(m.how_to_get)}" for m in self.report.attach_next[:3])]
        return [*out, "", self.notice()]

    def issue(self, detail: int) -> list[str]:
        """The whole report, with what a first reader can do without folded away."""
        _, report, lead = self._, self.report, self.lead
        out = [f"### {self.headline()}", "", self.about_line()]
        if lead:
            if lead.summary and lead.summary != lead.title:
                out += ["", prose(lead.summary)]
            where = " · ".join([code(self.where(lead)[0]), *map(prose, self.where(lead)[1:]), prose(self.meaning(lead.status))])
            out += ["", where, "", f"#### {_('Why')}", "", *self.evidence(lead)]
            if lead.remedies or lead.not_remedies:
                out += ["", f"#### {_('What to do')}", "", *self.remedies(lead)]
            out += self.launch(lead)
        if report.attach_next:
            out += ["", f"#### {_('What to attach next')}", "", *(f"{n}. {prose(m.how_to_get)}" for n, m in enumerate(report.attach_next, 1))]
        out += self.folded(_("Memory"), self.memory())
        out += self.folded(_("Also found"), self.further())
        out += self.folded(_("Ruled out"), self.ruled_out())
        out += self.folded(_("Not checked"), self.not_checked())
        out += self.folded(_("Timeline"), self.events() if detail > 0 or len(report.timeline) <= 40 else [])
        out += self.folded(_("About the input"), self.about_input())
        return [*out, "", self.notice()]

    # -- parts

    def headline(self) -> str:
        _, lead = self._, self.lead
        mark = {"problem": "🔴", "healthy": "🟢", "inconclusive": "🟡"}[self.report.verdict]
        if self.open or lead is None:
            return f"{mark} {prose(self.report.summary)}"
        state = self.listed([self.status(lead.status), self.severity(lead.severity)])
        return f"{mark} **{prose(lead.title)}** — {state}"

    def about_line(self) -> str:
        return " · ".join(code(part) if i and self.run and part == self.run.model else prose(part) for i, part in enumerate(self.about()))

    def place(self, line: Line) -> str:
        return source_name(line.source, 120) + (f":{line.line}" if line.line else "")

    def at(self, text: str, ref: Line | None) -> str:
        return self.noted(text, code(self.place(ref))) if ref else text

    def evidence(self, found: Finding) -> list[str]:
        _ = self._
        out = []
        for item in ranked(found.evidence):
            against = f"**{_('against it:')}** " if item.direction == "against" else ""
            out.append(f"- {against}{self.noted(prose(item.text), self.weight(item.weight))}")
            out += self.quotes(item, 2)
        for m in found.missing:
            label = self.lacking(m.signal)
            row = (
                f"- {_('not known:')} {prose(label)} — {prose(m.how_to_get)}"
                if label
                else f"- {_('To find out more: {how}').format(how=prose(m.how_to_get))}"
            )
            out += [row] if row not in out else []
        return out

    def quotes(self, item: EvidenceReport, indent: int) -> list[str]:
        if not item.refs:
            return []
        terms = focus(item.signal, item.text)
        return block((f"{self.place(r)}  {quote(r.text, LINE, terms)}" for r in item.refs), indent=indent)

    def remedies(self, found: Finding) -> list[str]:
        out = []
        for number, remedy in enumerate(found.remedies, 1):
            out += [f"{number}. **{prose(remedy.title)}**", *self.remedy(remedy)]
        return out + [f"- {self._('not')} {code(n.flag)}{self.colon('', prose(n.because))}" for n in found.not_remedies]

    def remedy(self, remedy: RemedyReport) -> list[str]:
        _ = self._
        changes = change_lines(remedy)
        out = block((f"{sign} {text}" for sign, text in changes), "diff", 3) if changes else []
        if remedy.change and remedy.change.action == "set" and remedy.change.to is None:
            out.append(f"   - {_('which value is best, this input cannot tell')}")
        rows = [(_("effect"), self.effect(e)) for e in remedy.effect]
        rows += [(label, text) for label, text in ((_("risk"), remedy.risk), (_("check"), remedy.verify)) if text]
        return out + [f"   - {self.colon(label, prose(text))}" for label, text in rows]

    def launch(self, found: Finding) -> list[str]:
        command = next((c for c in self.report.commands if c.run == found.run and c.after.strip() != c.before.strip()), None)
        if command is None:
            return []
        return ["", self._("The launch command after the first change with a value"), "", *block(launch_rows(command.after), "sh")]

    def folded(self, title: str, lines: list[str]) -> list[str]:
        return ["", "<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"] if lines else []

    def memory(self) -> list[str]:
        rows: dict[tuple[str, ...], list[str]] = {}
        for memory in self.report.memory:
            if self.run is None or memory.run == self.run.id:
                lines = tuple(self.memory_lines(memory))
                if lines:
                    rows.setdefault(lines, []).extend([] if memory.gpu is None else [str(memory.gpu)])
        out = []
        for lines, gpus in rows.items():
            head = self._("GPU {numbers}").format(numbers=", ".join(gpus)) + ": " if gpus else ""
            out += [f"- {head}{prose(lines[0])}", *(f"- {prose(line)}" for line in lines[1:])]
        return out

    def further(self) -> list[str]:
        out = []
        for found in self.report.findings:
            if found is self.lead:
                continue
            state = self.listed([self.status(found.status), self.severity(found.severity)])
            out.append(f"- **{prose(found.title)}** — {state}; {' · '.join(map(prose, self.where(found)))}")
            for item in [e for e in ranked(found.evidence) if e.direction == "for"][:1]:
                out += [f"  - {prose(item.text)}", *self.quotes(item, 4)]
            out += [f"  - {self.colon(self._('to do'), prose(r.title))}" for r in found.remedies[:1]]
        return out

    def ruled_out(self) -> list[str]:
        out = []
        for item in self.report.ruled_out:
            because = prose(item.because[0].text) if item.because else ""
            out.append(f"- {self.colon(prose(item.title), because) if because else prose(item.title)}")
        if self.report.not_indicated:
            out.append("- " + self._("no sign of: {causes}").format(causes=self.listed(map(code, self.report.not_indicated))))
        return out

    def not_checked(self) -> list[str]:
        return [
            f"- {prose(item.title)} — {self._('needs')} {self._('; ').join(dict.fromkeys(prose(m.how_to_get) for m in item.needs))}"
            if item.needs
            else f"- {prose(item.title)}"
            for item in self.report.not_checked
        ]

    def events(self) -> list[str]:
        return [f"- {code(moment(e.time, self.day) or '-')} {self.at(prose(e.text), e.ref)}" for e in self.report.timeline]

    def about_input(self) -> list[str]:
        out = [f"- {code(i.code)} {self.at(prose(i.message), i.ref)}" for i in self.report.issues]
        if self.lives():
            out.append(f"- {prose(self.lives())}")
        out += [f"- {prose(text)}" for text in self.sources()]
        if self.run and self.run.launch_command:
            out += ["", *block([cut(clean(self.run.launch_command), 2000)], "sh")]
        return out

    def notice(self) -> str:
        _, tool = self._, self.report.tool
        redacted = _("Redacted: keys, prompts, user names and addresses are masked. Still read it before you post it.")
        bare = _("NOT redacted: this may show keys, prompts and hosts. Do not post it.")
        return f"*{prose(tool.name)} {prose(tool.version)} · {redacted if self.report.redacted else bare}*"
