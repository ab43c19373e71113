"""Puts judgements and advice into words: Case and judgements in, Report out, in one language.

Rule texts come from `rules/`; the program's own sentences are keyed by their English text in the catalogue (see `language`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from . import __version__
from .assemble import STARTUP_FAILURES
from .language import filled, format_value, translator
from .model import report as out
from .model.case import Case, Known, Run, Value
from .model.catalogue import OBSERVATIONS, SIGNALS
from .model.judgement import Advice, Held, Judgement
from .model.observations import Event, Issue, Ref
from .remedies.command import Rewritten
from .ruleset.schema import Cause, Remedy, RuleSet, Text
from .signals.course import Course, gpu_memory, latencies
from .versions import generation

LINE_CHARACTERS = 2000
"""Longest quoted line. vLLM's configuration line has about 4,000; what tells is never at its far end."""
SERIES = ("requests.running", "requests.waiting", "kv_cache.usage", "throughput.prompt", "throughput.generation", "requests.swapped")
"""Series that every report carries for its plots."""

TIMELINE = (
    "startup.complete",
    *STARTUP_FAILURES,
    "startup.failed",
    "scheduler.preempted",
    "oom",
    "engine.fatal_error",
    "engine.died",
    "worker.died",
    "process.killed",
    "client.disconnected",
    "shutdown.requested",
    "shutdown.complete",
)
"""Kinds of events that tell a run's story; the first of each is enough."""
FAILURES = (*STARTUP_FAILURES, "startup.failed", "oom", "exception", "engine.fatal_error", "engine.died", "worker.died", "process.killed")
"""Kinds of events that end a server. What rests on them is not over: its server is."""


class Narrator:
    """Texts of one report: the rules, the language, and how figures and lines are written in it."""

    def __init__(self, case: Case, rules: RuleSet, language: str) -> None:
        self.case, self.rules, self.language = case, rules, language
        self._ = translator(language)
        self.causes = {c.id: c for c in rules.causes}
        self.remedies = {r.id: r for r in rules.remedies}
        self.inputs = {i.id: i for i in rules.inputs}
        self.confidence = {a.status: a.confidence for a in rules.accuracy}

    def fill(self, text: Text, values: dict[str, Value]) -> str:
        """A rule text with its figures. A figure that is unknown is called so."""

        def figure(match: re.Match[str]) -> str:
            value = values.get(match[1])
            return format_value(value.value if isinstance(value, Known) else None, SIGNALS[match[1]].unit, self.language)

        return re.sub(r"\{([a-z0-9_.]+)\}", figure, text.in_language(self.language))

    def needs(self, pairs: Iterable[tuple[str, str]]) -> tuple[out.MissingReport, ...]:
        result = []
        for signal, key in pairs:
            known = self.inputs.get(key)
            result.append(out.MissingReport(signal, known.how_to_get.in_language(self.language) if known else key))
        return tuple(result)

    def finding(self, j: Judgement, advice: Sequence[Advice], not_remedies: Sequence[tuple[str, str]]) -> out.Finding:
        cause = self.causes[j.cause]
        face = cause.faces.get(j.variant or "", cause)
        run = next(r for r in self.case.runs if r.id == j.run)
        first, last = _span(j, run)
        return out.Finding(
            id=j.cause,
            variant=j.variant,
            run=j.run,
            engine=j.engine,
            severity=j.severity,
            status=j.status or "possible",
            confidence=self.confidence.get(j.status or "possible"),
            role=j.role,
            explained_by=j.explained_by,
            title=face.title.in_language(self.language),
            summary=self.fill(face.summary, {}),
            first_time=iso(first),
            last_time=iso(last),
            ongoing=_ongoing(j, run),
            evidence=tuple(self.evidence(cause, h) for h in _strongest_first(j.evidence)),
            missing=self.needs(j.missing),
            remedies=tuple(self.remedy(self.remedies[a.remedy], a, run) for a in advice),
            not_remedies=tuple(out.NotRemedy(flag, because) for flag, because in not_remedies),
        )

    def evidence(self, cause: Cause, held: Held) -> out.EvidenceReport:
        index = int(held.rule[held.rule.index("[") + 1 : -1])
        item = (cause.for_ if held.direction == "for" else cause.against)[index]
        signal = held.signals[0] if held.signals else None
        value = held.values.get(signal) if signal else None
        return out.EvidenceReport(
            text=self.fill(item.why, held.values),
            direction=held.direction,
            weight=held.weight,
            signal=signal,
            value=value.value if isinstance(value, Known) and abs(value.value) != float("inf") else None,
            unit=SIGNALS[signal].unit if signal else None,
            refs=tuple(line(r) for r in held.refs),
        )

    def remedy(self, remedy: Remedy, advice: Advice, run: Run) -> out.RemedyReport:
        change = None
        if advice.action and advice.option:
            change = out.Change(advice.action, advice.option, _scalar(advice.from_), _scalar(advice.to))
        return out.RemedyReport(
            id=remedy.id,
            title=self.fill(remedy.title, advice.values),
            kind=remedy.kind,
            change=change,
            effect=advice.effect,
            risk=self._("; ").join([self.fill(remedy.risk, advice.values), *self.doubt(advice)]),
            verify=self._("; ").join([self.fill(remedy.verify, advice.values), *self.expected(advice, run)]),
            sources=tuple(remedy.sources),
        )

    def command(self, run: Run, made: Rewritten) -> out.Command:
        """The launch command before and after. One that was put together says so in a comment."""
        notes = []
        if made.put_together:
            notes.append("# " + self._("put together from the arguments that the log prints; environment and wrapper are not in it"))
        if made.only_option:
            notes.append("# " + self._("only the option to change: the launch command itself cannot be changed safely here"))
        if made.left_out:
            notes.append(
                "# " + self._("left out, for the log does not print their values in full: {options}").format(options=" ".join(made.left_out))
            )
        before, after = ("\n".join([*notes, text]) for text in (made.before, made.after))
        return out.Command(run.id, before, after, made.diff)

    def expected(self, advice: Advice, run: Run) -> list[str]:
        """What the start-up log should say of the KV cache after the change, where it is predicted."""
        after = next((e.after for e in advice.effect if e.quantity == "kv_cache.tokens"), None)
        if after is None or advice.option is None:
            return []
        ends = after if isinstance(after, list) else [after]
        figures = " – ".join(dict.fromkeys(format_value(round(n, -len(str(int(n))) + 3), "tokens", self.language) for n in ends))
        return [self._("the log should then say about {tokens} of KV cache").format(tokens=figures)]

    def doubt(self, advice: Advice) -> list[str]:
        """What speaks against a change that does not cure a failed start for sure."""
        if advice.outlook == "may-start":
            return [self._("by the expected sizes the server then starts, at their cautious end it does not")]
        if advice.outlook == "has-room":
            text = self._("the server may start: the KV cache then has room, but how much of it one request takes is not known from this input")
            return [text]
        return (
            [self._("alone it does not let the server start: it comes nearest, and needs another change besides")]
            if advice.outlook == "fails"
            else []
        )

    def run(self, run: Run) -> out.RunReport:
        own = generation(run)
        return out.RunReport(
            id=run.id,
            vllm_version=run.version,
            engine_generation="V0" if own == "V0" else "V1" if own == "V1" else None,
            model=run.text("model.name") or (run.launch.model if run.launch else None),
            gpus=tuple(g.name or f"GPU {g.index}" for g in self.case.gpus),
            flags=run.flags(),
            launch_command=run.launch.command if run.launch else None,
            started=iso(run.started),
            ended=iso(run.ended),
            end=run.end,
        )

    def issue(self, issue: Issue) -> out.IssueReport:
        return out.IssueReport(issue.code, filled(issue.message, issue.values, self.language), line(issue.ref) if issue.ref else None)

    def timeline(self, run: Run) -> list[out.TimelineEntry]:
        entries = []
        if run.has_banner and run.facts:
            entries.append(out.TimelineEntry(iso(run.started), run.id, "start", self._("the server starts"), line(run.facts[0].ref)))
        for kind in TIMELINE:
            found = run.events_of(kind)
            if found:
                count = run.event_count(kind)
                text = self._(OBSERVATIONS[kind].meaning) + (f" (x{count})" if count > 1 else "")
                entries.append(out.TimelineEntry(iso(found[0].time), run.id, kind, text, line(found[0].ref)))
        return entries

    def series(self, run: Run) -> list[out.SeriesReport]:
        result = []
        for track in run.tracks:
            for name in SERIES:
                for engine in run.engines:
                    series = track.series.get((name, engine))
                    if series is not None:
                        points = [(str(iso(b.first.time)), b.min.value, b.sum / b.count, b.max.value) for b in series.buckets.values()]
                        result.append(out.SeriesReport(run.id, engine, name, OBSERVATIONS[name].unit, series.width, points))
            result += [_course(run, engine, c) for engine in run.engines for c in latencies(track, engine)]
        return result + [_course(run, run.engines[0], c) for c in gpu_memory(self.case.gpus, run)]

    def summary(self, verdict: out.Verdict, findings: Sequence[out.Finding], missing: Sequence[str]) -> str:
        """The first sentence of every output."""
        if verdict == "problem":
            top = findings[0]
            strongest = next((e.text for e in top.evidence if e.direction == "for"), "")
            return f"{top.title}: {strongest}" if strongest else top.title
        if verdict == "healthy":
            return self._(
                "Nothing wrong was found, and trouble would have shown: the server worked under load, its queue, KV cache and errors in view."
            )
        failure = _failure(self.case)
        quoted = " " + failure.ref.text.strip()[:300] if failure is not None else ""
        if findings and findings[0].status == "possible":
            return self._("Cannot tell for sure: the inputs fit the cause below but do not show it.") + quoted
        if failure is not None:
            return self._("Cannot tell: the server failed with the error below, and no rule of this version explains it.") + quoted
        if empty_window(self.case.issues):
            return self._("Cannot tell: nothing in the input lies in the window of time that was asked for.")
        if not self.case.runs:
            return self._("Cannot tell: nothing of a vLLM server was found in the input.")
        for key, told in (
            ("errors-unexplained", self._("Cannot tell: many responses were errors, and no rule of this version explains them.")),
            ("queue-unexplained", self._("Cannot tell: requests waited, and no rule of this version explains why.")),
        ):
            if key in missing:
                return told
        if findings and findings[0].status != "possible":
            return self._("Too little was seen to call the server healthy; what the input does show stands below.")
        return self._("Cannot tell: nothing wrong was found, but the inputs do not show enough to call the server healthy.")


ORDER_ONLY = 2 * 86400.0
"""Scrapes without a time are numbered 0, 1, 2 ... on their axis: that is an order, not a date."""


@lru_cache(maxsize=8192)  # the series of a run share their times
def iso(time: float | None) -> str | None:
    """Seconds of a stream's own clock as ISO 8601 without zone."""
    if time is None or time < ORDER_ONLY:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=round(time, 3))
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds" if moment.microsecond else "seconds")


def line(ref: Ref) -> out.Line:
    """A quoted line, bounded in length."""

    def cut(text: str) -> str:
        return text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + "…"

    return out.Line(ref.source, ref.line, cut(ref.text), tuple(map(cut, ref.before)), tuple(map(cut, ref.after)))


def _course(run: Run, engine: int, course: Course) -> out.SeriesReport:
    points = [(str(iso(time)), value, value, value) for time, value in course.points]
    return out.SeriesReport(run.id, engine, course.signal, course.unit, course.width, points)


def _scalar(value: object) -> str | None:
    """A value as it is typed. The log prints structures as Python; options take them as JSON."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.dumps(ast.literal_eval(value))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return value
    return None if value is None else ("true" if value else "false") if isinstance(value, bool) else str(value)


def _strongest_first(evidence: Sequence[Held]) -> list[Held]:
    order = ("decisive", "strong", "moderate", "weak")
    return sorted(evidence, key=lambda h: (h.direction == "against", order.index(h.weight)))


def _span(j: Judgement, run: Run) -> tuple[float | None, float | None]:
    """First and last time of a finding: its window's, or where it rests on events theirs."""
    times = [t for h in j.evidence if h.direction == "for" for r in h.refs if (t := _event_time(run, r)) is not None]
    if times:
        return min(times), max(times)
    return (j.window.start, j.window.end) if j.window.track >= 0 else (run.started, run.ended)


def _event_time(run: Run, ref: Ref, kinds: Sequence[str] = ()) -> float | None:
    """The time of the event, of one of `kinds` where some are given, that the line tells of."""
    return next((e.time for k, b in run.events.items() if not kinds or k in kinds for e in b.events if e.ref == ref), None)


def _ongoing(j: Judgement, run: Run) -> bool | None:
    """Does the trouble last to the end of what was seen? Unknown for failures, for what ended with its server, and where nothing has a time."""
    if j.window.whole or j.window.track < 0 or run.ended is None:
        return None
    if run.end == "crashed" and any(_event_time(run, r, FAILURES) is not None for h in j.evidence if h.direction == "for" for r in h.refs):
        return None
    if j.window.end < run.ended - 30.0:
        return False
    return None if run.end == "crashed" else run.end == "running"


def _failure(case: Case) -> Event | None:
    """The error to quote where no rule explains a failed server: the first own exception, else what says that the start failed."""
    for run in case.runs:
        if run.end != "crashed":
            continue
        for kinds in (("oom",), STARTUP_FAILURES, ("exception",), ("engine.fatal_error",), ("engine.died", "worker.died"), ("startup.failed",)):
            found = [e for k in kinds for e in run.events_of(k)]
            if found:
                return found[0]
    return None


def assemble_report(
    narrator: Narrator,
    verdict: out.Verdict,
    missing: Sequence[str],
    findings: Sequence[tuple[Judgement, Sequence[Advice], Sequence[tuple[str, str]]]],
    others: Sequence[Judgement],
) -> out.Report:
    """The whole report, not yet redacted."""
    case, rules, language = narrator.case, narrator.rules, narrator.language
    told = [narrator.finding(j, advice, nots) for j, advice, nots in findings]
    ruled_out = []
    for j in others:
        if j.outcome == "ruled_out":
            cause = narrator.causes[j.cause]
            because = tuple(narrator.evidence(cause, h) for h in j.evidence if h.direction == "against")
            ruled_out.append(out.RuledOut(j.cause, j.run, cause.title.in_language(language), because))
    unchecked: dict[str, list[tuple[str, str]]] = {}
    for j in others:
        if j.outcome == "not_checked":
            unchecked.setdefault(j.cause, []).extend(m for m in j.missing if m not in unchecked.get(j.cause, []))
    seen = {f.id for f in told} | {r.id for r in ruled_out} | set(unchecked)
    not_indicated = tuple(dict.fromkeys(j.cause for j in others if j.outcome == "not_indicated" and j.cause not in seen))
    issues = [*case.issues, *_rule_issues(rules), *(_contradiction(j) for j, _, _ in findings if j.contradicted)]
    wanted = _attach(verdict, () if empty_window(case.issues) else missing, findings, unchecked)
    entries = [e for run in case.runs for e in narrator.timeline(run)]
    return out.Report(
        tool=out.Tool("vllm-doctor", __version__, rules.version),
        redacted=False,
        verdict=verdict,
        summary=narrator.summary(verdict, told, missing),
        language=language,
        sources=tuple(out.SourceReport(s.name, s.kinds, s.bytes, s.lines, iso(s.first_time), iso(s.last_time)) for s in case.sources),
        runs=tuple(narrator.run(r) for r in case.runs),
        findings=tuple(told),
        ruled_out=tuple(ruled_out),
        not_indicated=not_indicated,
        not_checked=tuple(out.NotChecked(c, narrator.causes[c].title.in_language(language), narrator.needs(ms)) for c, ms in unchecked.items()),
        attach_next=narrator.needs(wanted),
        series=tuple(s for run in case.runs for s in narrator.series(run)),
        issues=tuple(narrator.issue(i) for i in issues),
        timeline=tuple(sorted(entries, key=lambda e: (e.time or "", e.ref.line if e.ref else 0))),
    )


def empty_window(issues: Iterable[Issue]) -> bool:
    """Whether the input was cut to a window of time that holds nothing of it: then what was read says nothing about what is missing."""
    return any(issue.code in ("empty-window", "reversed-window") for issue in issues)


def _attach(
    verdict: out.Verdict, missing: Sequence[str], findings: Sequence[tuple[Judgement, object, object]], unchecked: dict[str, list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """What to attach next, the most telling first: what the verdict lacks, then the leading finding, then causes that were not
    checked. Where a problem was found only what would make that finding surer is worth another trip to the server."""
    wanted: dict[str, str] = {}
    if verdict == "inconclusive":
        wanted.update(dict.fromkeys(missing, ""))
    for j, _, _ in findings[:1]:
        if j.outcome != "confirmed":
            for signal, key in j.missing:
                wanted.setdefault(key, signal)
    if verdict == "problem":
        return [(signal, key) for key, signal in wanted.items()]
    for pairs in unchecked.values():
        for signal, key in pairs:
            wanted.setdefault(key, signal)
    return [(signal, key) for key, signal in wanted.items()]


def _rule_issues(rules: RuleSet) -> list[Issue]:
    return [Issue("rule-replaced", "The rule {id} of this tool was replaced by one of your own.", {"id": name}) for name in rules.extra]


def _contradiction(j: Judgement) -> Issue:
    return Issue("contradiction", "The evidence about {cause} is decisive both ways; it is only called possible.", {"cause": j.cause})
