"""Signals that hold for a whole run: limits in force, arithmetic of a failure, the order of what happened at its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ..assemble import STARTUP_FAILURES, first_line, stop_asked
from ..model.case import Known, Unknown, Value
from ..model.figures import figure
from ..model.observations import Event, Ref
from ..versions import generation, satisfies
from .context import Context

DEATHS = ("engine.died", "worker.died", "engine.dead_error")
FAILURES = (*DEATHS, "engine.fatal_error", "startup.failed", "oom", "gpu.fault", "comm.failed", *STARTUP_FAILURES)
SECONDARY = ("EngineDead", "EngineGenerate", "CancelledError", "MQEngineDead", "AsyncEngineDead", "SystemExit", "KeyboardInterrupt")
"""Exceptions that follow a death or a stop; they are never its cause (facts of vLLM's own captures: one per open stream)."""
SIGKILL_CODES = (-9, 137)


def setting(option: str, c: Context) -> Value:
    """A launch option in force: as given, as the server printed it, or the default of this version where that is certain."""
    for name in (f"flag.{option}", f"config.{option}"):
        stated = [f for f in c.run.facts if f.name == name]
        if len({_number(f.value) for f in stated}) > 1:
            return Unknown("launch-command")  # lines of two servers run through each other: neither value is this one's
        fact = stated[0] if stated else None
        value = _number(fact.value) if fact else None
        if fact is not None and value is not None:
            return Known(value, (fact.ref,), 1)
    if c.run.launch:
        value = _number(c.run.launch.flags.get(f"--{option}"))
        if value is not None:
            return Known(value, (c.run.launch.ref,), 1)
    return _default(option, c)


def _default(option: str, c: Context) -> Value:
    if not (c.run.has_banner or c.run.launch):
        return Unknown("launch-command")  # an excerpt: the option may have been set where we cannot see it
    flag = next((f for f in c.evaluator.flags if f.name == f"--{option}"), None)
    device = c.run.text("device.type")
    possible: set[float] = set()
    for default in flag.defaults if flag else ():
        specifier = ",".join([*([f">={default.since}"] if default.since else []), *([f"<={default.until}"] if default.until else [])])
        if specifier and satisfies(c.run.version, specifier) is False:
            continue
        if default.engine_generation and generation(c.run) not in (None, default.engine_generation):
            continue
        if default.device and device and default.device != device:
            continue
        possible |= {v for v in map(_number, default.values) if v is not None}
        if c.run.version is None and specifier:
            return Unknown("startup-log")
    if len(possible) != 1:
        return Unknown("launch-command")
    return Known(possible.pop(), (), 0)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if isinstance(value, bool) else figure(value)
    try:
        return figure(float(str(value).replace(",", "")))
    except ValueError:
        return None


def max_num_seqs(c: Context) -> Value:
    limit = _above_zero(setting("max-num-seqs", c))
    running = [
        b.max.value for track in c.run.tracks for (name, _), s in track.series.items() if name == "requests.running" for b in s.buckets.values()
    ]
    if isinstance(limit, Known) and running and max(running) > limit.value:
        return Unknown("launch-command")  # more ran than it allows: the command at hand is not this server's
    return limit


def token_budget(c: Context) -> Value:
    return _above_zero(setting("max-num-batched-tokens", c))


def _above_zero(value: Value) -> Value:
    """A limit that the server can run with; vLLM refuses 0 and less, so such a figure was misread or made up."""
    return Unknown("launch-command") if isinstance(value, Known) and value.value <= 0 else value


def max_len(c: Context) -> Value:
    printed = next((f for f in c.run.facts if f.name == "config.max-model-len"), None)
    value = _number(printed.value) if printed else None
    return Known(value, (printed.ref,), 1) if printed and value is not None else setting("max-model-len", c)


def length_ratio(c: Context) -> Value:
    tokens, length = c.other("kv_cache.tokens"), c.other("model.max_len")
    if isinstance(tokens, Unknown) or isinstance(length, Unknown):
        return tokens if isinstance(tokens, Unknown) else length
    return Unknown("startup-log") if length.value <= 0 else Known(tokens.value / length.value, (*tokens.refs, *length.refs))


def kv_shortfall(c: Context) -> Value:
    """How many times the available KV memory one request of max_model_len needs; from bytes (V1) or tokens (V0)."""
    for event in c.run.events_of("startup.kv_below_max_len"):
        figures = {k.rpartition(".")[2]: v for k, v in event.values.items()}
        for need, have in (("needed", "available"), ("max_model_len", "capacity")):
            a, b = figures.get(need), figures.get(have)
            if isinstance(a, int | float) and isinstance(b, int | float):
                # vLLM rounds to 0.01 GiB: a pool that prints as 0.0 is below that
                return Known(a / b if b > 0 else float("inf"), (event.ref,), 1)
    return Unknown("server-log" if not c.run.has_log else "no-such-line")


def kv_rest(c: Context) -> Value:
    """Budget minus what the profile measured, from the printed breakdown alone. `Available KV cache memory` below zero does not say
    whose memory is missing: from 0.9.1 on, what another process takes between the first snapshot and the end of the profile run is
    charged to this server."""
    names = ("memory.budget", "memory.weights", "memory.activation", "memory.non_torch")
    found = [c.other(n) for n in names]
    known = [v for v in found if isinstance(v, Known)]
    if len(known) < len(names):
        return Unknown("startup-log")
    budget, *parts = known
    return Known(budget.value - sum(p.value for p in parts), tuple(dict.fromkeys(r for v in known for r in v.refs))[:3])


def kv_unaccounted(c: Context) -> Value:
    """Starts that failed because nothing was left for KV blocks; none where the parts that the log states use up the budget."""
    refused, rest = c.other("startup.no_kv_memory.count"), kv_rest(c)
    return Known(0.0, rest.refs) if isinstance(refused, Known) and isinstance(rest, Known) and rest.value <= 0 else refused


def _ooms(c: Context) -> list[tuple[Event, dict[str, float]]]:
    result = []
    for event in c.run.events_of("oom"):
        figures = {k.removeprefix("oom."): float(v) for k, v in event.values.items() if isinstance(v, int | float)}
        result.append((event, figures))
    return result


def _no_oom(c: Context) -> Unknown:
    return Unknown("oom-text" if c.run.has_log else "server-log")


def oom_reserved_to_request(c: Context) -> Value:
    """Reserved but unallocated memory over the failed request; where several failed, the smallest: one true shortage is enough."""
    found = [(f["reserved_unallocated"] / f["requested"], e) for e, f in _ooms(c) if f.get("requested", 0) > 0 and "reserved_unallocated" in f]
    if not found:
        return _no_oom(c)
    ratio, event = min(found, key=lambda item: item[0])
    return Known(ratio, (event.ref,), len(found))


def oom_reserved_share(c: Context) -> Value:
    found = [
        (f["reserved_unallocated"] / (f["allocated"] + f["reserved_unallocated"]), e)
        for e, f in _ooms(c)
        if f.get("allocated", 0) > 0 and "reserved_unallocated" in f
    ]
    if not found:
        return _no_oom(c)
    ratio, event = min(found, key=lambda item: item[0])
    return Known(ratio, (event.ref,), len(found))


def oom_reserved(c: Context) -> Value:
    found = [(f["reserved_unallocated"], e) for e, f in _ooms(c) if "reserved_unallocated" in f]
    if not found:
        return _no_oom(c)
    value, event = min(found, key=lambda item: item[0])
    return Known(value, (event.ref,), len(found))


def oom_foreign(c: Context) -> Value:
    """Memory of others on the device: total - free - this process, where the message says what this process holds."""
    found = []
    for event, f in _ooms(c):
        if {"total", "free", "this_process"} <= set(f):
            found.append((f["total"] - f["free"] - f["this_process"], event))
        elif "other_processes" in f:
            found.append((f["other_processes"], event))
    if not found:
        return _no_oom(c)
    value, event = max(found, key=lambda item: item[0])
    return Known(max(0.0, value), (event.ref,), len(found))


def _served(c: Context, event: Event) -> bool | None:
    """Had the server begun to serve before this event? None where the log does not show its start."""
    complete = c.run.events_of("startup.complete")
    if any(e.ref.source == event.ref.source and e.ref.line < event.ref.line for e in complete):
        return True
    for track in c.run.tracks:
        for series in track.series.values():
            first = series.points()[:1]
            if first and first[0].ref.source == event.ref.source and first[0].ref.line < event.ref.line:
                return True
    return False if c.run.has_banner else None


def _oom_count(serving: bool, c: Context) -> Value:
    if not c.run.has_log:
        return Unknown("server-log")
    placed = [(e, _served(c, e)) for e, _ in _ooms(c)]
    if any(when is None for _, when in placed):
        return Unknown("whole-log")
    chosen = [e for e, when in placed if when is serving]
    return Known(float(len(chosen)), tuple(e.ref for e in chosen[:3]))


def oom_serving(c: Context) -> Value:
    return _oom_count(True, c)


def oom_startup(c: Context) -> Value:
    return _oom_count(False, c)


def oom_step_to_budget(c: Context) -> Value:
    """Tokens of the step that vLLM dumped when it failed, over the token budget."""
    budget = c.other("scheduler.token_budget")
    for event in c.run.events_of("scheduler.dump"):
        tokens = event.values.get("scheduler.dump.scheduled_tokens")
        if isinstance(tokens, int | float) and c.run.event_count("oom"):
            return budget if isinstance(budget, Unknown) else Known(tokens / budget.value, (event.ref, *budget.refs[:1]))
    return _no_oom(c)


def oom_headroom(c: Context) -> Value:
    total, share = c.other("memory.total"), setting("gpu-memory-utilization", c)
    totals = [f["total"] for _, f in _ooms(c) if "total" in f]
    size = totals[0] if totals else total.value if isinstance(total, Known) else None
    if size is None or isinstance(share, Unknown):
        return Unknown("startup-log")
    return Known(size * (1 - share.value), share.refs)


def killed_count(c: Context) -> Value:
    """Processes that ended by SIGKILL, by an exit code that a line states."""
    if not c.run.has_log:
        return Unknown("server-log")
    found = []
    for kind in ("engine.died", "worker.died", "process.killed"):
        for event in c.run.events_of(kind):
            if event.values.get(f"{kind}.exit_code") in SIGKILL_CODES:
                found.append(event.ref)
    found += [e.ref for e in c.run.events_of("startup.failed") if re.search(r": -9\b", str(e.values.get("startup.failed.processes", "")))]
    return Known(float(len(found)), tuple(found[:3]))


def exception_count(c: Context) -> Value:
    """Python exceptions before the death was noticed, without those that only report it."""
    if not c.run.has_log:
        return Unknown("server-log")
    death = first_line(c.run, DEATHS)
    found: list[Ref] = []
    for kind in ("engine.fatal_error", "exception", "oom"):
        for event in c.run.events_of(kind):
            name = str(event.values.get("exception.type", ""))
            if any(word in name for word in SECONDARY) or (death and not _before(event, death)):
                continue
            if kind == "exception" and not _engines_own(event, death):
                continue
            found.append(event.ref)
    if not found and death and not _covers(c, death):
        return Unknown("whole-log")
    return Known(float(len(found)), tuple(sorted(found, key=lambda r: r.line)[:3]))


def _covers(c: Context, event: Event) -> bool:
    """Does the log reach far enough back that a cause of this event would stand in it? A paste often begins with the last lines."""
    return c.run.has_banner


NEAR_LINES, NEAR_SECONDS = 400, 60.0
"""An untagged traceback belongs to a death that follows it within so much. A traceback of a start-up failure has 60-100 lines, twice."""


def _engines_own(event: Event, death: Event | None) -> bool:
    """Is this exception the engine's or a worker's? The front end prints tracebacks for refused requests too (0.10.2)."""
    process = event.process or ""
    if process.startswith(("EngineCore", "Worker", "VllmWorker", "RayWorker")):
        return True
    if process.lower().startswith("apiserver") or death is None:
        return death is None and not process
    if event.time is not None and death.time is not None and death.time - event.time > NEAR_SECONDS:
        return False
    return event.ref.source == death.ref.source and death.ref.line - event.ref.line <= NEAR_LINES


def shutdown_before_failure(c: Context) -> Value:
    """1: a stop was asked for, and nothing had failed before. Order of lines decides: stamps have seconds only."""
    if not c.run.has_log:
        return Unknown("server-log")
    stop, failure = stop_asked(c.run), first_line(c.run, FAILURES)
    if stop is None:
        seen = failure or first_line(c.run, ("shutdown.http",))
        if seen is None:
            return Known(0.0)
        # A failure whose beginning is in the log came unasked; a server that merely stops may follow a death that was cut off.
        return Known(0.0, (seen.ref,)) if failure and _covers(c, failure) else Unknown("whole-log")
    orderly = failure is None or _before(stop, failure)
    return Known(1.0 if orderly else 0.0, (stop.ref,) if orderly or failure is None else (failure.ref, stop.ref))


def cut_streams(c: Context) -> Value:
    stop = stop_asked(c.run)
    if stop is None:
        return Unknown("server-log" if not c.run.has_log else "no-such-line")
    cut = [e for e in c.run.events_of("engine.dead_error") if _before(stop, e)]
    count = c.run.event_count("engine.dead_error") if cut else 0
    return Known(float(count), tuple(e.ref for e in cut[:2]))


def _before(a: Event, b: Event) -> bool:
    return (a.ref.source, a.ref.line) < (b.ref.source, b.ref.line)


def utilization_in_force(c: Context) -> Value:
    given = setting("gpu-memory-utilization", c)
    printed = c.other("memory.utilization")
    # What a memory line states is what the worker used; a default is only what it would have been.
    return printed if isinstance(printed, Known) and (isinstance(given, Unknown) or not given.refs) else given


def send_queue(c: Context) -> Value:
    """The fullest send queue of a connection at the server's end. Without its port, the lower one is taken for the server's:
    clients come from high ephemeral ports."""
    own = [q for q in c.case.sockets if _port(q.local) < EPHEMERAL]
    if not own:
        return Unknown("sockets")
    fullest = max(own, key=lambda q: q.sent)
    return Known(float(fullest.sent), (fullest.ref,), len(own))


EPHEMERAL = 32768
"""First port that Linux gives to outgoing connections (net.ipv4.ip_local_port_range)."""


def _port(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else EPHEMERAL


def gpu_foreign(c: Context) -> Value:
    """Memory of processes that are certainly not vLLM's. Rows that could be either are left out."""
    listed = [g for g in c.case.gpus if g.processes_listed]
    if not listed:
        return Unknown("nvidia-smi")
    from ..parsing.gpu import is_vllm_process

    foreign = [p for g in listed for p in g.processes if p.bytes and is_vllm_process(p.name, p.pid, _pids(c)) is False]
    return Known(float(sum(p.bytes or 0 for p in foreign)), tuple(p.ref for p in foreign[:3]), len(foreign))


def _pids(c: Context) -> frozenset[int]:
    """Process ids that the log names."""
    found: Iterable[object] = (v for b in c.run.events.values() for e in b.events for k, v in e.values.items() if k.endswith(".pid"))
    return frozenset(v for v in found if isinstance(v, int))


FUNCTIONS: dict[str, Callable[[Context], Value]] = {
    "scheduler.max_num_seqs": max_num_seqs,
    "scheduler.token_budget": token_budget,
    "model.max_len": max_len,
    "kv_cache.length_ratio": length_ratio,
    "startup.kv.shortfall": kv_shortfall,
    "startup.kv.rest": kv_rest,
    "startup.kv.unaccounted": kv_unaccounted,
    "oom.reserved_to_request": oom_reserved_to_request,
    "oom.reserved_share": oom_reserved_share,
    "oom.reserved": oom_reserved,
    "oom.foreign": oom_foreign,
    "oom.serving.count": oom_serving,
    "oom.startup.count": oom_startup,
    "oom.step_to_budget": oom_step_to_budget,
    "oom.headroom": oom_headroom,
    "engine.killed.count": killed_count,
    "engine.exception.count": exception_count,
    "shutdown.before_failure": shutdown_before_failure,
    "shutdown.cut_streams": cut_streams,
    "memory.utilization_in_force": utilization_in_force,
    "sockets.send_queue.max": send_queue,
    "gpu.foreign": gpu_foreign,
}
