"""What is advised, in which order, and what is said not to help: by engine, by phase, by what sets the size of the pool."""

from __future__ import annotations

import pytest

from tests.remedies.cases import CARD, GIB, RULES, cards, case_of, finding, server
from vllm_doctor import analyze
from vllm_doctor.model.case import Run
from vllm_doctor.model.judgement import Advice
from vllm_doctor.model.observations import Scalar
from vllm_doctor.model.report import Report
from vllm_doctor.remedies.advise import advise, not_helpful

QWEN: dict[str, Scalar] = {**CARD, "model.name": "Qwen/Qwen2.5-7B-Instruct"}


def advised(run: Run, cause: str, variant: str | None = None, card: str = "NVIDIA GeForce RTX 4090") -> dict[str, Advice]:
    case, evaluator = case_of(run, cards(card) if card else ())
    return {a.remedy: a for a in advise(case, finding(cause, variant), RULES, evaluator)}


def against(run: Run, cause: str, option: str, variant: str | None = None) -> list[str]:
    case, evaluator = case_of(run)
    return [item.because.en for item, _ in not_helpful(case, finding(cause, variant), RULES, evaluator) if item.flag == option]


def reported(tmp_path_text: str, folder: object) -> Report:
    from pathlib import Path

    path = Path(str(folder)) / "server.log"
    path.write_text(tmp_path_text, encoding="utf-8")
    return analyze(str(path))


@pytest.mark.parametrize("cause", ["kv-cache-exhaustion", "runtime-activation-oom"])
@pytest.mark.parametrize(
    ("version", "generation", "length", "said"),
    [("0.6.6", "V0", 32768, False), ("0.6.6", "V0", 65536, True), ("0.10.2", "V1", 32768, True), (None, None, 32768, False)],
)
def test_a_shorter_length_is_called_useless_only_where_the_profile_holds_a_chunk(
    cause: str, version: str | None, generation: str | None, length: int, said: bool
) -> None:
    run = server(version, facts={**QWEN, "config.max-model-len": length}, generation=generation)
    assert bool(against(run, cause, "--max-model-len")) is said


def test_chunks_make_the_pool_of_a_full_v0_server_larger() -> None:
    run = server("0.6.6", facts={**QWEN, "config.max-model-len": 32768, "memory.activation": 4 * GIB}, generation="V0")
    pool = next(e for e in advised(run, "kv-cache-exhaustion")["chunked-profile"].effect if e.quantity == "kv_cache.tokens")
    assert pool.before == 102_976
    assert isinstance(pool.after, list)
    assert pool.after[0] > 102_976
    assert "chunked-profile" not in advised(server("0.10.2", facts=QWEN), "kv-cache-exhaustion")


def test_a_pool_in_bytes_has_one_lever_and_the_share_of_the_card_is_none() -> None:
    given: dict[str, Scalar] = {"kv-cache-memory-bytes": int(5.5 * GIB)}
    free: dict[str, Scalar] = {"memory.free_at_start": int(23.5 * GIB), "memory.graphs": GIB // 2}
    for cause in ("kv-cache-exhaustion", "startup-kv-too-small"):
        (because,) = against(server(facts=QWEN, flags=given), cause, "--gpu-memory-utilization")
        assert because == "it has no say while --kv-cache-memory-bytes sets the size of the KV pool"
        (because,) = against(server(facts=QWEN), cause, "--gpu-memory-utilization")
        assert because.startswith("lowering it: ")
    run = server(facts={**QWEN, **free}, flags=given)
    # 23.5 free - 14 weights - 2 activation - 0.1 other - 0.5 graphs - 0.5 margin = 6.4 GiB, in steps of an eighth
    assert (advised(run, "kv-cache-exhaustion")["more-kv-bytes"].from_, advised(run, "kv-cache-exhaustion")["more-kv-bytes"].to) == (
        int(5.5 * GIB),
        6.375 * GIB,
    )
    assert advised(server(flags=given), "kv-cache-exhaustion")["more-kv-bytes"].to is None
    assert "more-kv-bytes" not in advised(server(facts={**QWEN, **free}), "kv-cache-exhaustion")


SAMPLER = 'File "/usr/lib/python3/dist-packages/vllm/v1/worker/gpu_model_runner.py", line 2200, in _get_prompt_logprobs_dict'
WARMUP = 'File "/usr/lib/python3/dist-packages/vllm/v1/worker/gpu_model_runner.py", line 2990, in _dummy_sampler_run'
LOG = """(APIServer pid=1) INFO 07-02 14:28:00 [api_server.py:1896] vLLM API server version 0.10.2
(APIServer pid=1) INFO 07-02 14:28:00 [utils.py:326] non-default args: {{'model': 'Qwen/Qwen2.5-7B-Instruct', 'max_num_seqs': 256}}
{served}(EngineCore_DP0 pid=311) ERROR 07-02 14:30:21 [core.py:718] Traceback (most recent call last):
(EngineCore_DP0 pid=311) ERROR 07-02 14:30:21 [core.py:718]   {frame}
(EngineCore_DP0 pid=311) ERROR 07-02 14:30:21 [core.py:718] \
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 \
has a total capacity of 23.64 GiB of which 712.00 MiB is free. Including non-PyTorch memory, this process has 22.90 GiB memory in use.
"""
SERVED = """(APIServer pid=1) INFO:     Application startup complete.
(APIServer pid=1) INFO 07-02 14:30:15 [loggers.py:123] Engine 000: \
Avg prompt throughput: 1840.0 tokens/s, Avg generation throughput: 650.0 tokens/s, \
Running: 48 reqs, Waiting: 0 reqs, GPU KV cache usage: 39.0%, Prefix cache hit rate: 22.0%
"""


def test_logits_of_a_prompt_are_the_requests_and_those_of_the_warm_up_the_slots(tmp_path: object) -> None:
    serving = reported(LOG.format(served=SERVED, frame=SAMPLER), tmp_path).findings[0]
    assert serving.id == "sampler-logits-oom"
    assert [r.id for r in serving.remedies] == ["no-prompt-logprobs", "smaller-prompt-steps", "lower-gpu-memory-utilization"]
    start = reported(LOG.format(served="", frame=WARMUP), tmp_path).findings[0]
    assert start.id == "sampler-logits-oom"
    assert start.remedies[0].id == "fewer-dummy-rows"
    assert "no-prompt-logprobs" not in [r.id for r in start.remedies]


@pytest.mark.parametrize(("free", "value"), [(0.7, 4096), (0.2, 1024), (0.0, 512)])
def test_a_step_that_ran_out_of_memory_gets_no_more_tokens_than_there_was_room_for(free: float, value: int) -> None:
    oom: dict[str, Scalar] = {"requested": GIB, "free": free * GIB, "total": 24 * GIB}
    run = server(facts=QWEN, flags={"max-num-batched-tokens": 8192, "max-num-seqs": 64}, events={"oom": oom})
    assert advised(run, "runtime-activation-oom")["smaller-steps"].to == value


def test_a_step_without_memory_is_another_face_of_long_prompts_with_its_own_words_and_checks() -> None:
    oom: dict[str, Scalar] = {"requested": GIB, "free": GIB // 2, "total": 24 * GIB}
    run = server(facts=QWEN, flags={"max-num-batched-tokens": 8192, "max-num-seqs": 64}, events={"oom": oom})
    memory, latency = (set(advised(run, "prefill-spike", face)) for face in ("oom", "latency"))
    assert memory & {"smaller-steps", "lower-max-num-batched-tokens", "limit-long-prefill"} == {"smaller-steps"}
    assert latency & {"smaller-steps", "lower-max-num-batched-tokens", "limit-long-prefill"} == {"lower-max-num-batched-tokens", "limit-long-prefill"}
    (said,) = against(run, "prefill-spike", "--max-num-seqs", "oom")
    assert "stall" not in said
    cause = next(c for c in RULES.causes if c.id == "prefill-spike")
    assert cause.faces["oom"].title.en == "A step full of prompt tokens ran out of GPU memory"
    assert set(cause.faces) <= {item.variant for item in cause.for_}


CHANGED = (
    "(EngineCore_DP0 pid=3) ERROR 10-28 15:47:24 [core.py:718] AssertionError: Error in memory profiling. Initial free memory 70.25 GiB, current "
    "free memory 75.25 GiB. This happens when other processes sharing the same container release GPU memory while vLLM is profiling during "
    "initialization.\n"
)


def test_who_gave_memory_back_is_not_to_be_stopped(tmp_path: object) -> None:
    (found,) = reported(CHANGED, tmp_path).findings
    assert (found.id, [r.id for r in found.remedies]) == ("startup-free-memory-taken", ["nobody-moves-while-it-profiles"])


def test_a_shortage_that_the_server_does_not_explain_may_be_a_second_start() -> None:
    nothing: dict[str, dict[str, Scalar]] = {"startup.no_kv_memory": {}}
    left: dict[str, Scalar] = {"device.type": "cuda", "memory.kv_cache": -3 * GIB}
    assert next(iter(advised(server("0.28.0", facts=left, events=nothing), "startup-kv-too-small", card=""))) == "start-apart"
    # of this model nobody else need have taken anything: 14 GiB of weights do not fit in 0.6 of 24 GiB
    own: dict[str, Scalar] = {**left, "memory.total": 24 * GIB, "memory.utilization": 0.6, "model.name": "Qwen/Qwen2.5-7B-Instruct"}
    assert "start-apart" not in advised(server("0.28.0", facts=own, events=nothing), "startup-kv-too-small")
    assert "start-apart" not in advised(server("0.4.2", facts=left, events=nothing, generation="V0"), "startup-kv-too-small")


def test_notes_of_options_are_for_users() -> None:
    assert [f.name for f in RULES.flags if "advise" in f.notes.lower() or "推荐它" in f.words("zh").notes] == []


FAILED: dict[str, Scalar] = {
    "device.type": "cuda", "memory.total": 24 * GIB, "memory.utilization": 0.9, "memory.weights": 14 * GIB, "memory.activation": 2 * GIB,
    "memory.non_torch": GIB // 10, "model.name": "Qwen/Qwen2.5-7B-Instruct", "config.max-model-len": 131_072,
}  # fmt: skip
NEED = 131_072 * 56 * 1024


@pytest.mark.parametrize(
    ("share", "fp8", "outlook"),
    [(0.45, False, None), (0.49, False, None), (0.5, True, "may-start"), (0.51, True, "starts")],
)
def test_twice_the_tokens_are_advised_only_where_they_are_enough(share: float, fp8: bool, outlook: str | None) -> None:
    event: dict[str, Scalar] = {"needed": NEED, "available": int(share * NEED), "max_model_len": 131_072}
    run = server("0.14.1", facts={**FAILED, "memory.kv_cache": int(share * NEED)}, events={"startup.kv_below_max_len": event})
    found = advised(run, "startup-kv-too-small")
    assert ("fp8-kv-cache" in found) is fp8
    if fp8:
        assert found["fp8-kv-cache"].outlook == outlook
    assert found["lower-max-model-len"].outlook == "starts"


def test_what_starts_the_server_only_as_expected_says_so_in_its_risk() -> None:
    from vllm_doctor.narrate import Narrator

    case, _ = case_of(server())
    for language, maybe, room, nearest in (
        ("en", "at their cautious end it does not", "how much of it one request takes is not known", "needs another change besides"),
        ("zh", "保守估计", "一个请求要占用多少", "配合其他改动"),
    ):
        narrator = Narrator(case, RULES, language)
        told = [narrator.doubt(Advice("x", outlook=o)) for o in ("starts", "may-start", "has-room", "fails", None)]
        assert [len(t) for t in told] == [0, 1, 1, 1, 0]
        assert maybe in told[1][0]
        assert room in told[2][0]
        assert nearest in told[3][0]


def test_a_share_that_makes_up_for_the_stated_deficit_of_an_unknown_model_has_room() -> None:
    facts: dict[str, Scalar] = {"device.type": "cuda", "memory.total": 8 * GIB, "memory.utilization": 0.7, "memory.kv_cache": int(-1.05 * GIB)}
    found = advised(server("0.7.3", facts=facts, events={"startup.no_kv_memory": {}}, generation="V0"), "startup-kv-too-small")
    assert (found["raise-gpu-memory-utilization"].to, found["raise-gpu-memory-utilization"].outlook) == (0.9, "has-room")


def test_a_start_that_no_change_cures_is_told_what_comes_nearest() -> None:
    nothing: dict[str, dict[str, Scalar]] = {"startup.no_kv_memory": {}}
    facts = {**FAILED, "memory.kv_cache": -9 * GIB, "memory.utilization": 0.95, "memory.weights": 10 * GIB}
    found = advised(server("0.14.1", facts=facts, events=nothing), "startup-kv-too-small")
    assert found
    assert {a.outlook for a in found.values()} <= {"starts", "may-start", "has-room", None} or {a.outlook for a in found.values()} == {"fails"}


def test_a_start_that_never_had_a_pool_had_no_tokens_in_it() -> None:
    nothing: dict[str, dict[str, Scalar]] = {"startup.no_kv_memory": {}}
    facts = {**FAILED, "memory.kv_cache": -GIB // 2, "config.max-model-len": 4096}
    found = advised(server("0.14.1", facts=facts, events=nothing), "startup-kv-too-small")
    pools = [(e.before, e.after) for a in found.values() for e in a.effect if e.quantity == "kv_cache.tokens"]
    assert pools
    assert {before for before, _ in pools} == {None}
    assert all(after for _, after in pools)


def test_a_figure_that_is_not_known_has_no_basis() -> None:
    from vllm_doctor.model.report import Effect
    from vllm_doctor.reports.words import Words

    words = Words("en")
    assert words.effect(Effect("kv_cache.tokens", "tokens", 1000, None, "model")) == "KV cache: now 1,000 tokens, after the change not known"
    assert words.effect(Effect("kv_cache.tokens", "tokens", 1000, 2000, "model")) == "KV cache: 1,000 tokens → 2,000 tokens (calculated)"
