"""What-if by the memory model: no change moves nothing, more room is never fewer tokens, and what the log measured stays its measure."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.remedies.cases import CARD, GIB, case_of, finding, server
from vllm_doctor.capacity.kv import kv_bytes_per_token
from vllm_doctor.capacity.names import find_model
from vllm_doctor.capacity.setup import Setup
from vllm_doctor.capacity.size import size
from vllm_doctor.model.observations import Scalar
from vllm_doctor.model.report import Effect
from vllm_doctor.remedies.figures import Figures
from vllm_doctor.remedies.moves import Move
from vllm_doctor.remedies.outcome import first_that_starts, outlook
from vllm_doctor.remedies.resize import resized, through_model
from vllm_doctor.remedies.servers import OPTIONS, Server, capture_sizes, lora_bytes, starts
from vllm_doctor.remedies.simulate import effects, quantities, simulate
from vllm_doctor.ruleset.load import load_knowledge

NAMES = ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b", "google/gemma-3-12b-it", "Qwen/Qwen2.5-VL-7B-Instruct",
         "mistralai/Mixtral-8x7B-Instruct-v0.1", "deepseek-ai/DeepSeek-V2-Lite"]  # fmt: skip
QWEN: dict[str, Scalar] = {**CARD, "model.name": "Qwen/Qwen2.5-7B-Instruct"}
UNMEASURED: dict[str, Scalar] = {k: v for k, v in QWEN.items() if k in ("device.type", "memory.total", "memory.utilization", "model.name")}


@lru_cache
def setup(name: str, version: str, gib: int) -> Setup:
    model = find_model(name, load_knowledge()).model
    assert model is not None, name
    return Setup(model=model, total_bytes=gib * GIB, version=version, max_model_len=4096)


setups = st.builds(
    setup, st.sampled_from(NAMES), st.sampled_from(["0.6.6", "0.8.5", "0.10.2", "0.18.1", "0.21.0", "0.32.0"]), st.sampled_from([24, 48, 80])
)
parts = st.floats(0.1 * GIB, 20.0 * GIB) | st.none()
servers = st.builds(Server, setups, loras=st.integers(0, 4))
figures = st.builds(
    Figures,
    total=st.just(80.0 * GIB),
    utilization=st.just(0.9),
    weights=parts,
    activation=parts,
    non_torch=parts,
    graphs=parts,
    graphs_charged=parts,
    kv_rest=st.floats(-2.0 * GIB, 60.0 * GIB) | st.none(),
    kv_tokens=st.integers(16, 10**6).map(float) | st.none(),
    headroom=parts,
    max_len=st.just(4096.0),
    servers=servers.map(lambda s: (s,)),
)


@given(figures)
def test_without_a_change_everything_stays(before: Figures) -> None:
    told = effects(before, [])
    assert [e for e in told if e.before != e.after] == []
    ends = through_model(before, ())
    if before.kv_tokens is not None and before.kv_rest is not None:
        assert {ends.low.kv_tokens, ends.high.kv_tokens} == {before.kv_tokens}


def _now(s: Setup) -> dict[str, Move]:
    """Changes to what is in force already."""
    return {
        "--tensor-parallel-size": Move("--tensor-parallel-size", 1),
        "--pipeline-parallel-size": Move("--pipeline-parallel-size", 1),
        "--cpu-offload-gb": Move("--cpu-offload-gb", 0),
        "--max-model-len": Move("--max-model-len", s.max_model_len),
        "--enforce-eager": Move("--enforce-eager", False),
        "--kv-cache-dtype": Move("--kv-cache-dtype", "auto"),
    }


@given(figures, st.sampled_from(sorted(_now(setup(NAMES[0], "0.32.0", 24)))))
def test_a_change_to_what_is_in_force_moves_nothing(before: Figures, lever: str) -> None:
    found = resized(before, [_now(before.servers[0].setup)[lever]])
    still = through_model(before, ())
    assert found is not None
    assert (quantities(found.low), quantities(found.high)) == (quantities(still.low), quantities(still.high))


def _tokens(before: Figures, lever: str, to: Scalar) -> tuple[float, float]:
    found = resized(before, [Move(lever, to)])
    assert found is not None
    return found.low.kv_tokens or 0.0, found.high.kv_tokens or 0.0


MORE_ROOM: dict[str, list[Scalar]] = {
    "--gpu-memory-utilization": [0.5, 0.7, 0.9, 0.95],
    "--cpu-offload-gb": [0, 1, 4],
    "--kv-cache-dtype": ["auto", "fp8"],
    "--max-num-batched-tokens": [16384, 8192, 2048, 512],
    "--max-num-seqs": [1024, 256, 64, 16],
    "--kv-cache-memory-bytes": [GIB, 4 * GIB, 20 * GIB],
    "--max-loras": [8, 4, 1],
    "--enforce-eager": [False, True],
}
"""Values from less to more room for the pool."""


@settings(max_examples=200)
@given(figures, st.sampled_from(sorted(MORE_ROOM)))
def test_what_gives_the_pool_more_room_never_gives_it_fewer_tokens(before: Figures, lever: str) -> None:
    found = [_tokens(before, lever, to) for to in MORE_ROOM[lever]]
    if lever == "--max-num-batched-tokens" and before.servers[0].setup.model.sliding_window:
        return  # a smaller step needs fewer blocks of each window besides
    assert found == sorted(found, key=lambda f: f[0])
    assert found == sorted(found, key=lambda f: f[1])


def told(move: Move, facts: dict[str, Scalar], version: str | None = "0.10.2", generation: str | None = "V1", **more: object) -> dict[str, Effect]:
    run = server(version, facts=facts, generation=generation, **more)  # type: ignore[arg-type]
    case, evaluator = case_of(run)
    return {e.quantity: e for e in simulate(case, run, finding("kv-cache-exhaustion"), [move], evaluator)}


def test_the_pool_measured_moves_by_what_the_model_predicts() -> None:
    effect = told(Move("--gpu-memory-utilization", 0.95, 0.9), QWEN)["kv_cache.tokens"]
    assert (effect.before, effect.basis) == (102_976, "model")
    assert effect.after == pytest.approx(102_976 * (5.5 + 0.05 * 24) / 5.5, rel=0.005)


def test_measured_weights_are_divided_and_not_the_ones_of_the_model() -> None:
    lighter = {**QWEN, "memory.weights": 4 * GIB, "memory.kv_cache": int(15.5 * GIB), "kv_cache.tokens": 290_000}
    after = told(Move("--tensor-parallel-size", 2, 1), lighter)["kv_cache.tokens"].after
    assert isinstance(after, list)
    assert 2 * (15.5 + 2 - 0.7) / 15.5 * 290_000 <= after[0] <= after[1] <= 2 * (15.5 + 2 + 2) / 15.5 * 290_000


def test_without_a_measured_pool_both_ends_are_the_models_range() -> None:
    effect = told(Move("--kv-cache-dtype", "fp8", "auto"), {**UNMEASURED, "config.max-model-len": 8192})["kv_cache.tokens"]
    assert isinstance(effect.before, list)
    assert isinstance(effect.after, list)
    assert [b / a for a, b in zip(effect.before, effect.after, strict=True)] == [pytest.approx(2, rel=0.01)] * 2


def test_a_change_that_the_version_does_not_feel_is_not_told() -> None:
    assert told(Move("--enforce-eager", True), {**QWEN}) == {}  # 0.10.2 captures graphs outside the budget
    assert "kv_cache.tokens" in told(Move("--enforce-eager", True), {**QWEN}, "0.32.0")


def test_an_unknown_version_takes_both_ends() -> None:
    effect = told(Move("--enforce-eager", True), QWEN, None, None)["kv_cache.tokens"]
    assert isinstance(effect.after, list)
    assert effect.after[0] == pytest.approx(102_976, rel=0.005)
    assert effect.after[1] > 104_000


def test_the_pool_that_was_there_is_what_a_failed_start_lacked() -> None:
    facts = {**QWEN, "memory.kv_cache": int(-1.0 * GIB), "config.max-model-len": 8192}
    del facts["kv_cache.tokens"]
    effect = told(Move("--cpu-offload-gb", 2, 0), facts)["kv_cache.tokens"]
    assert (effect.before, effect.after) == (0, pytest.approx(1.0 * GIB / (56 * 1024), rel=0.01))


def test_stages_and_context_shards_have_numbers() -> None:
    stages = told(Move("--pipeline-parallel-size", 2, 1), QWEN)["kv_cache.tokens"].after
    assert isinstance(stages, list)
    assert 400_000 < stages[0] < stages[1] < 600_000  # half of the weights and half of the layers
    shards = told(Move("--decode-context-parallel-size", 4, 1), {**QWEN, "config.tensor-parallel-size": 16, "kv_cache.tokens": 411_904})[
        "kv_cache.tokens"
    ]
    assert shards.after == pytest.approx(4 * 411_904, rel=0.005)  # one of four KV heads on each GPU: 14 KiB per token


def test_adapters_take_what_their_matrices_take() -> None:
    model = find_model("meta-llama/Llama-3.1-8B-Instruct", load_knowledge()).model
    assert model is not None
    # q, k, v: 3 x 4096 in, 6144 out; o: 4096 in and out; gate and up: 2 x 4096 in, 2 x 14336 out; down: 14336 in, 4096 out
    each = 3 * 4096 + 6144 + 2 * 4096 + 2 * 4096 + 2 * 14336 + 14336 + 4096
    one = Server(Setup(model=model, total_bytes=24 * GIB), loras=1, rank=16)
    assert lora_bytes(one) == 2 * 16 * 32 * each
    facts = {**QWEN, "config.enable-lora": True, "config.max-loras": 8, "config.max-lora-rank": 64}
    slots, rank = (told(m, facts)["kv_cache.tokens"] for m in (Move("--max-loras", 4, 8), Move("--max-lora-rank", 32, 64)))
    assert slots == rank
    assert isinstance(slots.after, list)
    assert slots.after[0] > 115_000


def test_without_a_draft_its_weights_and_its_layers_are_the_pools() -> None:
    draft = '{"model": "Qwen/Qwen2.5-0.5B-Instruct", "num_speculative_tokens": 4}'
    effect = told(Move("--speculative-config", from_=draft, remove=True), {**QWEN, "config.speculative-config": draft})["kv_cache.tokens"]
    small = find_model("Qwen/Qwen2.5-0.5B-Instruct", load_knowledge()).model
    big = find_model("Qwen/Qwen2.5-7B-Instruct", load_knowledge()).model
    assert small is not None
    assert big is not None
    layers = 1 + kv_bytes_per_token(small) / kv_bytes_per_token(big)
    after = effect.after if isinstance(effect.after, list) else [effect.after]
    assert 102_976 * (5.5 + 0.8) / 5.5 * layers < after[0] <= after[-1] < 102_976 * (5.5 + 1.3) / 5.5 * layers  # type: ignore[operator]


def test_a_server_of_text_needs_no_room_for_pictures() -> None:
    facts = {**QWEN, "model.name": "Qwen/Qwen2.5-VL-7B-Instruct"}
    no = Move("--limit-mm-per-prompt", '{"image":0,"video":0}')
    after = told(no, facts, "0.11.0")["kv_cache.tokens"].after
    assert isinstance(after, list)
    assert 102_976 < after[0] <= after[1] < 150_000
    assert told(Move("--limit-mm-per-prompt", '{"image":2}'), facts, "0.11.0") == {}


def test_what_lies_in_host_memory_makes_each_step_longer() -> None:
    before = Figures(step=0.1, itl_p99=0.05, kv_bytes=GIB, kv_tokens=1000.0, bytes_per_token=GIB / 1000)
    effect = {e.quantity: e for e in effects(before, [Move("--cpu-offload-gb", 1, 0)])}
    assert effect["step.duration"].after == [pytest.approx(0.1 + GIB / 25e9), pytest.approx(0.1 + GIB / 12e9)]
    assert effect["latency.itl.p99"].basis == "rule-of-thumb"


@pytest.mark.parametrize("lever", sorted(OPTIONS))
def test_a_value_that_means_nothing_changes_nothing(lever: str) -> None:
    start = Server(setup(NAMES[0], "0.32.0", 24), loras=2)
    before = Figures(kv_rest=5.0 * GIB, kv_tokens=100_000.0, servers=(start,))
    if lever in ("--kv-cache-dtype", "quantization", "--enforce-eager", "--enable-expert-parallel", "--disable-hybrid-kv-cache-manager"):
        return  # any word is a type or a checkpoint's name here, and any but `false` switches on
    for value in ("", "nonsense", "nan", "-5", "1e400"):
        found = resized(before, [Move(lever, value)])
        assert found is not None
        if lever in ("--enable-chunked-prefill", "--enable-lora", "--speculative-config", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"):
            continue  # switches
        assert (found.low.kv_tokens, found.high.kv_tokens) == (100_000, 100_000), value


def test_graphs_are_captured_for_the_sizes_that_vllm_takes() -> None:
    assert capture_sizes(8) == (1, 2, 4, 8)
    assert (len(capture_sizes(256)), len(capture_sizes(512))) == (35, 51)
    assert capture_sizes(512)[-3:] == (480, 496, 512)


def test_the_first_value_that_starts_is_sought_at_the_cautious_end_and_then_as_expected() -> None:
    large = find_model("Qwen/Qwen2.5-32B-Instruct", load_knowledge()).model
    assert large is not None
    server_ = Server(Setup(model=large, total_bytes=24 * GIB, version="0.10.2", max_model_len=8192))
    before = Figures(max_len=8192.0, servers=(server_,))
    assert not starts(server_)
    assert first_that_starts(before, "--tensor-parallel-size", [2, 4, 8]) == 4
    assert first_that_starts(before, "--gpu-memory-utilization", [0.95]) is None
    # of a server that starts as it is the model does not see what failed
    assert outlook(Figures(max_len=8192.0, servers=(Server(setup(NAMES[0], "0.10.2", 80)),)), [Move("--tensor-parallel-size", 2)]) is None


def test_a_start_succeeds_for_sure_only_where_rounding_and_the_card_do_not_decide() -> None:
    card = Server(structs.replace(setup(NAMES[0], "0.10.2", 24), gpu_memory_utilization=0.85))
    need = 4096 * 56 * 1024

    def after(left: float, least: float | None = None) -> str | None:
        f = Figures(total=24.0 * GIB, total_least=least, utilization=0.85, weights=14.0 * GIB, activation=2.0 * GIB, non_torch=0.1 * GIB,
                    kv_rest=left, max_len=4096.0, no_pool=True, servers=(card,))  # fmt: skip
        return outlook(f, [Move("--gpu-memory-utilization", 0.9, 0.85)])

    more = 0.05 * 24 * GIB
    assert after(need - more + 0.02 * GIB) == "starts"
    assert after(need - more + 0.002 * GIB) == "may-start"  # what is printed is within five thousandths
    assert after(need - more - 0.02 * GIB) == "fails"
    assert after(need - more + 0.02 * GIB, 23.0 * GIB) == "may-start"  # some cards of the kind have a GiB less, and 0.05 of it are missing


@settings(max_examples=200)
@given(figures, st.sampled_from(sorted(MORE_ROOM)), st.integers(0, 3))
def test_no_change_leaves_more_than_the_budget_without_what_was_measured(before: Figures, lever: str, at: int) -> None:
    to = MORE_ROOM[lever][min(at, len(MORE_ROOM[lever]) - 1)]
    found = resized(before, [Move(lever, to)])
    still = through_model(before, ())
    assert found is not None
    if lever in ("--kv-cache-memory-bytes", "--gpu-memory-utilization", "--cpu-offload-gb", "--kv-cache-dtype"):
        return
    budget = max(size(s.setup).budget for s in before.servers)  # of the version's own share of the card, where none is given
    ceiling = budget - (before.weights or 0.0)
    assert (found.high.kv_bytes or 0.0) <= max(ceiling, still.high.kv_bytes or 0.0) + 2
