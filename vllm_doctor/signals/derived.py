"""Signals that combine several series, counters or histograms of one window."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ..model.case import Known, Unknown, Value
from ..model.observations import Bucket, Point, Ref
from .context import Context
from .samples import MIN_SAMPLES, while_waiting
from .scrapes import each_bucket, growth, highest_bucket
from .windows import inside

STALL_FACTOR = 10.0
"""A gap of ten medians is no jitter of the engine. A machine that is short of CPU makes such gaps too: the share says that decoding
stalled, not why."""


def arrivals_rate(c: Context) -> Value:
    """Requests that came in, per second: finished ones plus the growth of those in the system. Clients that went away are missed,
    so it is a least value. In a queueing episode it is taken up to the maximum of Waiting."""
    end = c.window.end if c.window.onset_end is None else c.window.onset_end
    readings = []
    for scrape in c.scrapes():
        keys = [(n, c.engine) for n in ("requests.finished", "requests.running", "requests.waiting")]
        if scrape.time is not None and scrape.time <= end and keys[0] in scrape.counters and all(k in scrape.gauges for k in keys[1:]):
            readings.append(
                (scrape.time, scrape.counters[keys[0]] + scrape.gauges[keys[1]] + scrape.gauges[keys[2]], scrape.refs.get("requests.finished"))
            )
    if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
        return Unknown("metrics-scrapes")
    # The first scrape of an episode lies before its onset: a burst that starts it would otherwise count as a flow.
    body = readings[1:] if c.window.onset_end is not None and len(readings) > 2 else readings
    (t0, n0, r0), (t1, n1, r1) = body[0], body[-1]
    return Known(max(0.0, (n1 - n0) / (t1 - t0)), tuple(r for r in (r0, r1) if r), len(body))


def demoted(c: Context) -> Value:
    """Requests put back from the batch into the queue. Between two samples that is the smaller of running's fall and waiting's rise,
    counted only where the two together did not grow: an arrival would also lengthen the queue."""
    end = c.window.end if c.window.onset_end is None else c.window.onset_end
    running, waiting = c.buckets("requests.running", end), c.buckets("requests.waiting", end)
    slots = sorted(set(running) & set(waiting))
    if len(slots) < MIN_SAMPLES:
        return Unknown("stats-lines" if not slots else "more-samples")
    total, shown = 0.0, []
    for a, b in itertools.pairwise(slots):
        fall = running[a].last.value - running[b].first.value
        rise = waiting[b].first.value - waiting[a].last.value
        if min(fall, rise) > 0 and rise <= fall:
            total += rise
            shown.append((rise, running[a].last, running[b].first))
    best: list[Point] = [shown[0][1], shown[-1][2]] if shown else []
    return Known(total, tuple(p.ref for p in best), len(slots))


def _unfinished(c: Context) -> tuple[float, float, tuple[Ref, ...]] | None:
    """(requests that vanished, requests that got a first token, lines): a least value, because everyone still in the system at the
    end is given the benefit of the doubt."""
    first_tokens = growth("latency.ttft", c)
    finished = c.other("requests.finished.delta")
    scrapes = c.scrapes()
    if first_tokens is None or isinstance(finished, Unknown) or not scrapes:
        return None
    present = [scrapes[-1].gauges.get((n, c.engine)) for n in ("requests.running", "requests.waiting")]
    if None in present:
        return None
    started = first_tokens[0].count
    vanished = max(0.0, started - finished.value - sum(p for p in present if p is not None))
    return vanished, started, (*first_tokens[1][:1], *finished.refs[:1])


def unfinished_delta(c: Context) -> Value:
    found = _unfinished(c)
    return Unknown("metrics-scrapes") if found is None else Known(found[0], found[2], int(found[1]))


def unfinished_share(c: Context) -> Value:
    found = _unfinished(c)
    if found is None:
        return Unknown("metrics-scrapes")
    vanished, started, refs = found
    return Unknown("no-finished-requests") if started <= 0 else Known(vanished / started, refs, int(started))


def _running_while_waiting(c: Context) -> list[Bucket] | Unknown:
    if c.series("requests.waiting") is None or c.series("requests.running") is None:
        return Unknown("stats-lines")
    found = while_waiting("requests.running", c)
    return found if found else Unknown("nobody-waited")


def slots_used_ratio(c: Context) -> Value:
    found, limit = _running_while_waiting(c), c.other("scheduler.max_num_seqs")
    if isinstance(found, Unknown) or isinstance(limit, Unknown):
        return found if isinstance(found, Unknown) else limit
    best = max(found, key=lambda b: b.max.value).max
    return Known(best.value / limit.value, (best.ref, *limit.refs[:1]), len(found))


def slots_full_share(c: Context) -> Value:
    found, limit = _running_while_waiting(c), c.other("scheduler.max_num_seqs")
    if isinstance(found, Unknown) or isinstance(limit, Unknown):
        return found if isinstance(found, Unknown) else limit
    full = [b for b in found if b.max.value >= limit.value]
    return Known(len(full) / len(found), ((full or found)[0].max.ref, *limit.refs[:1]), len(found))


def plateau_share(c: Context) -> Value:
    """How often running stood at its own maximum while others waited: a limit shows as a flat line."""
    found = _running_while_waiting(c)
    if isinstance(found, Unknown):
        return found
    if len(found) < MIN_SAMPLES:
        return Unknown("more-samples")
    top = max(b.max.value for b in found)
    flat = [b for b in found if b.max.value == top]
    return Known(len(flat) / len(found), (flat[0].max.ref, flat[-1].max.ref), len(found))


def kv_prompt_share(c: Context) -> Value:
    prompts, pool = growth("request.prompt_tokens", c), c.other("kv_cache.tokens")
    highest = highest_bucket(prompts[0]) if prompts else None
    if prompts is None or highest is None:
        return Unknown("metrics-scrapes")
    if isinstance(pool, Unknown) or pool.value <= 0:
        return Unknown("startup-log")
    return Known(highest[0] / pool.value, (*prompts[1][:1], *pool.refs[:1]))


def kv_free_prompts(c: Context) -> Value:
    """How much of the longest prompt fits in the part of the pool that was free while others waited. The prompt counts with its
    bucket's lower bound, so the true share is at most this."""
    share, usage = c.other("kv_cache.prompt_share"), c.other("kv_cache.usage.while_waiting")
    if isinstance(share, Unknown) or isinstance(usage, Unknown):
        return share if isinstance(share, Unknown) else usage
    return Unknown("no-finished-requests") if share.value <= 0 else Known((1 - usage.value) / share.value, (*usage.refs[:1], *share.refs[:1]))


def itl_stalled_share(c: Context) -> Value:
    """Share of all inter-token time that went by in gaps of ten medians or more. Each such gap counts with its bucket's lower bound."""
    grown, median = growth("latency.itl", c), c.other("latency.itl.p50")
    if grown is None or isinstance(median, Unknown):
        return Unknown("metrics-scrapes")
    histogram, refs = grown
    if histogram.sum <= 0:
        return Unknown("no-finished-requests")
    stalled = sum(low * n for low, _, n in each_bucket(histogram) if low >= STALL_FACTOR * median.value)
    return Known(min(1.0, stalled / histogram.sum), refs, int(histogram.count))


def ttft_after_queue(c: Context) -> Value:
    ttft, queue = c.other("latency.ttft.mean"), c.other("latency.queue.mean")
    if isinstance(ttft, Unknown) or isinstance(queue, Unknown):
        return ttft if isinstance(ttft, Unknown) else queue
    return Known(max(0.0, ttft.value - queue.value), (*ttft.refs[:1], *queue.refs[:1]), ttft.samples)


def ttft_queue_share(c: Context) -> Value:
    ttft, queue = c.other("latency.ttft.mean"), c.other("latency.queue.mean")
    if isinstance(ttft, Unknown) or isinstance(queue, Unknown):
        return ttft if isinstance(ttft, Unknown) else queue
    if ttft.value <= 0:
        return Unknown("no-finished-requests")
    return Known(min(1.0, queue.value / ttft.value), (*ttft.refs[:1], *queue.refs[:1]), ttft.samples)


def prefill_share(c: Context) -> Value:
    prefill, decode = growth("latency.prefill", c), growth("latency.decode", c)
    if prefill is None or decode is None:
        return Unknown("metrics-scrapes")
    total = prefill[0].sum + decode[0].sum
    return Unknown("no-finished-requests") if total <= 0 else Known(prefill[0].sum / total, (*prefill[1][:1], *decode[1][:1]))


def prompt_to_budget(c: Context) -> Value:
    """The longest prompt (at least: its bucket's lower bound) in units of max_num_batched_tokens: steps that it takes alone."""
    prompts, budget = growth("request.prompt_tokens", c), c.other("scheduler.token_budget")
    highest = highest_bucket(prompts[0]) if prompts else None
    if prompts is None or highest is None:
        return Unknown("metrics-scrapes")
    if isinstance(budget, Unknown):
        return budget
    return Known(highest[0] / budget.value, (*prompts[1][:1], *budget.refs[:1]), int(prompts[0].count))


def step_budget_share(c: Context) -> Value:
    """Share of the batched tokens that went through steps of at least half the budget (lower bounds of the buckets)."""
    steps, budget = growth("step.tokens", c), c.other("scheduler.token_budget")
    if steps is None:
        return Unknown("metrics-scrapes")
    if isinstance(budget, Unknown):
        return budget
    if steps[0].sum <= 0:
        return Unknown("no-finished-requests")
    heavy = sum(low * n for low, _, n in each_bucket(steps[0]) if low >= budget.value / 2)
    return Known(min(1.0, heavy / steps[0].sum), (*steps[1][:1], *budget.refs[:1]), int(steps[0].count))


def hit_ratio(c: Context) -> Value:
    queries, hits = c.other("prefix_cache.queries.delta"), c.other("prefix_cache.hits.delta")
    if isinstance(queries, Unknown) or isinstance(hits, Unknown):
        return Unknown("metrics-scrapes")
    return Unknown("no-finished-requests") if queries.value <= 0 else Known(hits.value / queries.value, (*hits.refs[:1], *queries.refs[:1]))


def _ever(name: str) -> Callable[[Context], Value]:
    """A counter as it stands in the last scrape: what happened since the server started. One scrape is enough, with or without a time."""

    def compute(c: Context) -> Value:
        for scrape in reversed([s for track in c.run.tracks for s in track.scrapes]):
            if (name, c.engine) in scrape.counters:
                return Known(scrape.counters[name, c.engine], tuple(r for r in (scrape.refs.get(name),) if r), 1)
        return Unknown("metrics-scrapes")

    return compute


def load_samples(c: Context) -> Value:
    """Samples that show work: running requests, generated tokens, or requests that finished between two scrapes."""
    if c.track is None:
        return Unknown("stats-lines")
    shown: dict[int, Ref] = {}
    for name in ("requests.running", "throughput.generation"):
        for point in inside(c.series(name), c.window.start, c.window.end):
            if point.value > 0:
                shown[int(point.time)] = point.ref
    scrapes = c.scrapes()
    key = ("requests.finished", c.engine)
    for a, b in itertools.pairwise(scrapes):
        if b.time is not None and b.counters.get(key, 0.0) > a.counters.get(key, 0.0) and "requests.finished" in b.refs:
            shown.setdefault(int(b.time), b.refs["requests.finished"])
    times = sorted(shown)
    return Known(float(len(times)), tuple(shown[t] for t in times[:1] + times[-1:]), len(times))


def load_span(c: Context) -> Value:
    """Seconds under watch since there was load: the window after warm-up. Start-up shows nothing of how a server serves."""
    if c.track is None:
        return Unknown("stats-lines")
    return Known(c.window.end - c.window.start)


def errors_share(c: Context) -> Value:
    """Refused and failed responses over all, from the HTTP counters of the window or, without them, from the run's access lines."""
    grown = [c.other(f"http.{status}.delta") for status in ("2xx", "4xx", "5xx")]
    refs: tuple[Ref, ...] = tuple(r for v in grown[1:] if isinstance(v, Known) and v.value for r in v.refs[:1])
    counts = [v.value if isinstance(v, Known) else 0.0 for v in grown]
    if all(isinstance(v, Unknown) for v in grown):
        logged = [c.run.counts.get(f"http.inference.{status}") for status in ("2xx", "4xx", "5xx")]
        if not any(logged):
            return Unknown("access-log")
        counts = [float(n.count) if n else 0.0 for n in logged]
        refs = tuple(n.first for n in logged[1:] if n and n.first)
    total = sum(counts)
    return Unknown("no-finished-requests") if total <= 0 else Known((counts[1] + counts[2]) / total, refs, int(total))


def errors_client_share(c: Context) -> Value:
    """Responses of status 4xx over all: requests that the server refused as they were."""
    count, total = _client_errors(c)
    return (
        count if isinstance(count, Unknown) else Unknown("no-finished-requests") if total <= 0 else Known(count.value / total, count.refs, int(total))
    )


def errors_client_count(c: Context) -> Value:
    return _client_errors(c)[0]


def _client_errors(c: Context) -> tuple[Value, float]:
    """(responses of status 4xx, all responses). The access lines of POST requests come first: scrapes and probes are not among them."""
    logged = [c.run.counts.get(f"http.inference.{status}") for status in ("2xx", "4xx", "5xx")]
    if any(logged):
        refused = c.run.counts.get("http.responses.4xx")
        refs = tuple(r for r in (refused.first, refused.last) if r) if refused and refused.first else ()
        return Known(float(logged[1].count) if logged[1] else 0.0, refs), float(sum(n.count for n in logged if n))
    grown = [c.other(f"http.{status}.delta") for status in ("2xx", "4xx", "5xx")]
    if all(isinstance(v, Unknown) for v in grown):
        return Unknown("access-log"), 0.0
    counts = [v.value if isinstance(v, Known) else 0.0 for v in grown]
    refused_refs = grown[1].refs if isinstance(grown[1], Known) else ()
    return Known(counts[1], refused_refs), sum(counts)


def rejected_share(c: Context) -> Value:
    rejected, finished = c.other("requests.rejected.delta"), c.other("requests.finished.delta")
    if isinstance(rejected, Unknown) or isinstance(finished, Unknown):
        return rejected if isinstance(rejected, Unknown) else finished
    total = rejected.value + finished.value
    return Unknown("no-finished-requests") if total <= 0 else Known(rejected.value / total, rejected.refs, int(total))


def starved_samples(c: Context) -> Value:
    """Samples in which requests waited for a place in the batch while none ran. Those that wait for something else (a grammar, a
    transfer) are left out where the version tells them apart."""
    running, waiting, deferred = c.buckets("requests.running"), c.buckets("requests.waiting"), c.buckets("requests.deferred")
    slots = sorted(set(running) & set(waiting))
    if not slots:
        return Unknown("stats-lines")
    found = [s for s in slots if running[s].max.value == 0 and waiting[s].min.value > (deferred[s].max.value if s in deferred else 0.0)]
    refs = tuple(dict.fromkeys(waiting[s].last.ref for s in (found[:1] + found[-1:])))
    return Known(float(len(found)), refs, len(slots))


def prompt_steadiness(c: Context) -> Value:
    """Near 1 where prompts were computed without a pause while others waited; of three samples or more."""
    low, high = c.other("throughput.prompt.min_while_waiting"), c.other("throughput.prompt.max_while_waiting")
    if isinstance(low, Unknown) or isinstance(high, Unknown):
        return low if isinstance(low, Unknown) else high
    if low.samples < MIN_SAMPLES:
        return Unknown("more-samples")
    return Known(low.value / high.value if high.value > 0 else 0.0, (*low.refs, *high.refs), low.samples)


def _drafts(c: Context) -> tuple[float, float, tuple[Ref, ...]] | None:
    """(accepted, drafted tokens, lines) of the window, from counters or from the log's lines."""
    accepted, drafted = c.other("spec_decode.accepted.delta"), c.other("spec_decode.drafted.delta")
    if isinstance(accepted, Known) and isinstance(drafted, Known):
        return accepted.value, drafted.value, drafted.refs
    points = [inside(c.series(f"spec_decode.{n}_tokens"), c.window.start, c.window.end) for n in ("accepted", "drafted")]
    if not points[1]:
        return None
    return sum(p.value for p in points[0]), sum(p.value for p in points[1]), tuple(p.ref for p in points[1][-2:])


def spec_acceptance(c: Context) -> Value:
    found = _drafts(c)
    return Unknown("spec-decode-lines") if found is None or found[1] <= 0 else Known(found[0] / found[1], found[2])


def spec_drafted(c: Context) -> Value:
    found = _drafts(c)
    return Unknown("spec-decode-lines") if found is None else Known(found[1], found[2])


def errors_visible(c: Context) -> Value:
    """Errors would have shown in a server log, or in the status counters of the HTTP server."""
    counters = {name for s in c.scrapes() for name, _ in s.counters}
    return Known(1.0 if c.run.has_log or "http.2xx" in counters else 0.0)


def aborted_share(c: Context) -> Value:
    """Aborted of received requests. Only where request logging is on: otherwise neither line exists."""
    received, aborted = c.run.event_count("request.received"), c.run.event_count("request.aborted")
    if not received:
        return Unknown("request-log")
    return Known(min(1.0, aborted / received), tuple(e.ref for e in c.run.events_of("request.aborted")[:2]), received)


FUNCTIONS: dict[str, Callable[[Context], Value]] = {
    "requests.arrivals.rate": arrivals_rate,
    "requests.demoted": demoted,
    "requests.unfinished.delta": unfinished_delta,
    "requests.unfinished.share": unfinished_share,
    "scheduler.slots.used_ratio": slots_used_ratio,
    "scheduler.slots.full_share": slots_full_share,
    "scheduler.plateau_share": plateau_share,
    "kv_cache.prompt_share": kv_prompt_share,
    "kv_cache.free_prompts": kv_free_prompts,
    "latency.itl.stalled_share": itl_stalled_share,
    "latency.ttft.after_queue": ttft_after_queue,
    "latency.ttft.queue_share": ttft_queue_share,
    "latency.prefill.share": prefill_share,
    "request.prompt_to_budget": prompt_to_budget,
    "step.budget_share": step_budget_share,
    "prefix_cache.hit_ratio": hit_ratio,
    "prefix_cache.queries_ever": _ever("prefix_cache.queries"),
    "prefix_cache.hits_ever": _ever("prefix_cache.hits"),
    "load.samples": load_samples,
    "load.span": load_span,
    "errors.share": errors_share,
    "errors.client_share": errors_client_share,
    "errors.client_count": errors_client_count,
    "errors.visible": errors_visible,
    "requests.rejected.share": rejected_share,
    "throughput.prompt.steadiness": prompt_steadiness,
    "requests.starved.samples": starved_samples,
    "spec_decode.acceptance": spec_acceptance,
    "spec_decode.drafted_seen": spec_drafted,
    "requests.aborted_share": aborted_share,
}
