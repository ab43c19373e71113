"""The one place that answers "what is signal X over (run, engine, window)?".

Families (aggregates of samples, deltas of counters, quantiles of histograms, counts and attributes of events, facts) are
answered by their shape; everything else has a function in `derived`, `run_wide` or `failures`. A test keeps the catalogue and the functions equal.
"""

from __future__ import annotations

from ..model.case import Case, Known, Run, Unknown, Value, Window
from ..model.catalogue import COUNTERS, HISTOGRAMS, OBSERVATIONS, SIGNALS
from ..model.figures import figure
from ..model.observations import Event
from ..ruleset.schema import Flag
from . import derived, failures, run_wide, samples, scrapes
from .context import Context


class Evaluator:
    """Signals of one case, remembered: rules ask for the same ones again and again."""

    def __init__(self, case: Case, flags: list[Flag]) -> None:
        self.case = case
        self.flags = flags
        self._known: dict[tuple[str, str, int, Window], Value] = {}
        self.memo: dict[object, object] = {}  # what layers above derive once per case

    def value(self, name: str, run: Run, engine: int, window: Window) -> Value:
        """The signal in its catalogue unit, or Unknown with what to attach. Raises KeyError for a name that is not declared."""
        key = (name, run.id, engine, window)
        if key not in self._known:
            self._known[key] = self._compute(name, Context(self.case, run, engine, window, self))
        return self._known[key]

    def setting(self, option: str, run: Run, engine: int, window: Window) -> Value:
        """A numeric launch option in force (without dashes): given, printed, or this version's default where that is certain."""
        return run_wide.setting(option, Context(self.case, run, engine, window, self))

    def _compute(self, name: str, context: Context) -> Value:
        declared = SIGNALS[name]
        if name in run_wide.FUNCTIONS:
            return run_wide.FUNCTIONS[name](context)
        if name in failures.FUNCTIONS:
            return failures.FUNCTIONS[name](context)
        if name in derived.FUNCTIONS:
            return derived.FUNCTIONS[name](context)
        if name in OBSERVATIONS and OBSERVATIONS[name].kind == "fact":
            return fact(name, context)
        if name in OBSERVATIONS and OBSERVATIONS[name].kind == "count":
            return count(name, context)
        if name in OBSERVATIONS and OBSERVATIONS[name].kind == "attribute":
            return attribute(name, context)
        subject, _, word = name.rpartition(".")
        if subject in OBSERVATIONS and OBSERVATIONS[subject].kind == "event":
            return event_count(subject, context)
        if subject in HISTOGRAMS:
            return scrapes.histogram(subject, word, context)
        if subject in COUNTERS:
            return scrapes.counter(subject, word, context)
        assert declared.windowed, name
        return samples.aggregate(subject, word, context)


def fact(name: str, context: Context) -> Value:
    """A stated figure. Where processes differ, the smallest: the engine takes the minimum over its workers."""
    found = [(v, f.ref) for f in context.run.facts if f.name == name and (v := _figure(f.value)) is not None]
    if not found:
        return Unknown("startup-log")
    least = min(found, key=lambda f: f[0])
    return Known(least[0], (least[1],), len(found))


def _figure(value: object) -> float | None:
    """As `figure`; a switch is 0 or 1."""
    return float(value) if isinstance(value, bool) else figure(value)


def count(name: str, context: Context) -> Value:
    if not context.run.has_log:
        return Unknown("server-log")
    found = context.run.counts.get(name)
    if found is None:
        return Unknown("access-log") if not any(k.startswith("http.") for k in context.run.counts) else Known(0.0)
    return Known(float(found.count), tuple(r for r in (found.first, found.last) if r))


def events_of(kind: str, context: Context) -> tuple[Event, ...]:
    """Events of the run, or of the host for what the kernel says."""
    if kind.startswith("kernel."):
        host = context.case.host_events.get(kind)
        return host.events if host else ()
    return context.run.events_of(kind)


def event_count(kind: str, context: Context) -> Value:
    if kind.startswith("kernel."):
        if not context.case.has_kernel_log:
            return Unknown("kernel-log")
        host = context.case.host_events.get(kind)
        return Known(float(host.count), tuple(e.ref for e in host.events[:3])) if host else Known(0.0)
    if not context.run.has_log:
        return Unknown("server-log")
    found = context.run.events_of(kind)
    return Known(float(context.run.event_count(kind)), tuple(e.ref for e in found[:3]))


def attribute(name: str, context: Context) -> Value:
    """A figure of the first event that states it."""
    kind = name.rpartition(".")[0]
    for event in events_of(kind, context):
        value = _figure(event.values.get(name))
        if value is not None:
            return Known(value, (event.ref,), 1)
    return Unknown("server-log" if not context.run.has_log else "no-such-line")
