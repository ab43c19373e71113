"""The ledger of a log: printed figures are taken over with their line, derived ones follow from them, and the parts sum to the total."""

from __future__ import annotations

import pytest
from msgspec import structs

from vllm_doctor.capacity.ledger import Account, Ledger, graphs_subtracted, ledger
from vllm_doctor.capacity.setup import GIB
from vllm_doctor.model.case import Case, Run
from vllm_doctor.model.observations import Fact, Gpu, Ref
from vllm_doctor.pipeline import diagnose, read_case
from vllm_doctor.ruleset.load import load, load_knowledge
from vllm_doctor.sources.source import Source

V0 = """\
INFO 03-25 09:10:00 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.1) with config: model='Qwen/Qwen2.5-7B-Instruct', dtype=torch.bfloat16, max_seq_len=6600, tensor_parallel_size=1, pipeline_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto,  device_config=cuda,
INFO 03-25 09:10:05 [model_runner.py:1115] Loading model weights took 14.2487 GB and 5.112233 seconds
INFO 03-25 09:10:09 [worker.py:267] the current vLLM instance can use total_gpu_memory (21.99GiB) x gpu_memory_utilization (0.90) = 19.79GiB
INFO 03-25 09:10:09 [worker.py:267] model weights take 14.25GiB; non_torch_memory takes 0.06GiB; PyTorch activation peak memory takes 1.43GiB; the rest of the memory reserved for KV Cache is 4.05GiB.
INFO 03-25 09:10:10 [executor_base.py:111] # cuda blocks: 4741, # CPU blocks: 4681
INFO 03-25 09:10:10 [executor_base.py:116] Maximum concurrency for 6600 tokens per request: 11.49x
INFO 03-25 09:10:30 [model_runner.py:1563] Graph capturing finished in 20 secs, took 0.76 GiB
"""  # noqa: E501  lines of a log
V1 = """\
(EngineCore_DP0 pid=2) INFO 09-20 09:10:05 [gpu_model_runner.py:2392] Model loading took 15.2683 GiB and 5.112233 seconds
(EngineCore_DP0 pid=2) INFO 09-20 09:10:08 [gpu_worker.py:298] Available KV cache memory: 18.69 GiB
(EngineCore_DP0 pid=2) INFO 09-20 09:10:08 [kv_cache_utils.py:864] GPU KV cache size: 136,080 tokens
(EngineCore_DP0 pid=2) INFO 09-20 09:10:08 [kv_cache_utils.py:868] Maximum concurrency for 40,960 tokens per request: 3.32x
"""
WORKERS = """\
(Worker_TP0 pid=11) INFO 07-14 09:51:13 [gpu_worker.py:855] Free memory on device (77.57/79.11 GiB) on startup. Desired GPU memory utilization is (0.92, 72.78 GiB). Actual usage is 7.39 GiB for weight, 1.54 GiB for peak activation, 0.6 GiB for non-torch memory, and 2.04 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=65565989131` (61.06 GiB) to fit into requested memory, or `--kv-cache-memory=70708740096` (65.85 GiB) to fully utilize gpu memory. Current kv cache memory in use is 63.25 GiB.
(Worker_TP1 pid=12) INFO 07-14 09:51:13 [gpu_worker.py:855] Free memory on device (76.57/79.11 GiB) on startup. Desired GPU memory utilization is (0.92, 72.78 GiB). Actual usage is 7.39 GiB for weight, 1.54 GiB for peak activation, 0.7 GiB for non-torch memory, and 2.04 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=65458614949` (60.96 GiB) to fit into requested memory, or `--kv-cache-memory=69634998272` (64.85 GiB) to fully utilize gpu memory. Current kv cache memory in use is 63.15 GiB.
"""  # noqa: E501


def case_of(text: str) -> Case:
    return read_case([Source("server.log", data=text.encode(), size=len(text))], load(None))


def ledger_of(text: str, *, knowledge: bool = False) -> Ledger:
    case = case_of(text)
    found = ledger(case.runs[0], case, load_knowledge() if knowledge else None)
    assert found is not None
    return found


def parts(found: Ledger) -> dict[str, tuple[float, str]]:
    return {n: (round(e.bytes / GIB, 2), e.origin) for n, e in found.tightest.entries.items()}


def test_v0_prints_every_part() -> None:
    found = ledger_of(V0)
    assert parts(found) == {
        "total": (21.99, "printed"), "budget": (19.79, "printed"), "weights": (14.25, "printed"), "activation": (1.43, "printed"),
        "non_torch": (0.06, "printed"), "kv": (4.05, "printed"), "graphs": (0.76, "printed"), "headroom": (1.44, "derived"),
    }  # fmt: skip
    assert (found.kv_tokens, found.kv_bytes_per_token, found.max_concurrency) == (75856, 57344.0, 11.49)


COUNTED_TWICE = """\
(EngineCore pid=2) INFO 08-14 09:51:01 [gpu_model_runner.py:5233] Model loading took 51.1 GiB memory and 60.297843 seconds
(EngineCore pid=2) INFO 08-14 09:51:05 [gpu_model_runner.py:6806] Estimated CUDA graph memory: 1.55 GiB total
(EngineCore pid=2) INFO 08-14 09:51:13 [gpu_worker.py:855] Free memory on device (79.99/80.0 GiB) on startup. Desired GPU memory utilization is (0.92, 73.6 GiB). Actual usage is 51.66 GiB for consumed memory (weights + non-torch), 2.4 GiB for peak activation, and 0.71 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=20250000000` (18.86 GiB) to fit into requested memory, or `--kv-cache-memory=27150000000` (25.29 GiB) to fully utilize gpu memory. Current kv cache memory in use is 19.54 GiB.
"""  # noqa: E501


@pytest.mark.parametrize(
    ("version", "command", "subtracted"),
    [
        ("0.19.1", "", False),
        ("0.19.1", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 vllm serve m\n", True),
        ("0.20.0", "", True),
        ("0.20.0", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 vllm serve m\n", False),
    ],
)
def test_a_printed_estimate_of_graphs_is_subtracted_from_0_20_or_when_asked(version: str, command: str, subtracted: bool) -> None:
    banner = f"(APIServer pid=1) INFO 08-14 09:51:00 [utils.py:293] vLLM API server version {version}\n"
    run = case_of(
        f"{command}{banner}(EngineCore pid=2) INFO 08-14 09:51:05 [gpu_model_runner.py:6806] Estimated CUDA graph memory: 1.55 GiB total\n"
    ).runs[0]
    assert graphs_subtracted(run) is subtracted


def test_an_estimate_of_graphs_inside_the_printed_peak_is_taken_out_once() -> None:
    """73.6 = 51.66 consumed + 2.4 peak + 19.54 KV leaves nothing for the estimate of 1.55: the peak holds it. Figures of a public start of 0.28."""
    found = parts(ledger_of(COUNTED_TWICE))
    assert (found["activation"], found["graphs"], found["non_torch"]) == ((0.85, "derived"), (0.71, "printed"), (0.56, "derived"))
    apart = COUNTED_TWICE.replace("in use is 19.54", "in use is 17.99")
    assert parts(ledger_of(apart))["activation"] == (2.4, "printed")


def test_the_parts_sum_to_the_total() -> None:
    account = ledger_of(V0).tightest
    names = ("outside", "weights", "activation", "non_torch", "graphs", "kv", "headroom")
    assert sum(account.get(n) or 0 for n in names) == account.get("total")


def test_every_printed_part_has_its_line() -> None:
    lines = {n: e.refs[0].line for n, e in ledger_of(V0).tightest.entries.items() if e.origin == "printed"}
    assert lines == {"total": 3, "budget": 3, "weights": 2, "activation": 4, "non_torch": 4, "kv": 4, "graphs": 7}


def test_the_model_is_compared_and_never_replaces_what_is_printed() -> None:
    found = ledger_of(V0, knowledge=True)
    differences = {n: (round(a / GIB, 2), round(b / GIB, 2)) for n, (a, b) in found.differences().items()}
    assert differences["weights"] == (14.25, 14.19)
    assert set(differences) == {"weights", "activation", "non_torch", "kv", "graphs"}
    assert parts(found)["weights"] == (14.25, "printed")


def test_without_a_total_nothing_is_left_over_and_nothing_is_guessed() -> None:
    found = ledger_of(V1)
    assert parts(found) == {"weights": (15.27, "printed"), "kv": (18.69, "printed")}
    assert (found.kv_tokens, found.kv_bytes_per_token, found.max_concurrency) == (136080, 147456.0, 3.32)


SMI = Ref("nvidia-smi.txt", 10, "|  0%   35C    P8             20W /  450W |       4MiB /  24564MiB |")
CARD = Gpu(0, "NVIDIA GeForce RTX 4090", SMI, 24564 * 2**20)
FAILED = """\
(APIServer pid=1) INFO 09-20 09:10:02 [utils.py:328] non-default args: {'model': 'Qwen/Qwen2.5-32B-Instruct-AWQ', 'gpu_memory_utilization': 0.8}
(EngineCore_DP0 pid=2) INFO 09-20 09:10:05 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen2.5-32B-Instruct-AWQ', max_seq_len=8192, tensor_parallel_size=1, device_config=cuda,
(EngineCore_DP0 pid=2) INFO 09-20 09:10:06 [gpu_model_runner.py:2392] Model loading took 18.1476 GiB and 5.12 seconds
(EngineCore_DP0 pid=2) INFO 09-20 09:10:07 [gpu_worker.py:276] Available KV cache memory: -0.83 GiB
"""  # noqa: E501


def with_cards(text: str, *gpus: Gpu) -> Account:
    case = structs.replace(case_of(text), gpus=gpus)
    found = ledger(case.runs[0], case, load_knowledge())
    assert found is not None
    return found.tightest


def test_the_total_of_a_card_in_a_dump_is_derived_and_gives_the_budget() -> None:
    account = with_cards(FAILED, CARD)
    assert {n: (round(e.bytes / GIB, 2), e.origin) for n, e in account.entries.items()} == {
        "total": (23.58, "derived"), "budget": (18.87, "derived"), "weights": (18.15, "printed"), "activation": (1.55, "derived"),
        "kv": (-0.83, "printed"), "headroom": (4.72, "derived"),
    }  # fmt: skip
    assert (account.gpu, account.lumped, account.entries["total"].refs, account.entries["budget"].refs) == (0, ("non_torch",), (SMI,), (SMI,))


@pytest.mark.parametrize(
    ("gpus", "total"),
    [
        ((CARD, structs.replace(CARD, index=1)), 23.58),
        ((structs.replace(CARD, name=None),), 23.99),
        ((structs.replace(CARD, total_bytes=None),), 23.58),
        ((structs.replace(CARD, name="NVIDIA A100-SXM4-80GB", total_bytes=20096 * 2**20),), 19.62),  # a part of it (MIG)
        ((CARD, Gpu(1, "Tesla T4", SMI, 15360 * 2**20)), None),
        ((), None),
    ],
)
def test_the_total_is_of_the_cards_where_they_are_alike(gpus: tuple[Gpu, ...], total: float | None) -> None:
    account = with_cards(FAILED, *gpus)
    assert (account.get("total") and round((account.get("total") or 0) / GIB, 2)) == total
    assert account.gpu == (0 if len(gpus) == 1 else None)


def test_what_a_log_prints_goes_before_a_dump_and_a_cpu_has_no_card() -> None:
    assert with_cards(V0, CARD).get("total") == int(21.99 * GIB)
    assert with_cards(FAILED.replace("device_config=cuda", "device_config=cpu"), CARD).get("total") is None


def test_a_card_as_it_is_usual_makes_no_figure_impossible() -> None:
    account = with_cards(FAILED.replace("-0.83", "0.90"), CARD)
    assert (account.get("budget"), account.get("activation")) == (int((account.get("total") or 0) * 0.8), None)


def test_each_worker_has_an_account_and_the_smallest_pool_leads() -> None:
    found = ledger_of(WORKERS)
    assert [(a.gpu, round((a.get("kv") or 0) / GIB, 2), round((a.get("outside") or 0) / GIB, 2)) for a in found.accounts] == [
        (1, 63.15, 2.54),
        (0, 63.25, 1.54),
    ]
    for account in found.accounts:
        assert sum(account.get(n) or 0 for n in ("outside", "weights", "activation", "non_torch", "graphs", "kv", "headroom")) == account.get("total")


@pytest.mark.parametrize(
    ("tag", "options", "gpu"),
    [
        ("Worker_TP3", {"tensor-parallel-size": 4}, 3),
        ("VllmWorker TP3", {}, 3),
        ("Worker_PP1", {"pipeline-parallel-size": 2}, 1),
        ("Worker_PP1_TP1", {"pipeline-parallel-size": 2, "tensor-parallel-size": 4}, 5),
        ("Worker_DP1_PP0_TP3_EP3", {"data-parallel-size": 2, "pipeline-parallel-size": 2, "tensor-parallel-size": 4}, 11),
        ("EngineCore_DP1", {"data-parallel-size": 2}, 1),
        ("EngineCore_DP0", {}, None),
        ("Worker_PP1_TP0", {}, None),  # how many ranks a stage has is not known
        ("Worker_TP4", {"tensor-parallel-size": 4}, None),
        (None, {}, None),
    ],
)
def test_a_worker_is_on_the_gpu_that_its_tag_says(tag: str | None, options: dict[str, int], gpu: int | None) -> None:
    facts = (*(Fact(f"config.{n}", v, SMI) for n, v in options.items()), *(Fact("memory.weights", GIB, SMI, process=p) for p in (tag, "other")))
    run = Run(id="r1", facts=facts)
    found = ledger(run, Case(runs=(run,)))
    assert found is not None
    assert {a.process: a.gpu for a in found.accounts}[tag] == gpu


def test_of_workers_whose_pools_differ_the_smallest_counts() -> None:
    more = V1.replace("136,080", "68,040").replace("3.32x", "1.66x")
    found = ledger_of(V1 + more)
    assert (found.kv_tokens, found.max_concurrency) == (68040, 1.66)
    assert {n: r.line for n, r in found.refs.items()} == {"kv_cache.tokens": 7, "kv_cache.max_concurrency": 8, "kv_tokens": 7}


def test_a_log_without_memory_lines_has_no_ledger() -> None:
    case = case_of("INFO 03-25 09:10:05 [api_server.py:1000] vLLM API server version 0.8.1\n")
    assert [ledger(r, case) for r in case.runs] == [None]


def test_what_runs_hold_gives_how_many_fit() -> None:
    stats = "".join(
        f"INFO 03-25 09:1{i}:00 [loggers.py:87] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 90.0 tokens/s, "
        f"Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: {usage}%, Prefix cache hit rate: 0.0%\n"
        for i, usage in enumerate(("2.0", "4.0", "4.0", "8.0"))
    )
    found = ledger_of(V1 + stats)
    held = 136080 * 0.04 / 4
    assert found.observed is not None
    assert (found.observed.p50, found.observed.n, found.observed.finished) == (pytest.approx(held), 4, False)
    assert found.fits["p50"].requests == pytest.approx(136080 / held)
    assert found.fits["p50"].basis == "rule-of-thumb"
    assert (found.fits.get("max_model_len") is None) == (found.max_model_len is None)


def scrape(seconds: int, prompts: tuple[int, int, int], outputs: tuple[int, int, int]) -> str:
    """A scrape with cumulative counts of buckets up to 2000, up to 5000, and beyond."""
    lines = [f"# scraped at 2026-11-30T14:00:{seconds:02}Z", 'vllm:num_requests_running{engine="0",model_name="m"} 4.0']
    for name, counts in (("prompt", prompts), ("generation", outputs)):
        lines.append(f"# TYPE vllm:request_{name}_tokens histogram")
        for bound, count in zip(("2000.0", "5000.0", "+Inf"), counts, strict=True):
            lines.append(f'vllm:request_{name}_tokens_bucket{{engine="0",le="{bound}",model_name="m"}} {count}.0')
        lines.append(f'vllm:request_{name}_tokens_count{{engine="0",model_name="m"}} {counts[2]}.0')
        lines.append(f'vllm:request_{name}_tokens_sum{{engine="0",model_name="m"}} {counts[2] * 3000}.0')
    return "\n".join(lines) + "\n"


def test_no_request_is_longer_than_the_longest_allowed_and_a_sum_of_quantiles_is_calculated() -> None:
    text = scrape(0, (0, 0, 0), (0, 0, 0)) + scrape(10, (0, 100, 100), (0, 100, 100))
    log = V1.replace("40,960", "8,192").replace("3.32x", "16.61x")
    case = read_case([Source("server.log", data=log.encode(), size=len(log)), Source("metrics.txt", data=text.encode(), size=len(text))], load(None))
    found = ledger(case.runs[0], case)
    assert found is not None
    assert found.observed is not None
    assert (found.observed.p50, found.observed.p95) == (3500 * 2, 8192), "not 4,850 + 4,850"
    assert {n: (f.tokens_per_request, f.basis) for n, f in found.fits.items() if n != "max_model_len"} == {
        "p50": (7000.0, "model"),
        "p95": (8192.0, "model"),
    }


def test_the_report_carries_the_account() -> None:
    memory = diagnose(case_of(V0), load(None)).memory[0]
    assert (memory.total_bytes, memory.kv_bytes_per_token, memory.kv_tokens) == (int(21.99 * GIB), 57344, 75856)
    assert memory.refs["weights_bytes"].line == 2
    assert memory.origins["headroom_bytes"] == "derived"
    assert round(memory.predicted["weights_bytes"] / GIB, 2) == 14.19
    assert memory.requests_that_fit["max_model_len"].requests == 11.49
