"""Values that give an allocation outside the KV pool its place: a share of the card, room for CUDA graphs, fewer dummy rows, smaller steps."""

from __future__ import annotations

import json
import math
import re

from ..capacity.observed import option
from ..model.case import Case, Known, Run, Unknown
from ..model.figures import figure
from ..model.judgement import Judgement
from ..signals.evaluate import Evaluator
from ..versions import satisfies
from .figures import GIB, Figures, look
from .levers import GRAPHS_MOST
from .moves import Move, Solved
from .outcome import first_that_starts
from .servers import after, capture_sizes, sized

MARGIN = 0.5 * GIB
"""Left over when a lever is set by a failed allocation: the next one may ask for a little more (heuristic)."""
FOREIGN = GIB
"""Memory of others from which on it bears on the next start: a display takes less."""
UTILIZATION_STEP = 0.03
"""A step that leaves what lies outside the budget (context, NCCL, graphs before 0.20) its room: 0.03 of 24 GiB are 0.7 GiB."""
LEAST_UTILIZATION = 0.3
SMALLEST_BUDGET = 512
"""Below this a step does too little work for what it costs to launch it (vLLM's own smallest default, V0 with chunked prefill)."""
USUAL_ROWS, FEWEST_ROWS = 256, 16
"""V0 had 256 slots by default, V1 on small cards has; fewer than 16 make a poor server."""
PROGRESS = re.compile(r"(\d+)/(\d+) ?\[")
"""`8/67 [` of the bar that the capture draws."""


def power_of_two(value: float) -> int:
    """The largest one that is no more than the value; 0 below 1."""
    return 2 ** math.floor(math.log2(value)) if value >= 1 else 0


def less_utilization(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """What leaves the allocation that failed its place outside the budget, with a margin; one step down where its size is not known."""
    f = look(case, run, finding, evaluator)
    if f.utilization is None:
        return Unknown("launch-command")
    if f.total and f.oom_requested is not None and f.oom_free is not None:
        return _below(f, max(0.0, f.oom_requested - f.oom_free) + MARGIN, _foreign(case, run, finding, evaluator))
    return Known(round(f.utilization - UTILIZATION_STEP, 2))


def _below(f: Figures, lacking: float, foreign: float) -> Solved:
    """The share that frees so many bytes; what others hold must be free at the next start, too (0.9.1 and later refuse otherwise)."""
    assert f.total is not None
    assert f.utilization is not None
    if f.kv_bytes is not None and lacking >= f.kv_bytes:
        return None
    to = math.floor((f.utilization - lacking / f.total) * 100 + 1e-6) / 100
    if foreign >= FOREIGN:
        to = min(to, math.floor(100 * (f.total - foreign - MARGIN) / f.total) / 100)
        if f.kv_bytes is not None and (f.utilization - to) * f.total >= f.kv_bytes:
            return None
    return Known(round(to, 2)) if to >= LEAST_UTILIZATION else None


def _foreign(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> float:
    value = evaluator.value("oom.foreign", run, finding.engine if finding.engine is not None else run.engines[0], finding.window)
    return value.value if isinstance(value, Known) else 0.0


def room_for_graphs(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """What leaves all CUDA graphs their place outside the budget, not only the allocation that failed: the model's upper estimate, else 3 GiB,
    less what was captured before the failure."""
    f = look(case, run, finding, evaluator)
    if f.utilization is None or not f.total:
        return Unknown("launch-command" if f.utilization is None else "startup-log")
    short = max(0.0, f.oom_requested - f.oom_free) if f.oom_requested is not None and f.oom_free is not None else 0.0
    return _below(f, short + graphs_to_come(run, f), _foreign(case, run, finding, evaluator))


def graphs_to_come(run: Run, f: Figures) -> float:
    """Bytes that the capture still needs when it fails. By its progress and what it holds so far, where the log has both: later graphs are of
    smaller batches and need no more than earlier ones. Graphs that the budget counts already are not needed twice."""
    all_ = max((sized(s).parts["graphs"][2] for s in f.servers), default=GRAPHS_MOST)
    held, share = _captured_bytes(run), captured_share(run)
    if share:
        return held * (1 - share) / share + MARGIN if held else all_ * (1 - share)
    if f.graphs_charged:
        return max(MARGIN, all_ - max(held, f.graphs_charged))
    return max(MARGIN, all_ - held)


def captured_share(run: Run) -> float | None:
    """The share of the graphs that was captured, by the last state of the bar; None where there is no bar, or it stands at its beginning."""
    states = [(int(m[1]), int(m[2])) for e in run.events_of("startup.capturing") if (m := PROGRESS.search(e.ref.text))]
    done, of = states[-1] if states else (0, 0)
    return done / of if 0 < done < of else None


def fewer_rows(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """A quarter of the rows that did not fit, as the message or the limit says, but no fewer than 16 and no more than ran at once: sorting them
    needs several times what failed. 256 where more were tried, the default of small cards."""
    f = look(case, run, finding, evaluator)
    tried = [v for e in run.events_of("startup.sampler_oom") if (v := figure(e.values.get("startup.sampler_oom.requests")))]
    rows = max(tried) if tried else f.slots
    if not rows:
        return Unknown("launch-command")
    to = USUAL_ROWS if rows > USUAL_ROWS else max(FEWEST_ROWS, 2 ** math.floor(math.log2(rows / 4))) if rows >= 4 * FEWEST_ROWS else rows
    return Known(float(to)) if to < rows else None


def fewer_profile_tokens(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The largest power of two at which the failed allocation, in proportion, is no more than what was free; half where its size is not
    known. Not below 512 nor max-num-seqs. Where the model knows the server, the first from there down with which it starts."""
    f = look(case, run, finding, evaluator)
    if f.budget is None:
        return Unknown("launch-command")
    share = min(0.5, f.oom_free / f.oom_requested) if f.oom_requested and f.oom_free is not None else 0.5
    least = max(512.0, f.slots or 1.0)
    to = 2.0 ** math.floor(math.log2(max(1.0, f.budget * share)))
    to = max(to, 2.0 ** math.ceil(math.log2(least)))
    if f.servers and to < f.budget:
        lower = [2.0**k for k in range(round(math.log2(to)), 0, -1) if 2.0**k >= least]
        to = first_that_starts(f, "--max-num-batched-tokens", lower) or to
    return Known(to) if to < f.budget else None


def capture_limit(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Graphs up to the largest batch that was seen, rounded up to a power of two; half of the largest size where none was. Where the capture
    failed, the first power of two whose graphs have room by its progress; none where that is fewer than eight."""
    f = look(case, run, finding, evaluator)
    largest = largest_captured(f)
    if run.events_of("oom"):
        return _first_with_room(run, f, "--max-cudagraph-capture-size", _halved(largest / 2, 8), largest)
    seen = evaluator.value("requests.running.max", run, finding.engine or run.engines[0], finding.window)
    to = 2 ** math.ceil(math.log2(max(8.0, seen.value))) if isinstance(seen, Known) and seen.value else 2 ** math.floor(math.log2(largest / 2))
    return Known(float(to)) if to < largest else None


def fewer_graphs(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Slots with which fewer graphs are captured: V1 captures up to twice as many requests, and 512 at most, so that above 256 slots a lower
    number alone changes nothing. A quarter of those that count; by the progress of the capture the most whose graphs have room. Not below 16."""
    f = look(case, run, finding, evaluator)
    if not f.slots:
        return Unknown("launch-command")
    counted = min(f.slots, MOST_CAPTURED if f.engine == "V0" else MOST_CAPTURED / 2)
    return _first_with_room(run, f, "--max-num-seqs", _halved(counted / 4, FEWEST_ROWS), largest_captured(f))


MOST_CAPTURED = 512
"""The largest batch of a graph by default (vllm/config/vllm.py, 0.32.0; vllm/config.py, 0.8.5)."""


def largest_captured(f: Figures) -> float:
    """The largest batch that gets a graph."""
    return MOST_CAPTURED if not f.slots else min(MOST_CAPTURED, f.slots if f.engine == "V0" else 2 * f.slots)


def _halved(first: float, least: float) -> list[int]:
    """Powers of two from `first` down."""
    return [2**k for k in range(max(0, math.floor(math.log2(max(1.0, first)))), -1, -1) if least <= 2**k <= first]


def _first_with_room(run: Run, f: Figures, lever: str, candidates: list[int], largest: float) -> Solved:
    """The first candidate whose graphs have room: by progress and size of those that were captured, where the log has both; else simply the
    first. Graphs that the budget counts get less of it as they become fewer."""
    held, share = _captured_bytes(run), captured_share(run)
    free = max((v for e in run.events_of("oom") if (v := figure(e.values.get("oom.free"))) is not None), default=0.0)
    for to in candidates:
        part = _graphs_left(f, lever, to, largest)
        if not held or not share or held / share * part + (f.graphs_charged or 0.0) * (1 - part) <= held + free:
            return Known(float(to))
    return None


def _graphs_left(f: Figures, lever: str, to: int, largest: float) -> float:
    """The share of the graphs' memory that is left after the change."""
    found = [(sized(s).parts["graphs"][1], sized(after(s, (Move(lever, to),))).parts["graphs"][1]) for s in f.servers]
    if found and all(was > 0 for was, _ in found):
        return max(is_ / was for was, is_ in found)
    reached = to if lever != "--max-num-seqs" or f.engine == "V0" else 2 * to
    own, now = (0.4 + 0.6 * min(1.0, len(capture_sizes(int(n))) / len(capture_sizes(MOST_CAPTURED))) for n in (reached, largest))
    return own / now


def _captured_bytes(run: Run) -> float:
    """What the graphs held when an allocation failed."""
    return max((v for e in run.events_of("oom") if (v := figure(e.values.get("oom.private_pools"))) is not None), default=0.0)


MEDIA = ("image", "video", "audio")


def fewer_media(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Half of each limit that is set, one image and no video where none is; in the form of the version."""
    given = _limits(option(run, "limit-mm-per-prompt"))
    if given is None:
        return Unknown("launch-command")
    limits = {k: v // 2 if v > 1 else v for k, v in given.items()} if given else {"image": 1, "video": 0}
    return None if limits == given else _typed(limits, run)


def no_media(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """No image and no video; None where that is so already."""
    given = _limits(option(run, "limit-mm-per-prompt")) or {}
    limits = {k: 0 for k in MEDIA if k in given or k != "audio"}
    return None if limits == given else _typed(limits, run)


def _limits(value: object) -> dict[str, int] | None:
    """--limit-mm-per-prompt as JSON, as Python prints it, or as `image=4,video=1`. Empty where it is not set; None where it is something else."""
    text = str(value or "").strip()
    if text.startswith("{"):
        try:
            found = json.loads(text.replace("'", '"'))
        except ValueError:
            return None
        return found if isinstance(found, dict) and all(type(v) is int for v in found.values()) else None
    pairs = re.findall(r"(\w+)=(\d{1,6})(?:,|$)", text)
    return {k: int(v) for k, v in pairs} if pairs or not text else None


def _typed(limits: dict[str, int], run: Run) -> Solved:
    """JSON from 0.8.5 on, `image=4,video=1` before; not known which where the version is not."""
    new = satisfies(run.version, ">=0.8.5")
    if new is None:
        return Unknown("startup-log")
    return json.dumps(limits, separators=(",", ":")) if new else ",".join(f"{k}={v}" for k, v in limits.items())
