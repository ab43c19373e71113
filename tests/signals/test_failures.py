"""Phases of failed allocations by the order of lines, standing still, what is missing, and lives that end alike."""

from __future__ import annotations

import pytest

from tests.make import run
from vllm_doctor.model.case import Case, Known, Value, Window
from vllm_doctor.model.observations import Scrape
from vllm_doctor.pipeline import read_case
from vllm_doctor.ruleset.load import load
from vllm_doctor.signals.evaluate import Evaluator
from vllm_doctor.signals.windows import windows
from vllm_doctor.sources import Source

RULES = load()
BANNER = "(APIServer pid=1) INFO 07-02 14:28:00 [utils.py:326] non-default args: {'model': 'm'}"
LOADING = "(EngineCore_DP0 pid=9) INFO 07-02 14:28:10 [gpu_model_runner.py:2602] Starting to load model m..."
LOADED = "(EngineCore_DP0 pid=9) INFO 07-02 14:28:40 [gpu_model_runner.py:2653] Model loading took 14.5 GiB and 5.0 seconds"
POOL = "(EngineCore_DP0 pid=9) INFO 07-02 14:28:50 [gpu_worker.py:298] Available KV cache memory: 54.25 GiB"
CAPTURING = "(EngineCore_DP0 pid=9) Capturing CUDA graphs (decode, FULL):   0%|          | 0/35 [00:00<?, ?it/s]"
CAPTURED = "(EngineCore_DP0 pid=9) INFO 07-02 14:29:20 [gpu_model_runner.py:3480] Graph capturing finished in 20 secs, took 0.5 GiB"
BARE = "(EngineCore_DP0 pid=9) ERROR 07-02 14:29:30 [core.py:718] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SILENT = (
    "({process} pid=9) INFO 07-02 {time} [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. This typically "
    "happens when some processes are hanging or doing some time-consuming work (e.g. compilation)."
)


def stats(time: str, tokens: float, running: int) -> str:
    return (
        f"(APIServer pid=1) INFO 07-02 {time} [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {tokens} "
        f"tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.5%, Prefix cache hit rate: 0.0%"
    )


def case_of(*lines: str) -> Case:
    data = ("\n".join(lines) + "\n").encode()
    return read_case([Source(name="server.log", path=None, data=data, size=len(data), mtime=None)], RULES)


def values(name: str, *lines: str) -> list[Value]:
    case = case_of(*lines)
    evaluator = Evaluator(case, RULES.flags)
    return [evaluator.value(name, run, 0, windows(run, 0)[0]) for run in case.runs]


def value(name: str, *lines: str) -> float:
    (found,) = values(name, *lines)
    assert isinstance(found, Known)
    return found.value


PHASES = ("weights", "profile", "capture", "sampler", "encoder", "forward")


@pytest.mark.parametrize(
    ("phase", "before"),
    [
        ("weights", (BANNER, LOADING)),
        ("profile", (BANNER, LOADING, LOADED)),
        ("capture", (BANNER, LOADING, LOADED, POOL, CAPTURING)),
        ("forward", (BANNER, LOADING, LOADED, POOL, CAPTURING, CAPTURED, stats("14:29:25", 40.0, 2))),
        (None, (BANNER, LOADING, LOADED, POOL, CAPTURING, CAPTURED)),
        (None, (BANNER,)),
        (None, ()),
    ],
)
def test_without_a_traceback_the_lines_before_tell_the_phase(phase: str | None, before: tuple[str, ...]) -> None:
    assert {p: value(f"oom.{p}.count", *before, BARE) for p in PHASES} == {p: float(p == phase) for p in PHASES}


def test_minutes_without_an_answer_count_while_requests_run() -> None:
    silent = [SILENT.format(process="EngineCore_DP0", time=f"14:3{i}:30") for i in (1, 2, 3)]
    assert value("engine.stall.silent", stats("14:30:30", 0.0, 2), *silent) == 3


@pytest.mark.parametrize(
    "lines",
    [
        (stats("14:30:30", 0.0, 2), SILENT.format(process="EngineCore_DP0", time="14:31:30"), stats("14:32:30", 40.0, 2)),
        (stats("14:30:30", 0.0, 0), SILENT.format(process="EngineCore_DP0", time="14:31:30")),
        (stats("14:30:30", 0.0, 2), SILENT.format(process="Worker_TP1", time="14:31:30")),
        (stats("14:30:30", 0.0, 2), SILENT.format(process="EngineCore_DP0", time="14:41:30")),
        (stats("14:30:30", 0.0, 2),),
        (BANNER, SILENT.format(process="EngineCore_DP0", time="14:31:30")),
    ],
    ids=["tokens come again", "nothing ran", "a worker waits for work", "far from the last line", "one line", "a start"],
)
def test_other_waits_do_not(lines: tuple[str, ...]) -> None:
    assert value("engine.stall.silent", *lines) == 0


@pytest.mark.parametrize(("call", "steps"), [("execute_model", 1), ("sample_tokens", 1), ("compile_or_warm_up_model", 0), ("load_model", 0)])
def test_only_calls_of_a_step_are_steps(call: str, steps: int) -> None:
    line = f"(EngineCore pid=2) ERROR 07-02 14:05:10 [core.py:1200] TimeoutError: RPC call to {call} timed out."
    assert value("engine.step_timeout.count", BANNER, line) == steps


FAILED = "(EngineCore_DP0 pid=9) ERROR 07-02 14:29:00 [core.py:718] EngineCore failed to start."
MISSING = "(EngineCore_DP0 pid=9) ERROR 07-02 14:29:00 [core.py:718] ModuleNotFoundError: No module named 'thing'"
OTHER = "(EngineCore_DP0 pid=9) ERROR 07-02 14:29:00 [core.py:718] ValueError: something else"


@pytest.mark.parametrize(
    ("lines", "fatal"),
    [
        ((BANNER, FAILED, MISSING), 1),
        ((BANNER, MISSING), 1),
        ((BANNER, MISSING, FAILED, OTHER), 0),
        ((BANNER, MISSING, *(stats(f"14:3{i}:00", 40.0, 2) for i in range(5))), 0),
    ],
    ids=["it ended the start", "it ended the log", "another error followed", "the server served"],
)
def test_a_missing_module_counts_where_it_ended_the_server(lines: tuple[str, ...], fatal: int) -> None:
    assert value("dependency.fatal.count", *lines) == fatal


def test_a_loop_is_counted_on_its_last_life() -> None:
    life = (BANNER, FAILED, OTHER)
    assert [v.value for v in values("runs.failed_alike", *life, *life, *life) if isinstance(v, Known)] == [0, 0, 3]


def test_lives_that_end_differently_are_no_loop() -> None:
    found = values("runs.failed_alike", BANNER, FAILED, OTHER, BANNER, FAILED, MISSING, BANNER, FAILED, MISSING)
    assert [v.value for v in found if isinstance(v, Known)] == [1, 0, 2]


def scrape(at: float, usage: float = 0.5, generated: float = 100.0) -> Scrape:
    counters = {("tokens.generation", 0): generated, ("tokens.prompt", 0): 50.0}
    gauges = {("requests.running", 0): 4.0, ("requests.waiting", 0): 19.0, ("kv_cache.usage", 0): usage}
    return Scrape("metrics.txt", at, counters=counters, gauges=gauges)


def stalled(*scrapes: Scrape) -> tuple[float, float]:
    one = run(scrapes=scrapes)
    evaluator = Evaluator(Case(runs=(one,)), RULES.flags)
    window = Window(0, 0.0, 1000.0, whole=True)
    span, waiting = (evaluator.value(f"engine.stall.{n}", one, 0, window) for n in ("span", "waiting"))
    assert isinstance(span, Known)
    assert isinstance(waiting, Known)
    return span.value, waiting.value


def test_frozen_counters_with_requests_running_are_a_stall() -> None:
    assert stalled(scrape(0, generated=90.0), scrape(10), scrape(40), scrape(75)) == (65.0, 19.0)


def test_a_prompt_that_is_computed_in_chunks_is_none() -> None:
    assert stalled(scrape(10, 0.50), scrape(40, 0.55), scrape(75, 0.60)) == (0.0, 0.0)


BUDGET = "INFO 12-25 09:10:08 worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.70) = 5.60GiB"
REFUSED = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."


@pytest.mark.parametrize(("weights", "rest", "count"), [("5.20", "-1.05", 0), ("4.14", "0.01", 1), (None, None, 1)])
def test_a_refusal_is_unaccounted_for_unless_the_stated_parts_use_up_the_budget(weights: str | None, rest: str | None, count: int) -> None:
    parts = (
        f"INFO 12-25 09:10:08 worker.py:267] model weights take {weights}GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak memory takes "
        f"1.42GiB; the rest of the memory reserved for KV Cache is {rest}GiB."
    )
    assert value("startup.kv.unaccounted", *([BUDGET, parts] if weights else [BUDGET]), REFUSED) == count
