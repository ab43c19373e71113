"""Bytes to Report: the one place that strings the layers together.

sources -> segments -> streams -> fold -> assemble -> signals -> judgements -> advice -> words -> redaction
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from msgspec import structs

from .assemble import Inputs, Origin, assemble, within
from .diagnosis.judge import judge
from .diagnosis.rank import ranked, verdict
from .model.case import Case, SourceSummary
from .model.judgement import Advice, Judgement
from .model.observations import Gpu, Issue, Launch, Scalar, Scrape, SocketQueue, StreamTally
from .model.report import Command, IssueReport, MemoryReport, Report
from .model.timebound import TimeBound
from .narrate import Narrator, assemble_report, iso, line
from .redact import redact as redacted
from .remedies.advise import advise, not_helpful
from .remedies.command import command_after
from .ruleset.load import load
from .ruleset.schema import Model, RuleSet
from .signals.evaluate import Evaluator

if TYPE_CHECKING:
    from .parsing.framing import Segment
    from .parsing.streams import Stream
    from .sources import Source

WHOLE = 8 * 2**20
"""Sources up to this size are cut into segments line by line (a paste mixes kinds); larger ones are of one kind, told by their head."""

Progress = Callable[[str, int, int], None]
"""(source name, bytes read, bytes in all)."""


class Gathered:
    """What parsing has found so far. The one mutable thing of the pipeline, local to one analysis."""

    def __init__(self, rules: RuleSet, issues: Iterable[Issue]) -> None:
        self.rules = rules
        self.tallies: dict[Origin, list[StreamTally]] = {}
        self.scrapes: list[Scrape] = []
        self.gpus: list[Gpu] = []
        self.launches: list[Launch] = []
        self.sockets: list[SocketQueue] = []
        self.issues: list[Issue] = list(issues)
        self.zones: dict[Origin, float] = {}
        self.kernel = False
        self.year_is_guessed = False


def analyze(
    sources: Sequence[Source],
    *,
    extra_issues: Sequence[Issue] = (),
    language: str = "en",
    rules_dir: str | None = None,
    since: TimeBound | None = None,
    until: TimeBound | None = None,
    redact: bool = True,
    progress: Progress | None = None,
    model: Model | None = None,
) -> Report:
    """The report on everything in `sources`. Broken input becomes issues of the report; only faulty rules raise (RulesInvalid).

    `model` is the model's shape where it is known from its config.json (`capacity.config_json`)."""
    rules = load(rules_dir)
    case = read_case(sources, rules, extra_issues, progress)
    if since is not None or until is not None:
        case = _windowed(case, since, until)
    report = diagnose(case, rules, language, model)
    return redacted(report) if redact else report


def _windowed(case: Case, since: TimeBound | None, until: TimeBound | None) -> Case:
    """The case within the bounds; that nothing lies there, or that they are reversed, is an issue of it."""
    kept = within(case, since, until)
    starts, ends = [r.started for r in case.runs if r.started is not None], [r.ended for r in case.runs if r.ended is not None]
    if not starts or not ends:
        return kept
    low, high = (None if bound is None else bound.resolve(min(starts), max(ends)) for bound in (since, until))
    values: dict[str, Scalar] = {name: iso(at) or "" for name, at in (("since", low), ("until", high)) if at is not None}
    if low is not None and high is not None and low > high:
        found = Issue("reversed-window", "The window of time ends before it begins: from {since} to {until}.", values)
    elif kept.runs:
        return kept
    elif low is not None and high is not None:
        found = Issue("empty-window", "Nothing in the input lies between {since} and {until}.", values)
    elif low is not None:
        found = Issue("empty-window", "Nothing in the input lies after {since}.", values)
    else:
        found = Issue("empty-window", "Nothing in the input lies before {until}.", values)
    return structs.replace(kept, runs=(), issues=(*kept.issues, found))


def diagnose(case: Case, rules: RuleSet, language: str = "en", model: Model | None = None) -> Report:
    """Case to report, before redaction. `model` is the shape from a config.json; without it the model's name is looked up."""
    evaluator = Evaluator(case, rules.flags)
    evaluator.memo["model"] = model
    judgements = judge(case, rules, evaluator)
    findings = ranked(judgements, rules)
    answer, missing = verdict(case, findings, evaluator)
    narrator = Narrator(case, rules, language)
    told = [(j, a, _not_remedies(j, case, rules, evaluator, narrator)) for j, a in _agreeing(findings, case, rules, evaluator)]
    report = assemble_report(narrator, answer, missing, told, [j for j in judgements if not j.status])
    memory, doubts = _memory(case, model, narrator)
    commands = _commands(case, told[:1], rules, narrator, doubts)
    return structs.replace(report, memory=memory, commands=commands, issues=(*report.issues, *doubts))


def _agreeing(findings: Sequence[Judgement], case: Case, rules: RuleSet, evaluator: Evaluator) -> list[tuple[Judgement, list[Advice]]]:
    """Each finding with its advice. One report does not set an option to two values: the finding that ranks higher has its way."""
    settled: dict[tuple[str, str], tuple[str | None, object]] = {}
    result = []
    for finding in findings:
        kept = []
        for advice in advise(case, finding, rules, evaluator):
            place = (finding.run, advice.option or "")
            move = (advice.action, advice.to)
            if advice.option is None or settled.setdefault(place, move) == move:
                kept.append(advice)
        result.append((finding, kept))
    return result


def _commands(
    case: Case, leading: Sequence[tuple[Judgement, Sequence[Advice], object]], rules: RuleSet, narrator: Narrator, doubts: list[IssueReport]
) -> tuple[Command, ...]:
    """The launch command of the leading finding's run after its first change that has a value; adds to `doubts` where the user's own could
    not be changed."""
    result = []
    for finding, advice, _ in leading:
        run = next(r for r in case.runs if r.id == finding.run)
        made = command_after(run, advice, rules.flags)
        if made is not None and made.only_option:
            text = "The launch command cannot be changed safely here: only the option to change in it is given."
            doubts.append(narrator.issue(Issue("launch-command", text, {}, run.launch.ref if run.launch else None)))
        if made is not None:
            result.append(narrator.command(run, made))
    return tuple(result)


def _memory(case: Case, model: Model | None, narrator: Narrator) -> tuple[tuple[MemoryReport, ...], list[IssueReport]]:
    """The memory account of every run whose lines say something of memory, and what is wrong with it; the model's shape is only looked up
    for those."""
    runs = [r for r in case.runs if any(f.name.startswith(("memory.", "kv_cache.")) for f in r.facts)]
    if not runs:
        return (), []
    from .capacity.doubts import doubts_of
    from .capacity.ledger import ledger
    from .capacity.told import memory_reports
    from .ruleset.load import load_knowledge

    found = [one for r in runs if (one := ledger(r, case, load_knowledge(), model)) is not None]
    doubts = [narrator.issue(d) for one in found for d in doubts_of(one, narrator.language, model is not None)]
    return tuple(m for one in found for m in memory_reports(one, line)), doubts


def _not_remedies(finding: Judgement, case: Case, rules: RuleSet, evaluator: Evaluator, narrator: Narrator) -> list[tuple[str, str]]:
    """Advice that others give for this cause and that would not help here."""
    return [(item.flag, narrator.fill(item.because, values)) for item, values in not_helpful(case, finding, rules, evaluator)]


def read_case(sources: Sequence[Source], rules: RuleSet, issues: Sequence[Issue] = (), progress: Progress | None = None) -> Case:
    """Everything that the sources say, put together."""
    from .parsing.framing import segments

    gathered = Gathered(rules, issues)
    summaries: list[SourceSummary] = []
    later: list[tuple[Source, list[Segment] | None]] = []
    for source in sources:
        if progress:
            progress(source.name, 0, source.size)
        data = _whole(source, gathered.issues)
        found = None if data is None else segments(source.name, data)
        for segment in found or ():
            if segment.kind in ("metrics", "gpu", "sockets"):
                _read_other(segment, source, gathered)
        _read_launches(found or (), gathered)
        later.append((source, found))
    _time_by_file(gathered, sources)
    hint = _time_hint(gathered.scrapes, sources)
    gathered.year_is_guessed = hint is not None and all(s.time is None for s in gathered.scrapes)
    for source, found in later:
        if found is None:
            kinds, lines, size = _read_large(source, hint, gathered, progress)
        else:
            kinds, lines = _read_logs(source, found, hint, gathered)
            size = sum(len(s.data) for s in found)
        summaries.append(SourceSummary(source.name, kinds, size, lines))
    return assemble(
        Inputs(
            tallies=tuple((origin, tally) for origin, parts in gathered.tallies.items() for tally in parts),
            scrapes=tuple(gathered.scrapes),
            gpus=tuple(gathered.gpus),
            sockets=tuple(gathered.sockets),
            launches=tuple(gathered.launches),
            sources=_timed(summaries, gathered),
            issues=tuple(gathered.issues),
            has_kernel_log=gathered.kernel,
            zones=gathered.zones,
        )
    )


def _whole(source: Source, issues: list[Issue]) -> bytes | None:
    """All bytes of a source, unpacked; None for one that is too large to be held."""
    if source.size > WHOLE:
        return None
    found: list[Issue] = []
    parts, size = [], 0
    for block in source.blocks(found):
        parts.append(block)
        size += len(block)
        if size > WHOLE:
            return None  # it is read again in blocks, and its issues are found again
    issues += found
    return b"".join(parts)


def _read_other(segment: Segment, source: Source, gathered: Gathered) -> None:
    """A segment that is no log: a scrape, a GPU dump, a socket table."""
    if segment.kind == "metrics":
        from .parsing.prometheus import parse as parse_metrics
        from .parsing.prometheus import scrape_time, split

        pieces = split(segment.data, segment.first_line)
        name = source.name if len(pieces) == 1 else ""  # the time in a file's name is not that of every scrape in it
        for line, data in pieces:
            time = scrape_time(name, data)
            scrape, issues = parse_metrics(data, segment.source, line, gathered.rules.metrics, len(gathered.scrapes), time)
            gathered.issues += issues
            if scrape is not None:
                gathered.scrapes.append(scrape)
    elif segment.kind == "gpu":
        from .parsing.gpu import parse as parse_gpu

        gpus, issues = parse_gpu(segment.data.decode("utf-8", "replace"), segment.source, segment.first_line)
        gathered.gpus += gpus
        gathered.issues += issues
    elif segment.kind == "sockets":
        from .parsing.sockets import parse as parse_sockets

        gathered.sockets += parse_sockets(segment.data.decode("utf-8", "replace"), segment.source, segment.first_line)


def _read_launches(found: Sequence[Segment], gathered: Gathered) -> None:
    """Launch commands of a source. A script or a file of a container is read as a whole, with the lines that tell nothing by themselves: they
    hold variables, comments, and values. Python has no such line at all."""
    for plain, group in groupby(found, lambda s: s.kind in ("launch", "prose")):
        parts = list(group)
        data = b"".join(s.data for s in parts)
        if plain and (any(s.kind == "launch" for s in parts) or _CALL.search(data)):
            from .parsing.launch import find

            gathered.launches += find(data.decode("utf-8", "replace"), parts[0].source, parts[0].first_line, gathered.rules.flags)


_CALL = re.compile(rb"\b(?:LLM|EngineArgs)\(")


def _read_logs(source: Source, found: list[Segment], hint: float | None, gathered: Gathered) -> tuple[tuple[str, ...], int]:
    """The log segments of a source; (kinds, lines) for its summary."""
    from .parsing.streams import streams

    for segment in found:
        if segment.kind in ("server_log", "kernel", "prose"):
            gathered.kernel = gathered.kernel or segment.kind == "kernel"
            for stream in streams(segment):
                _fold(stream, segment.source, segment.first_line, hint, gathered)
        elif segment.kind in ("empty", "binary"):
            gathered.issues.append(_unreadable(segment.kind, source))
    return tuple(dict.fromkeys(s.kind for s in found)), sum(s.data.count(b"\n") + (not s.data.endswith(b"\n")) for s in found if s.data)


def _unreadable(kind: str, source: Source) -> Issue:
    if kind == "empty":
        return Issue("empty-input", "{name} is empty.", {"name": source.name})
    return Issue("binary-input", "{name} is no text: it was not read.", {"name": source.name})


def _read_large(source: Source, hint: float | None, gathered: Gathered, progress: Progress | None) -> tuple[tuple[str, ...], int, int]:
    """A source that is folded block by block. (kinds, lines, bytes) for its summary."""
    from .large import read

    found = read(source, hint, gathered.rules.formats, gathered.issues, progress)
    gathered.kernel = gathered.kernel or found.kind == "kernel"
    for origin, tally in found.tallies.items():
        gathered.tallies.setdefault((source.name, origin), []).append(tally)
        gathered.issues += tally.issues
    gathered.zones.update({(source.name, origin): offset for origin, offset in found.zones.items()})
    return (found.kind,), found.lines, found.size


def _fold(stream: Stream, source: str, first_line: int, hint: float | None, gathered: Gathered) -> None:
    from .parsing.clocks import clock as clock_of
    from .parsing.log import fold

    clock = clock_of(stream.data, hint)
    tally = fold(stream.data, source, clock, gathered.rules.formats, stream.lines, stream.stamps, first_line if stream.lines is None else 1)
    gathered.tallies.setdefault((source, stream.origin), []).append(tally)
    gathered.issues += tally.issues
    if gathered.year_is_guessed and any(p.first_time is not None for p in tally.parts) and not clock_of(stream.data, None).year_known:
        gathered.issues.append(
            Issue("year-assumed", "The stamps of {name} have no year; {year} is taken from the file's age.", {"name": source, "year": clock.year})
        )
        gathered.year_is_guessed = False  # said once
    _zone(stream, source, gathered)


LATEST = 4102444800.0
"""2100-01-01: a file dated later has a broken clock."""
SAME_COPY = 1.0
"""Files whose ages differ by less, in seconds, were copied together: their ages say nothing about when they were written."""


def _zone(stream: Stream, source: str, gathered: Gathered) -> None:
    if stream.utc_offset is not None:
        gathered.zones[(source, stream.origin)] = stream.utc_offset


def _time_by_file(gathered: Gathered, sources: Sequence[Source]) -> None:
    """Scrapes without a time of their own get their files' ages, where these differ; the report says so."""
    ages = {s.name: s.mtime for s in sources if s.mtime is not None}
    bare = [s for s in gathered.scrapes if s.time is None and s.source in ages]
    times = sorted(ages[s.source] or 0.0 for s in bare)
    if len(bare) < 2 or len({s.source for s in bare}) < len(bare) or min(b - a for a, b in pairwise(times)) < SAME_COPY:
        return
    gathered.scrapes = [structs.replace(s, time=ages[s.source]) if s.time is None and s.source in ages else s for s in gathered.scrapes]
    gathered.issues.append(Issue("scrape-times-assumed", "The scrapes carry no time; the ages of their files are taken for it.", {}, None))


def _time_hint(scrapes: Sequence[Scrape], sources: Sequence[Source]) -> float | None:
    """A Unix time near which stamps without a year lie: a scrape's, else the age of the youngest file."""
    times = [s.time for s in scrapes if s.time is not None] or [s.mtime for s in sources if s.mtime is not None]
    sane = [t for t in times if 0 < t < LATEST]
    return max(sane, default=None)


def _timed(summaries: Sequence[SourceSummary], gathered: Gathered) -> tuple[SourceSummary, ...]:
    """Summaries with the first and last time found in each source."""
    spans: dict[str, list[float]] = {}
    for (name, _), tallies in gathered.tallies.items():
        for tally in tallies:
            for part in tally.parts:
                spans.setdefault(name, []).extend(t for t in (part.first_time, part.last_time) if t is not None)
    for scrape in gathered.scrapes:
        if scrape.time is not None:
            spans.setdefault(scrape.source, []).append(scrape.time)
    return tuple(structs.replace(s, first_time=min(spans[s.name]), last_time=max(spans[s.name])) if spans.get(s.name) else s for s in summaries)
