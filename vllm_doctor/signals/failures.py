"""Signals about failures: in which phase memory ran out, what died of what, a server that stands still, lives that end alike."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from ..assemble import STARTUP_FAILURES, STARTUP_REFUSALS, first_line
from ..model.case import Case, Known, Run, Unknown, Value
from ..model.observations import Event, Ref
from .context import Context
from .run_wide import SECONDARY

CAPTURED = ("memory.graphs", "startup.graph_capture")
POOL = ("kv_cache.tokens", "kv_cache.blocks", "memory.kv_cache")
"""Facts that are printed when a phase of the start is over: the capture of CUDA graphs, the profile run."""

OURS = re.compile(r"VLLM|vllm|python|pt_main|ray::|RayWorker", re.ASCII)
"""Process names (cut to 15 characters by the kernel) under which vLLM runs: set titles, the interpreter, Ray's workers."""

STEP_CALLS = re.compile(r"RPC call to (?:execute_model|sample_tokens|execute_dummy_batch)\b|Engine iteration timed out")
"""Calls that stand for one engine step. Others (load, profile, compile) may take long; `didn't reply` is a heartbeat."""

WAITS_FOR_WORKERS = ("EngineCore", "MainProcess")
"""Processes that wait for an answer they have asked for. A worker waits for work: on an idle server it may wait for ever."""

NEAR = 120.0
"""Seconds between a stats line without tokens and a wait of a minute that began before or after it: the minute, and up to a minute of
stats intervals."""


def served(c: Context) -> Value:
    """Did this life get as far as serving? A log without its beginning may have lost the line that says so: then 0 means "not shown"."""
    if not c.run.has_log:
        return Unknown("server-log")
    for event in c.run.events_of("startup.complete"):
        return Known(1.0, (event.ref,))
    for track in c.run.tracks:
        for series in track.series.values():
            for point in series.points()[:1]:
                return Known(1.0, (point.ref,))
    return Known(0.0)


def crashed(c: Context) -> Value:
    if not c.run.has_log:
        return Unknown("server-log")
    return Known(1.0 if c.run.end == "crashed" else 0.0)


# --- memory --------------------------------------------------------------------------------------------------------------------------


def _device_ooms(c: Context) -> list[Event]:
    return [e for e in c.run.events_of("oom") if e.values.get("oom.source") != "host"]


def _fact_before(run: Run, names: tuple[str, ...], event: Event) -> bool:
    return any(f.name in names and f.ref.source == event.ref.source and f.ref.line < event.ref.line for f in run.facts)


def _event_before(run: Run, kind: str, event: Event) -> bool:
    return any(e.ref.source == event.ref.source and e.ref.line < event.ref.line for e in run.events_of(kind))


def phase_of(run: Run, event: Event) -> str:
    """The phase of a failed allocation: its traceback's, else what the lines before it show to have begun and not ended."""
    own = str(event.values.get("oom.phase", "unknown"))
    if own not in ("unknown", "forward") or _began_serving(run, event):
        return own
    if _event_before(run, "startup.capturing", event):
        # Lines of this phase advise against running out of memory; what counts is that it had not ended.
        return own if _fact_before(run, CAPTURED, event) else "graphs"
    if not run.has_banner:
        return own
    if _fact_before(run, ("memory.weights",), event):
        return own if _fact_before(run, POOL, event) else "profile"
    return "weights" if own == "unknown" and _event_before(run, "startup.loading", event) else own


def _began_serving(run: Run, event: Event) -> bool:
    if _event_before(run, "startup.complete", event):
        return True
    firsts = (p.ref for t in run.tracks for s in t.series.values() for p in s.points()[:1])
    return any(r.source == event.ref.source and r.line < event.ref.line for r in firsts)


def _counted(c: Context, found: list[Event]) -> Value:
    if not c.run.has_log:
        return Unknown("server-log")
    return Known(float(len(found)), tuple(e.ref for e in found[:3]))


def _in_phase(*names: str) -> Callable[[Context], Value]:
    return lambda c: _counted(c, [e for e in _device_ooms(c) if phase_of(c.run, e) in names])


def weights_count(c: Context) -> Value:
    return _counted(c, [*c.run.events_of("startup.weights_oom"), *(e for e in _device_ooms(c) if phase_of(c.run, e) == "weights")])


def after_capture_count(c: Context) -> Value:
    found = [e for e in _device_ooms(c) if phase_of(c.run, e) == "unknown" and _fact_before(c.run, CAPTURED, e) and not _began_serving(c.run, e)]
    return _counted(c, found)


def sampler_count(c: Context) -> Value:
    return _counted(c, [*c.run.events_of("startup.sampler_oom"), *(e for e in _device_ooms(c) if phase_of(c.run, e) == "sampler")])


def forward_count(c: Context) -> Value:
    """Failures of a serving step. The engine's own loop in the traceback shows one even where the start was cut off from the log."""
    found = []
    for event in _device_ooms(c):
        phase, serving = phase_of(c.run, event), _began_serving(c.run, event)
        if (phase in ("forward", "quantization") and (serving or not c.run.has_banner)) or (phase == "unknown" and serving):
            found.append(event)
    return _counted(c, found)


def host_count(c: Context) -> Value:
    return _counted(c, [e for e in c.run.events_of("oom") if e.values.get("oom.source") == "host"])


def oom_kills(c: Context) -> Value:
    """Kills by the kernel of processes that can be this server's."""
    if not c.case.has_kernel_log:
        return Unknown("kernel-log")
    events = c.case.host_events.get("kernel.oom_kill")
    ours = [e for e in events.events if OURS.search(str(e.values.get("kernel.oom_kill.process", "")))] if events else []
    return Known(float(len(ours)), tuple(e.ref for e in ours[:3]))


def memory_limit(c: Context) -> Value:
    return _counted(c, [e for e in c.run.events_of("process.killed") if e.values.get("process.killed.reason")])


END = 20
"""Lines that may follow the error that ends a log: an exit hook's warnings, a shell's words."""


def dependency_fatal(c: Context) -> Value:
    """Missing things that ended the server: nothing else was raised after them, and a failure was reported or the log ends there.

    Many libraries try an import and go on without it."""
    if not c.run.has_log:
        return Unknown("server-log")
    missing = c.run.events_of("dependency.missing")
    if not missing:
        return Known(0.0)
    last = missing[-1].ref
    told = {(e.ref.source, e.ref.line) for kind in ("dependency.missing", "startup.failed", "engine.dead_error") for e in c.run.events_of(kind)}
    later = [
        e
        for e in c.run.events_of("exception")
        if e.ref.source == last.source
        and e.ref.line > missing[0].ref.line
        and (e.ref.source, e.ref.line) not in told
        and not any(word in str(e.values.get("exception.type", "")) for word in SECONDARY)
    ]
    failed = any(c.run.event_count(kind) for kind in ("startup.failed", "engine.fatal_error", "engine.died", "worker.died"))
    total = next((s.lines for s in c.case.sources if s.name == last.source), 0)
    if later or not (failed or (c.run.end == "crashed" and last.line >= total - END)):
        return Known(0.0)
    return Known(float(len(missing)), tuple(e.ref for e in missing[:2]))


# --- standing still ------------------------------------------------------------------------------------------------------------------


def _stats(run: Run) -> list[tuple[float, float, float]]:
    """(time, running requests, tokens per second) of the log's stats lines, all engines, in order of time."""
    result = []
    for track in run.tracks:
        for (name, engine), series in track.series.items():
            if name != "throughput.generation":
                continue
            running = {p.time: p.value for p in _points(track.series, "requests.running", engine)}
            prompt = {p.time: p.value for p in _points(track.series, "throughput.prompt", engine)}
            result += [(p.time, running.get(p.time, 0.0), p.value + prompt.get(p.time, 0.0)) for p in series.points()]
    return sorted(result)


def _points(series: dict, name: str, engine: int) -> tuple:  # type: ignore[type-arg]
    found = series.get((name, engine))
    return found.points() if found else ()


def stall_silent(c: Context) -> Value:
    """Minutes that the engine waited for its workers while requests ran and no token came, until the end of what was seen.

    One such wait is normal while something compiles: then nothing runs yet, or tokens come again afterwards."""
    if not c.run.has_log:
        return Unknown("server-log")
    lines = _stats(c.run)
    moving = max((t for t, _, tokens in lines if tokens > 0), default=float("-inf"))
    still = [t for t, running, tokens in lines if running > 0 and tokens == 0 and t >= moving]
    waits = [
        e
        for e in c.run.events_of("worker.silent")
        if e.time is not None and e.time >= moving and (e.process is None or e.process.startswith(WAITS_FOR_WORKERS))
    ]
    if not still or not waits or min(abs(t - w.time) for t in still for w in waits if w.time is not None) > NEAR:
        return Known(0.0)
    return Known(float(len(waits)), tuple(e.ref for e in waits[:3]))


def step_timeouts(c: Context) -> Value:
    return _counted(c, [e for e in c.run.events_of("engine.timeout") if STEP_CALLS.search(e.ref.text)])


def _still(c: Context) -> tuple[float, float, tuple[Ref, ...]] | None:
    """(longest time between scrapes with requests running and both token counters flat, requests waiting at its end, lines).

    The tokens of a prompt are counted when its last chunk is done; meanwhile the KV usage shows that the engine works."""
    best: tuple[float, float, tuple[Ref, ...]] = (0.0, 0.0, ())
    begun: float | None = None
    usable = 0
    names = [(n, c.engine) for n in ("tokens.generation", "tokens.prompt", "requests.running")]
    for a, b in itertools.pairwise(c.scrapes()):
        if a.time is None or b.time is None:
            return None
        before = [a.counters.get(names[0]), a.counters.get(names[1]), a.gauges.get(names[2])]
        after = [b.counters.get(names[0]), b.counters.get(names[1]), b.gauges.get(names[2])]
        if None in before or None in after:
            continue
        usable += 1
        usage = ("kv_cache.usage", c.engine)
        if before == after and after[2] and a.gauges.get(usage) == b.gauges.get(usage):
            begun = a.time if begun is None else begun
            if b.time - begun > best[0]:
                refs = tuple(b.refs[n] for n in ("requests.running", "tokens.generation") if n in b.refs)
                best = (b.time - begun, b.gauges.get(("requests.waiting", c.engine), 0.0), refs)
        else:
            begun = None
    return best if usable else None


def stall_span(c: Context) -> Value:
    found = _still(c)
    return Unknown("metrics-scrapes") if found is None else Known(found[0], found[2])


def stall_waiting(c: Context) -> Value:
    found = _still(c)
    return Unknown("metrics-scrapes") if found is None else Known(found[1], found[2])


# --- devices, and lives that end alike -----------------------------------------------------------------------------------------------

GPU_FAILURES = ("gpu.lost", "gpu.error_cells")


def gpu_failing(c: Context) -> Value:
    issues = [i for i in c.case.issues if i.code in GPU_FAILURES]
    if not issues and not c.case.gpus:
        return Unknown("nvidia-smi")
    return Known(float(len(issues)), tuple(i.ref for i in issues[:3] if i.ref))


def _signature(run: Run) -> str | None:
    """How a life ended, without figures; None where it did not fail."""
    if run.end != "crashed":
        return None
    reason = first_line(run, (*STARTUP_FAILURES, *STARTUP_REFUSALS, "oom"))
    if reason is not None:
        return reason.kind
    for event in run.events_of("exception"):
        name = str(event.values.get("exception.type", ""))
        if not any(word in name for word in SECONDARY):
            return f"{name}: {re.sub(r'[0-9]+', '#', str(event.values.get('exception.message', '')))[:80]}"
    death = first_line(run, ("engine.died", "worker.died", "engine.fatal_error", "startup.failed"))
    return death.kind if death else None


def failed_alike(c: Context) -> Value:
    """Known on the last of several lives that end in the same failure; 0 on the others, so that a loop is told once."""
    if not c.run.has_log:
        return Unknown("server-log")
    own = _signature(c.run)
    alike = [r for r in _logged(c.case) if own is not None and _signature(r) == own]
    if not alike or alike[-1].id != c.run.id:
        return Known(0.0)
    ends = [first_line(r, (*STARTUP_FAILURES, *STARTUP_REFUSALS, "oom", "exception", "engine.died", "startup.failed")) for r in alike]
    return Known(float(len(alike)), tuple(e.ref for e in ends[-3:] if e is not None))


def _logged(case: Case) -> list[Run]:
    return [r for r in case.runs if r.has_log]


FUNCTIONS: dict[str, Callable[[Context], Value]] = {
    "startup.served": served,
    "run.crashed": crashed,
    "oom.weights.count": weights_count,
    "oom.profile.count": _in_phase("profile"),
    "oom.capture.count": _in_phase("graphs"),
    "oom.after_capture.count": after_capture_count,
    "oom.sampler.count": sampler_count,
    "oom.encoder.count": _in_phase("encoder"),
    "oom.forward.count": forward_count,
    "oom.host.count": host_count,
    "dependency.fatal.count": dependency_fatal,
    "host.oom_kills": oom_kills,
    "host.memory_limit.count": memory_limit,
    "runs.failed_alike": failed_alike,
    "engine.stall.silent": stall_silent,
    "engine.step_timeout.count": step_timeouts,
    "engine.stall.span": stall_span,
    "engine.stall.waiting": stall_waiting,
    "gpu.failing": gpu_failing,
}
