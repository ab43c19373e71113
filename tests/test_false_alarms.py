"""What alarms a naive reader of logs and is no trouble: none of it may make the verdict `problem`."""

from __future__ import annotations

import pytest

from vllm_doctor.diagnosis.judge import judge
from vllm_doctor.diagnosis.rank import firm, ranked, verdict
from vllm_doctor.model.case import Case
from vllm_doctor.pipeline import read_case
from vllm_doctor.ruleset.load import load
from vllm_doctor.signals.evaluate import Evaluator
from vllm_doctor.sources import Source

RULES = load()


def stats(second: int, prompt: float, generation: float, running: int, waiting: int = 0, kv: float = 6.0, hits: float = 0.0) -> str:
    return (
        f"(APIServer pid=1) INFO 05-05 09:{second // 60:02d}:{second % 60:02d} [loggers.py:127] Engine 000: Avg prompt throughput: "
        f"{prompt:.1f} tokens/s, Avg generation throughput: {generation:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
        f"GPU KV cache usage: {kv:.1f}%, Prefix cache hit rate: {hits:.1f}%"
    )


START = (
    "(APIServer pid=1) INFO 05-05 08:58:00 [utils.py:328] non-default args: {'model_tag': 'm', 'model': 'm'}",
    "(EngineCore_DP0 pid=9) INFO 05-05 08:58:10 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='m', max_seq_len=4096,",
)
SERVES = "(APIServer pid=1) INFO:     Application startup complete."
WORKS = tuple(stats(10 * i, 300.0, 200.0, 4) for i in range(9))
DONE = (
    "(APIServer pid=1) INFO 05-05 09:30:00 [launcher.py:99] Shutting down FastAPI HTTP server.",
    "INFO:     Shutting down",
    "INFO:     Finished server process [1]",
)

ALARMING: dict[str, tuple[str, ...]] = {
    "one line without output tokens while requests run": (*START, SERVES, *WORKS, stats(90, 0.0, 0.0, 4), stats(100, 300.0, 200.0, 4)),
    "the last line has no tokens and requests run": (*START, SERVES, *WORKS, stats(90, 0.0, 0.0, 4)),
    "no prompt throughput during decode": (*START, SERVES, *(stats(10 * i, 0.0, 90.0, 3) for i in range(9))),
    "an idle server": (*START, SERVES, *(stats(10 * i, 0.0, 0.0, 0) for i in range(9))),
    "advice on memory before graphs are captured": (
        *START,
        "INFO 05-05 08:58:30 [model_runner.py:1442] Capturing cudagraphs for decoding. This may lead to unexpected consequences if the model is not "
        "static. If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization` or switching to eager mode.",
        SERVES,
        *WORKS,
    ),
    "advice on memory in old versions": (
        *START,
        "INFO 05-05 08:58:30 model_runner.py:689] CUDA graphs can take additional 1~3 GiB memory per GPU. If you are running out of memory, consider "
        "decreasing `gpu_memory_utilization` or enforcing eager mode.",
        SERVES,
        *WORKS,
    ),
    "an account of free memory": (
        *START,
        "(EngineCore_DP0 pid=9) INFO 05-05 08:58:50 [gpu_worker.py:391] Free memory on device (77.5/79.0 GiB) on startup. Desired GPU memory "
        "utilization is (0.9, 71.0 GiB). Actual usage is 15.0 GiB for weight, 1.5 GiB for peak activation, 0.5 GiB for non-torch memory, and 0.5 GiB "
        "for CUDAGraph memory.",
        SERVES,
        *WORKS,
    ),
    "a note on padding": (
        *START,
        "(EngineCore_DP0 pid=9) WARNING 05-05 08:58:40 [kv_cache_utils.py:951] Add 2 padding layers, may waste at most 60.00% KV cache memory",
        SERVES,
        *WORKS,
    ),
    "nothing drafted": (
        *START,
        SERVES,
        *WORKS,
        "(APIServer pid=1) INFO 05-05 09:01:30 [metrics.py:53] SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, "
        "Drafted: 0 tokens",
    ),
    "a full KV cache with nobody waiting": (*START, SERVES, *(stats(10 * i, 300.0, 900.0, 40, kv=96.0) for i in range(9))),
    "no prefix hits with one request": (*START, SERVES, *(stats(10 * i, 10.0, 40.0, 1) for i in range(9))),
    "many prefix hits with random prompts": (*START, SERVES, *(stats(10 * i, 300.0, 200.0, 4, hits=60.0) for i in range(9))),
    "a script that kills the server after its end": (*START, SERVES, *WORKS, *DONE, "run.sh: line 7:   411 Killed                  vllm serve m"),
    "waiting for an engine that starts": (
        *START,
        "(APIServer pid=1) DEBUG 05-05 08:58:20 [utils.py:600] Waiting for 1 local, 0 remote core engine proc(s) to start.",
        SERVES,
        *WORKS,
    ),
    "a scraper that asks every second": (
        *START,
        SERVES,
        *WORKS,
        *(f'(APIServer pid=1) INFO:     10.0.0.2:{40000 + i} - "GET /metrics HTTP/1.1" 200 OK' for i in range(200)),
    ),
    "a scanner that finds nothing": (
        *START,
        SERVES,
        *WORKS,
        *(f'(APIServer pid=1) INFO:     10.0.0.2:{40000 + i} - "GET /.env HTTP/1.1" 404 Not Found' for i in range(15)),
    ),
    "workers that their parent stopped": (
        *START,
        SERVES,
        *WORKS,
        *DONE,
        "ERROR 05-05 09:30:01 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 211 died, exit code: -15",
    ),
    "dead engines after a stop": (
        *START,
        SERVES,
        *WORKS,
        *DONE,
        "(APIServer pid=1) ERROR 05-05 09:30:01 [async_llm.py:485] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
        "See stack trace (above) for the root cause.",
    ),
    "a compilation that takes minutes": (
        *START,
        *(
            f"(EngineCore_DP0 pid=9) INFO 05-05 08:5{i}:30 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. "
            "This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation)."
            for i in (8, 9)
        ),
        SERVES,
        *(stats(60 + 10 * i, 300.0, 200.0, 4) for i in range(9)),
    ),
    "idle workers that wait for work": (
        *START,
        SERVES,
        *WORKS,
        stats(90, 0.0, 0.0, 0),
        *(
            f"(Worker_TP1 pid=11) INFO 05-05 09:0{i}:30 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. "
            "This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation)."
            for i in (3, 4, 5)
        ),
    ),
    "custom all-reduce and a wrong default": (
        *START,
        "(EngineCore_DP0 pid=9) WARNING 05-05 08:58:30 [custom_all_reduce.py:144] Custom allreduce is disabled because it's not supported on more "
        "than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.",
        "(EngineCore_DP0 pid=9) WARNING 05-05 08:58:31 [fused_moe.py:798] Using default MoE config. Performance might be sub-optimal!",
        SERVES,
        *WORKS,
    ),
    "an optional module that is not there": (
        *START,
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3/site-packages/torch/_inductor/optional.py", line 10, in <module>',
        "ModuleNotFoundError: No module named 'optional_thing'",
        SERVES,
        *WORKS,
    ),
    "a port that torch tries twice": (
        *START,
        "[W505 08:58:20.000000000 socket.cpp:752] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        SERVES,
        *WORKS,
    ),
    "a prompt that quotes an error": (
        *START,
        SERVES,
        *WORKS,
        "(APIServer pid=1) INFO 05-05 09:01:40 [logger.py:42] Received request cmpl-1: prompt: 'why do I get torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 2.00 GiB, CUDA error: uncorrectable ECC error encountered, OSError: [Errno 98] Address already in use and NCCL "
        "error: unhandled cuda error?', params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None.",
    ),
    "a killed client of a healthy GPU": (
        *START,
        SERVES,
        *WORKS,
        "[ 4821.310442] NVRM: Xid (PCI:0000:1b:00): 45, pid=30517, name=jupyter, Ch 00000008",
        "[ 4822.310442] NVRM: Xid (PCI:0000:1b:00): 63, pid=2210, Row Remapper: New row marked for remapping, reset gpu to activate.",
    ),
    "another program that ran out of host memory": (
        *START,
        SERVES,
        *WORKS,
        "[ 4821.310442] Out of memory: Killed process 977 (chrome) total-vm:753572kB, anon-rss:6040000kB, file-rss:138268kB, shmem-rss:4000kB, UID:0",
    ),
    "leaked semaphores at exit": (
        *START,
        SERVES,
        *WORKS,
        *DONE,
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked "
        "shared_memory objects",
        "[rank0]:[W505 09:30:02.000000000 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called before program exit",
    ),
    "FP8 weights on a GPU without FP8": (
        *START,
        "(EngineCore_DP0 pid=9) WARNING 05-05 08:58:30 [marlin_utils_fp8.py:80] Your GPU does not have native support for FP8 computation but FP8 "
        "quantization is being used. Weight-only FP8 compression will be used leveraging the Marlin kernel.",
        SERVES,
        *WORKS,
    ),
}


def case_of(lines: tuple[str, ...]) -> Case:
    data = ("\n".join(lines) + "\n").encode()
    return read_case([Source(name="server.log", path=None, data=data, size=len(data), mtime=None)], RULES)


@pytest.mark.parametrize("name", ALARMING)
def test_what_looks_alarming_is_no_problem(name: str) -> None:
    case = case_of(ALARMING[name])
    assert case.runs, "nothing was read"
    evaluator = Evaluator(case, RULES.flags)
    findings = ranked(judge(case, RULES, evaluator), RULES)
    assert [(j.cause, j.outcome) for j in findings if firm(j)] == []
    assert verdict(case, findings, evaluator)[0] != "problem"


ENDS_STILL = "the last line has no tokens and requests run"
WORKING = [n for n, lines in ALARMING.items() if SERVES in lines and WORKS[0] in lines and DONE[0] not in lines and n != ENDS_STILL]


@pytest.mark.parametrize("name", WORKING)
def test_and_a_server_that_works_stays_healthy(name: str) -> None:
    case = case_of(ALARMING[name])
    evaluator = Evaluator(case, RULES.flags)
    findings = ranked(judge(case, RULES, evaluator), RULES)
    assert verdict(case, findings, evaluator) == ("healthy", ())


def test_a_log_that_ends_in_a_standstill_is_no_problem_and_not_called_healthy() -> None:
    case = case_of(ALARMING[ENDS_STILL])
    evaluator = Evaluator(case, RULES.flags)
    assert verdict(case, ranked(judge(case, RULES, evaluator), RULES), evaluator) == ("inconclusive", ("more-samples",))
