"""Values that are solved for: the figures of a case in, the value a person would type out."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.judging import ROOT
from tests.remedies.cases import CARD, GIB, RULES, cards, case_of, finding, server
from vllm_doctor import analyze
from vllm_doctor.model.case import Known, Unknown
from vllm_doctor.model.observations import Bounded, Event, Ref, Scalar
from vllm_doctor.remedies.advise import _plain
from vllm_doctor.remedies.conditions import CONDITIONS
from vllm_doctor.remedies.figures import look
from vllm_doctor.remedies.solve_oom import captured_share, graphs_to_come
from vllm_doctor.remedies.solvers import SOLVERS

Figures = dict[str, Scalar]


def solved(name: str, cause: str = "startup-kv-too-small", variant: str | None = None, gpus: int = 0, **more: object) -> object:
    run = server(**more)  # type: ignore[arg-type]
    case, evaluator = case_of(run, cards("NVIDIA L4", gpus))
    answer = SOLVERS[name](case, run, finding(cause, variant), evaluator)
    return "no room" if answer is None else "unknown" if isinstance(answer, Unknown) else _plain(answer)


def test_every_name_in_the_rules_has_its_function() -> None:
    solvers = {r.solve for r in RULES.remedies if r.solve}
    conditions = {n for r in RULES.remedies for n in r.where} | {n for c in RULES.causes for item in c.not_remedies for n in item.where}
    assert solvers == set(SOLVERS)
    assert conditions == set(CONDITIONS)


TOO_LONG = "startup.kv_below_max_len"


@pytest.mark.parametrize(
    ("event", "value"),
    [
        ({"needed": 4 * GIB, "available": GIB, "max_model_len": 32768, "estimated_length": 8190}, 7936),
        ({"max_model_len": 32768, "capacity": 20_000}, 19_968),
        ({"needed": 4 * GIB, "available": GIB, "max_model_len": 32768}, 7936),
        ({"needed": 0.01 * GIB, "available": 0.0, "max_model_len": 32768}, "unknown"),
    ],
)
def test_the_longest_length_is_vllms_own_or_in_proportion_rounded_down(event: Figures, value: object) -> None:
    assert solved("max_model_len_that_fits", events={TOO_LONG: event}) == value


def test_a_printed_pool_smaller_than_one_request_is_the_length() -> None:
    assert solved("max_model_len_that_fits", facts={**CARD, "kv_cache.tokens": 5000}) == 4864


@pytest.mark.parametrize(
    ("facts", "event", "value"),
    [
        # 24 GiB x 0.9 lacks 0.5 GiB: 0.0209 of the card
        ({}, {"needed": 1.5 * GIB, "available": GIB}, 0.93),
        # it lacks more than 0.95 gives
        ({}, {"needed": 4 * GIB, "available": GIB}, "no room"),
        ({"memory.utilization": 0.95}, {"needed": 1.5 * GIB, "available": GIB}, "no room"),
        ({"memory.free_at_start": int(21.7 * GIB)}, {"needed": 1.5 * GIB, "available": GIB}, "no room"),
    ],
)
def test_utilization_rises_by_what_the_start_lacked_and_no_further_than_the_card_allows(facts: Figures, event: Figures, value: object) -> None:
    assert solved("more_utilization", facts={**CARD, **facts}, events={TOO_LONG: event}) == value


@pytest.mark.parametrize(("free", "value"), [(12.0, 0.49), (23.9, 0.99), (2.0, "no room")])
def test_a_start_may_ask_for_what_is_free(free: float, value: object) -> None:
    event: Figures = {"free": free * GIB, "total": 24 * GIB, "budget": 21.6 * GIB}
    assert solved("utilization_that_is_free", "startup-free-memory-taken", events={"startup.free_below_budget": event}) == value


def test_a_start_that_lacks_more_than_095_gives_gets_no_utilization() -> None:
    none_left = {"startup.no_kv_memory": {}}
    failed = {k: v for k, v in CARD.items() if k != "kv_cache.tokens"} | {"model.name": "Qwen/Qwen2.5-7B-Instruct"}
    lacking = {**failed, "memory.kv_cache": int(-0.2 * GIB)}  # and 0.44 GiB for 8,192 tokens: 0.027 of the card
    assert solved("more_utilization", "startup-kv-too-small", facts=lacking, events=none_left) == 0.93
    assert solved("more_utilization", "startup-kv-too-small", facts={**failed, "memory.kv_cache": int(-1.2 * GIB)}, events=none_left) == "no room"


def test_a_start_whose_card_or_shortage_is_unknown_gets_no_made_up_step() -> None:
    none_left = {"startup.no_kv_memory": {}}
    known = {"memory.utilization": 0.9}
    assert solved("more_utilization", "startup-kv-too-small", facts=known, events=none_left) == "unknown"
    assert solved("more_utilization", "startup-kv-too-small", facts={**known, "memory.kv_cache": -GIB}, events=none_left) == "unknown"
    assert solved("more_utilization", "startup-kv-too-small", facts={**known, "memory.kv_cache": -20 * GIB}, events=none_left) == "no room"


def test_where_nobody_knows_what_a_token_takes_the_usual_share_may_start_if_it_makes_up_for_the_deficit_with_a_margin() -> None:
    none_left: dict[str, Figures] = {"startup.no_kv_memory": {}}
    small: Figures = {"memory.total": 8 * GIB, "memory.utilization": 0.7, "config.max-model-len": 4096}
    large: Figures = {"memory.total": 24 * GIB, "memory.utilization": 0.8}
    for facts, value in (
        ({**small, "memory.kv_cache": int(-1.05 * GIB)}, 0.9),  # 0.84 leaves the first block, 0.9 half a GiB
        ({**small, "memory.kv_cache": int(-1.3 * GIB)}, "unknown"),  # 0.9 would leave 0.3 GiB
        ({**small, "memory.kv_cache": int(-2.2 * GIB)}, "no room"),
        ({**small, "memory.kv_cache": int(-0.5 * GIB), "memory.free_at_start": int(7.0 * GIB)}, 0.87),
        ({**large, "memory.kv_cache": int(-2.5 * GIB)}, 0.95),
        ({**large, "memory.kv_cache": int(-1.5 * GIB)}, 0.9),
    ):
        assert solved("more_utilization", "startup-kv-too-small", facts=facts, events=none_left) == value


def test_no_share_of_the_card_is_told_where_the_weights_alone_do_not_fit() -> None:
    model = {"model.name": "Qwen/Qwen2.5-7B-Instruct"}  # 14.2 GiB of weights
    for free, value in ((60.0, 0.75), (10.0, "no room")):
        event = {"free": free * GIB, "total": 79.1 * GIB, "budget": 71.2 * GIB}
        assert solved("utilization_that_is_free", "startup-free-memory-taken", facts=model, events={"startup.free_below_budget": event}) == value


def test_in_service_utilization_leaves_context_and_graphs_their_room() -> None:
    assert solved("more_utilization", "kv-cache-exhaustion", facts=CARD) == 0.95
    assert solved("more_utilization", "kv-cache-exhaustion", facts={**CARD, "memory.graphs": GIB}) == 0.91
    assert solved("more_utilization", "kv-cache-exhaustion", facts={**CARD, "memory.graphs": 2 * GIB}) == "no room"
    assert solved("more_utilization", "kv-cache-exhaustion", facts={"memory.utilization": 0.9}) == 0.93


def test_utilization_falls_by_what_the_failed_allocation_lacked() -> None:
    oom: Figures = {"requested": 2 * GIB, "free": GIB, "total": 24 * GIB}
    assert solved("less_utilization", "allocator-fragmentation", facts=CARD, events={"oom": oom}) == 0.83
    assert solved("less_utilization", "allocator-fragmentation", facts={"memory.utilization": 0.9}) == 0.87


def test_no_utilization_helps_where_the_pool_is_smaller_than_the_shortage() -> None:
    oom: Figures = {"requested": 8 * GIB, "free": GIB, "total": 24 * GIB}
    assert solved("less_utilization", "allocator-fragmentation", facts=CARD, events={"oom": oom}) == "no room"


@pytest.mark.parametrize(
    ("budget", "seqs", "variant", "value"),
    [
        (8192, 64, "latency", 2048),
        (8192, 64, "oom", 4096),
        (8192, 3000, "latency", 4096),
        (1024, 64, "latency", 512),
        (512, 64, "latency", "no room"),
    ],
)
def test_the_token_budget_is_a_power_of_two_within_bounds(budget: int, seqs: int, variant: str, value: object) -> None:
    flags: Figures = {"max-num-batched-tokens": budget, "max-num-seqs": seqs}
    assert solved("token_budget_for_step", "prefill-spike", variant, flags=flags) == value


@pytest.mark.parametrize(
    ("budget", "activation", "lacking", "value"),
    [(16384, 4.0, 1.0, 8192), (16384, 4.0, 3.5, 1024), (16384, 1.0, 2.0, "no room"), (1024, 4.0, 1.0, 512), (512, 4.0, 1.0, "no room")],
)
def test_the_profile_budget_frees_what_was_lacking_and_never_rises(budget: int, activation: float, lacking: float, value: object) -> None:
    facts = {**CARD, "memory.activation": int(activation * GIB)}
    event: Figures = {"needed": (1 + lacking) * GIB, "available": GIB}
    flags: Figures = {"max-num-batched-tokens": budget, "max-num-seqs": 64}
    assert solved("profile_budget", facts=facts, flags=flags, events={TOO_LONG: event}) == value


def test_a_budget_without_a_printed_peak_is_not_raised_to_2048() -> None:
    assert solved("profile_budget", flags={"max-num-batched-tokens": 1024}, events={TOO_LONG: {}}) == "no room"
    assert solved("profile_budget", flags={"max-num-batched-tokens": 8192}, events={TOO_LONG: {}}) == "unknown"
    short: Figures = {"needed": 2 * GIB, "available": GIB}  # nothing says that a smaller step frees a gigabyte
    assert solved("profile_budget", flags={"max-num-batched-tokens": 8192}, events={TOO_LONG: short}) == "no room"


def test_gpus_are_those_that_were_seen() -> None:
    assert solved("all_gpus", gpus=6) == 4
    assert solved("all_gpus") == "unknown"
    assert solved("replicas_on_gpus", gpus=6, flags={"tensor-parallel-size": 2}) == 3


def test_offloading_takes_what_was_lacking_but_no_more_than_half_of_the_weights() -> None:
    assert solved("offload_shortfall", facts=CARD, events={TOO_LONG: {"needed": 3.5 * GIB, "available": GIB}}) == 3
    assert solved("offload_shortfall", facts=CARD, events={TOO_LONG: {"needed": 13.5 * GIB, "available": GIB}}) == "no room"


def test_values_are_typed_as_people_type_them() -> None:
    assert [_plain(v) for v in (Known(64.0), Known(0.93), "a,b", Unknown("x"), None)] == [64, 0.93, "a,b", None, None]


def test_what_another_process_holds_must_be_free_at_the_next_start() -> None:
    folder = ROOT / "fixtures" / "oom-foreign-process-0.14"
    report = analyze(str(folder / "server.log"))
    finding = report.findings[0]
    assert finding.id == "other-process-on-gpu"
    others = 44.39 - 0.06 - 37.60  # GiB: capacity, free, this process, as the message says
    values = [r.change.to for r in finding.remedies if r.change and r.change.flag == "--gpu-memory-utilization"]
    assert values
    assert all(v is not None and float(v) * 44.39 <= 44.39 - others for v in values)


GRAPHS: Figures = {"requested": 2 * 2**20, "free": 2**19, "total": 24 * GIB, "private_pools": 0.5 * GIB}
FULL = {**CARD, "memory.utilization": 0.97}
BAR = "Capturing CUDA graph shapes:  {share}|##   | {done}/67 [00:04<00:12,  3.21it/s]"


def test_all_graphs_get_their_room_and_not_only_the_allocation_that_failed() -> None:
    # 3 GiB by rule of thumb, of which half a GiB was captured: 2.5 of 24 GiB
    assert solved("room_for_graphs", "cudagraph-oom", facts=FULL, events={"oom": GRAPHS}) == 0.86
    # the memory model knows better what a model of 28 layers may take, at its upper end
    known = solved("room_for_graphs", "cudagraph-oom", facts={**FULL, "model.name": "Qwen/Qwen2.5-7B-Instruct"}, events={"oom": GRAPHS})
    assert isinstance(known, float)
    assert 0.90 <= known <= 0.95
    assert solved("room_for_graphs", "cudagraph-oom", facts={"memory.utilization": 0.97}, events={"oom": {}}) == "unknown"
    assert solved("room_for_graphs", "cudagraph-oom", facts={**FULL, "memory.kv_cache": 2 * GIB}, events={"oom": GRAPHS}) == "no room"


def test_the_bar_of_the_capture_says_how_much_is_still_to_come() -> None:
    run = server(facts=FULL, events={"oom": GRAPHS})
    begun = Event("startup.capturing", Ref("server.log", 3, BAR.format(share="0%", done=0)), {})
    half = Event("startup.capturing", Ref("server.log", 4, BAR.format(share="50%", done=33)), {})
    at = structs.replace(run, events={**run.events, "startup.capturing": Bounded.of(begun, half)})
    assert captured_share(run) is None
    assert captured_share(structs.replace(run, events={"startup.capturing": Bounded.of(begun)})) is None
    assert captured_share(at) == 33 / 67
    # half a GiB for 33 of 67: as much again, and a margin
    case, evaluator = case_of(at)
    assert graphs_to_come(at, look(case, at, finding("cudagraph-oom"), evaluator)) == pytest.approx(0.5 * GIB * 34 / 33 + 0.5 * GIB)


def test_dummy_rows_fall_to_the_usual_number_or_a_quarter() -> None:
    oom = {"startup.sampler_oom": {"requests": 1024}}
    assert solved("fewer_rows", "sampler-logits-oom", events=oom) == 256
    assert [solved("fewer_rows", "sampler-logits-oom", flags={"max-num-seqs": n}) for n in (512, 256, 100, 64, 16)] == [256, 64, 16, 16, "no room"]
    assert solved("fewer_rows", "sampler-logits-oom") == "unknown"  # 256 or 1,024, as the card is


def test_the_profile_gets_as_many_tokens_as_there_was_room_for() -> None:
    flags: Figures = {"max-num-batched-tokens": 16384, "max-num-seqs": 64}
    lacking: Figures = {"requested": 4 * GIB, "free": GIB, "total": 24 * GIB}
    assert solved("fewer_profile_tokens", "profile-oom", flags=flags, facts=CARD, events={"oom": lacking}) == 4096
    assert solved("fewer_profile_tokens", "profile-oom", flags=flags) == 8192
    assert solved("fewer_profile_tokens", "profile-oom", flags={"max-num-batched-tokens": 512, "max-num-seqs": 64}) == "no room"


@pytest.mark.parametrize(
    ("version", "given", "value"),
    [
        ("0.10.2", '{"image": 12, "video": 0}', '{"image":6,"video":0}'),
        ("0.10.2", "{'image': 12, 'video': 0}", '{"image":6,"video":0}'),
        ("0.7.3", "image=4,video=1", "image=2,video=1"),
        ("0.10.2", None, '{"image":1,"video":0}'),
        ("0.10.2", '{"image": 1}', "no room"),
        ("0.10.2", '{"image": "many"}', "unknown"),
        (None, None, "unknown"),
    ],
)
def test_media_are_halved_in_the_form_of_the_version(version: str | None, given: str | None, value: object) -> None:
    flags: Figures = {"limit-mm-per-prompt": given} if given else {}
    assert solved("fewer_media", "mm-encoder-oom", version=version, flags=flags) == value


def test_a_server_of_text_limits_every_medium_to_none() -> None:
    assert solved("no_media") == '{"image":0,"video":0}'
    assert solved("no_media", flags={"limit-mm-per-prompt": '{"image":0,"video":0}'}) == "no room"


QWEN = {"device.type": "cuda", "memory.total": 24 * GIB, "config.max-model-len": 8192}


def test_ranks_are_those_that_divide_the_heads() -> None:
    seven: Figures = {**QWEN, "model.name": "Qwen/Qwen2.5-7B-Instruct"}  # 28 heads, 4 of KV
    assert solved("all_gpus", "kv-cache-exhaustion", gpus=8, facts=seven) == 4
    half: Figures = {**QWEN, "model.name": "Qwen/Qwen2.5-0.5B-Instruct"}  # 14 heads, 2 of KV
    assert solved("all_gpus", "kv-cache-exhaustion", gpus=4, facts=half) == 2
    assert solved("stages", "kv-cache-exhaustion", gpus=4, facts=half) == "no room"
    split: Figures = {**half, "config.tensor-parallel-size": 2}
    assert solved("all_gpus", "kv-cache-exhaustion", gpus=8, facts=split) == "no room"
    assert solved("stages", "kv-cache-exhaustion", gpus=8, facts=split) == 4


def test_without_a_dump_the_model_says_how_many_gpus_the_start_needs() -> None:
    large: Figures = {**QWEN, "model.name": "Qwen/Qwen2.5-32B-Instruct"}
    assert solved("all_gpus", "startup-weights-too-large", facts=large) == 4
    assert solved("all_gpus", "kv-cache-exhaustion", facts=large) == "unknown"


def test_context_parallelism_is_for_caches_that_are_copied() -> None:
    def shards(model: str, ranks: int, version: str = "0.11.1") -> object:
        facts: Figures = {**QWEN, "memory.total": 141 * GIB, "model.name": model, "config.tensor-parallel-size": ranks}
        return solved("context_parallel", "kv-cache-exhaustion", version=version, facts=facts)

    assert shards("deepseek-ai/DeepSeek-R1", 8) == 8
    assert shards("deepseek-ai/DeepSeek-R1", 8, "0.10.2") == 8
    assert shards("Qwen/Qwen3-235B-A22B", 16) == 4  # four heads of KV
    assert shards("Qwen/Qwen3-235B-A22B", 16, "0.11.0") == "no room"
    assert shards("Qwen/Qwen3-235B-A22B", 4) == "no room"
    assert shards("google/gemma-3-27b-it", 32) == "no room"  # windows


def test_fewer_ranks_are_as_many_as_there_are_gpus() -> None:
    assert solved("ranks_that_are_there", "too-few-gpus", events={"startup.too_few_gpus": {"needed": 8, "available": 3}}) == 2
    assert solved("ranks_that_are_there", "too-few-gpus", gpus=4) == 4
    assert solved("ranks_that_are_there", "too-few-gpus") == "unknown"


def test_the_cpu_pool_is_what_the_refusal_says_was_free() -> None:
    event: Figures = {"free": 19.75 * GIB, "total": 23.5 * GIB, "budget": 200.0 * GIB}
    assert solved("cpu_space_that_is_free", "startup-free-memory-taken", events={"startup.free_below_budget": event}) == 17
    assert solved("cpu_space_that_is_free", "startup-free-memory-taken") == "unknown"


def test_v0_on_cpus_scales_its_four_gib_to_the_length() -> None:
    event: Figures = {"max_model_len": 2_000_000, "capacity": 524_288}
    cpu: Figures = {"device.type": "cpu"}
    assert solved("cpu_space", version="0.8.5", generation="V0", facts=cpu, events={TOO_LONG: event}) == 16
    assert solved("cpu_space", version="0.10.2", generation="V1", facts=cpu, events={TOO_LONG: event}) == "unknown"


def test_the_pool_in_bytes_takes_what_nothing_claims_but_a_margin() -> None:
    line = {**CARD, "memory.free_at_start": int(23.5 * GIB), "memory.graphs": int(0.5 * GIB)}
    # 24 - 0.5 outside - 14 - 2 - 0.1 - 0.5 - 5.5 = 1.4 GiB of headroom, less half a GiB, in steps of an eighth
    assert solved("kv_bytes_that_fit", "kv-cache-exhaustion", facts=line) == 6.375 * GIB
    assert solved("kv_bytes_that_fit", "kv-cache-exhaustion", facts=CARD) == "no room"


def test_adapters_and_queues_change_by_half_and_by_twice() -> None:
    assert [solved("half_the_adapters", flags={"max-loras": n}) for n in (8, 3, 1)] == [4, 1, "no room"]
    assert [solved("half_the_rank", flags={"max-lora-rank": n}) for n in (64, 320, 8)] == [32, 128, "no room"]
    assert solved("twice_the_queue", flags={"max-num-queued-reqs": 50}) == 100


def test_where_the_log_has_no_figures_the_model_solves_for_a_start() -> None:
    small: Figures = {**QWEN, "memory.total": 16 * GIB, "memory.utilization": 0.88, "model.name": "Qwen/Qwen2.5-7B-Instruct"}
    events = {"startup.no_kv_memory": {}}
    assert solved("offload_shortfall", facts=small, events=events) == 3
    assert solved("more_utilization", facts={**small, "memory.utilization": 0.85}, events=events) == "no room"  # 0.95 does not do
    large: Figures = {**small, "memory.total": 80 * GIB}
    assert solved("offload_shortfall", facts=large, events=events) == "unknown"  # by the model it starts: it does not see what failed


def _capturing(done: int, of: int, oom: Figures, slots: int, version: str = "0.10.2", generation: str = "V1", **facts: Scalar) -> object:
    run = server(version, facts={**CARD, **facts}, flags={"max-num-seqs": slots}, events={"oom": oom}, generation=generation)
    bar = Event("startup.capturing", Ref("server.log", 4, f"Capturing CUDA graphs:  52%|#####  | {done}/{of} [00:05<00:04,  6.5it/s]"), {})
    run = structs.replace(run, events={**run.events, "startup.capturing": Bounded.of(bar)} if done else run.events)
    case, evaluator = case_of(run)
    answers = [SOLVERS[n](case, run, finding("cudagraph-oom"), evaluator) for n in ("fewer_graphs", "capture_limit")]
    return [None if a is None else _plain(a) for a in answers]


def test_fewer_slots_means_fewer_graphs_and_not_the_same_ones() -> None:
    lacking: Figures = {"requested": 74 * 2**20, "free": 20 * 2**20}
    # V1 captures up to twice the slots and 512 at most: 512, 1,024 and 256 slots have the same graphs
    assert [_capturing(0, 0, lacking, n) for n in (1024, 512, 256, 128)] == [[64, 256], [64, 256], [64, 256], [32, 128]]
    assert _capturing(0, 0, lacking, 256, "0.8.5", "V0") == [64, 128]
    assert _capturing(0, 0, lacking, 16) == [None, 16]


@pytest.mark.parametrize(
    ("done", "held", "free", "value"),
    [
        (35, 310, 20, [32, 64]),  # 593 MiB in all and 330 there: room for 0.556 of them, and 11 of 51 sizes take 0.53
        (60, 310, 20, [64, 256]),  # 346 MiB in all
        (10, 310, 20, [None, None]),  # two gigabytes: not even the smallest batches fit
    ],
)
def test_graphs_of_a_capture_that_failed_get_as_many_sizes_as_there_is_room_for(done: int, held: int, free: int, value: object) -> None:
    oom: Figures = {"requested": 74 * 2**20, "free": free * 2**20, "private_pools": held * 2**20}
    assert _capturing(done, 67, oom, 512) == value


def _loaded(running: int, slots: int | None, banner: bool) -> str:
    lines = "".join(
        f"INFO 05-05 09:1{i}:00 [loggers.py:127] Engine 000: Avg prompt throughput: 310.1 tokens/s, Avg generation throughput: 200.0 tokens/s, "
        f"Running: {running} reqs, Waiting: 12 reqs, GPU KV cache usage: 2.0%, Prefix cache hit rate: 0.0%\n"
        for i in range(5)
    )
    stated = "" if slots is None else f", 'max_num_seqs': {slots}"
    return (f"INFO 05-05 09:00:00 [utils.py:328] non-default args: {{'model': 'm'{stated}}}\n" if banner else "") + lines


@pytest.mark.parametrize(
    ("running", "slots", "banner", "value"),
    [
        (8, 8, True, "16"),
        (8, 256, True, "not shown"),  # 248 slots are free
        (4, None, True, "not shown"),  # no version fills in so few
        (4, None, False, "no number"),  # set out of sight to 4, or left at 256: 16 could be fewer
    ],
)
def test_raising_the_slots_never_ends_below_those_in_force(tmp_path: Path, running: int, slots: int | None, banner: bool, value: object) -> None:
    (tmp_path / "server.log").write_text(_loaded(running, slots, banner), encoding="utf-8")
    found = [r.change for f in analyze(str(tmp_path / "server.log")).findings for r in f.remedies if r.id == "raise-max-num-seqs"]
    told = [("no number" if c.to is None else c.to) for c in found if c]
    assert told == ([] if value == "not shown" else [value])


def test_a_queue_beside_free_slots_may_stand_for_an_adapter() -> None:
    lora: Figures = {"enable-lora": True, "max-loras": 2}
    assert solved("twice_the_adapters", "max-num-seqs-limited", flags=lora) == 4
    assert solved("twice_the_adapters", "max-num-seqs-limited", flags={"enable-lora": True}) == 2


@pytest.mark.parametrize(("deferred", "ids"), [(11, []), (1, ["raise-max-num-seqs"])])
def test_who_waits_for_something_else_than_a_slot_gets_no_more_slots(tmp_path: Path, deferred: int, ids: list[str]) -> None:
    scrape = (
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 4.0\n'
        '# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine="0",model_name="m"} 12.0\n'
        "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
        f'vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="deferred"}} {deferred}.0\n'
        '# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.02\n'
    )
    for i in range(5):
        (tmp_path / f"metrics-{1_795_000_000 + 10 * i}.prom").write_text(scrape, encoding="utf-8")
    found = next(f for f in analyze(str(tmp_path)).findings if f.id == "max-num-seqs-limited")
    levers = [r for r in found.remedies if r.id in ("more-adapter-slots", "raise-max-num-seqs")]
    assert [(r.id, r.change.to if r.change else "") for r in levers] == [(name, None) for name in ids]


@pytest.mark.parametrize(
    ("running", "value"),
    [
        ([24, 20, 22, 23, 21], 20),  # it was carried while others waited
        ([24, 20, 20, 20, 20], 12),  # 20 all along, and still preempted: as many as fit at the length that few exceed
        ([12, 12, 12, 12, 12], None),  # no more ever ran
    ],
)
def test_a_cap_is_below_what_ran(running: list[int], value: int | None) -> None:
    case, evaluator = case_of(run := server(facts=CARD))
    before = look(case, run, finding("kv-cache-exhaustion"), evaluator)
    load = structs.replace(
        before,
        lengths={"p95": 8400.0},
        slots=64.0,
        most_running=float(max(running)),
        running=float(max(running[1:])),
        least_running=float(min(running[1:])),
    )
    found = finding("kv-cache-exhaustion")
    evaluator.memo["figures", run.id, found.engine, found.cause, found.window] = load
    answer = SOLVERS["seqs_that_fit"](case, run, found, evaluator)
    assert (None if answer is None else _plain(answer)) == value


@pytest.mark.parametrize(
    ("facts", "value"),
    [
        ({"model.name": "Qwen/Qwen2.5-32B-Instruct-AWQ"}, "no room"),
        ({"model.name": "somebody/unheard-of-7B-GPTQ-Int4"}, "no room"),
        ({"model.name": "Qwen/Qwen2.5-32B-Instruct", "config.quantization": "awq_marlin"}, "no room"),
        ({"model.name": "Qwen/Qwen2.5-32B-Instruct", "config.quantization": "None"}, "awq"),
        ({"model.name": "somebody/unheard-of-7B"}, "awq"),
    ],
)
def test_four_bits_are_for_weights_of_sixteen(facts: Figures, value: str) -> None:
    assert solved("four_bits", facts={"device.type": "cuda", **facts}) == value


def test_without_the_card_the_need_of_one_request_is_the_models() -> None:
    # left: -0.83 GiB. One request of 8,192 tokens at 256 KiB needs 2 GiB: two gigabytes of weights to the host would leave 1.17
    awq: Figures = {"device.type": "cuda", "model.name": "Qwen/Qwen2.5-32B-Instruct-AWQ", "memory.weights": int(18.15 * GIB),
                    "memory.kv_cache": int(-0.83 * GIB), "config.max-model-len": 8192, "memory.utilization": 0.8}  # fmt: skip
    nothing: dict[str, Figures] = {"startup.no_kv_memory": {}}
    assert solved("offload_shortfall", facts=awq, events=nothing) == 3
    assert solved("more_utilization", facts=awq, events=nothing) == "unknown"
    # with a card of 23.52 to 23.65 GiB 0.92 gives 8,193 tokens of 8,192, as printed: it takes 0.93
    run = server("0.10.2", facts=awq, events=nothing)
    case, evaluator = case_of(run, cards("NVIDIA GeForce RTX 4090"))
    found = [_plain(SOLVERS[n](case, run, finding("startup-kv-too-small"), evaluator)) for n in ("more_utilization", "offload_shortfall")]
    assert found == [0.93, 3]
    # a length that is no number is the model's own
    seven: Figures = {
        "device.type": "cuda",
        "model.name": "Qwen/Qwen2.5-7B-Instruct",
        "memory.kv_cache": int(-1.37 * GIB),
        "config.max-model-len": -1,
    }
    assert solved("offload_shortfall", facts=seven, events=nothing) == 4
    unheard: Figures = {**awq, "model.name": "somebody/unheard-of"}
    assert solved("offload_shortfall", facts=unheard, events=nothing) == "unknown"


def test_the_profile_gets_the_step_with_which_the_server_starts_at_the_cautious_end() -> None:
    facts: Figures = {"device.type": "cuda", "model.name": "Qwen/Qwen2.5-7B-Instruct", "memory.weights": int(14.25 * GIB),
                      "config.max-model-len": 32768}  # fmt: skip
    lacking: Figures = {"requested": int(9.25 * GIB), "free": int(3.31 * GIB), "total": int(23.64 * GIB)}
    flags: Figures = {"max-num-batched-tokens": 131_072, "max-num-seqs": 32}
    # in proportion 32,768 would do; at the upper end of its peak nothing is left of the budget for one request of 32,768 tokens
    assert solved("fewer_profile_tokens", "profile-oom", version="0.11.0", facts=facts, flags=flags, events={"oom": lacking}) == 16_384


def test_a_checkpoint_that_frees_less_than_was_lacking_is_no_answer() -> None:
    short: Figures = {"needed": 18 * GIB, "available": 6 * GIB}
    facts: Figures = {"device.type": "cuda", "memory.weights": 15 * GIB}
    assert solved("four_bits", facts=facts, events={TOO_LONG: short}) == "no room"
    assert solved("four_bits", facts=facts, events={TOO_LONG: {**short, "needed": 10 * GIB}}) == "awq"


def test_a_larger_share_of_an_unknown_card_is_offered_only_where_some_card_would_do() -> None:
    # 14 GiB of weights and 2 GiB of pool in 0.9 of a card: it has 36 GiB at most, and 0.05 of that are 1.8
    facts: Figures = {"device.type": "cuda", "memory.weights": 14 * GIB, "memory.kv_cache": 2 * GIB, "memory.utilization": 0.9}
    for needed, value in ((7.0, "no room"), (3.5, "unknown")):
        event: Figures = {"needed": needed * GIB, "available": 2 * GIB, "max_model_len": 131_072}
        assert solved("more_utilization", facts=facts, events={TOO_LONG: event}) == value
