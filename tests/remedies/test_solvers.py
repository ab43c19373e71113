"""Values that are solved for: the figures of a case in, the value a person would type out."""

from __future__ import annotations

import pytest

from tests.judging import ROOT
from tests.remedies.cases import CARD, GIB, RULES, cards, case_of, finding, server
from vllm_doctor import analyze
from vllm_doctor.model.case import Known, Unknown
from vllm_doctor.model.observations import Scalar
from vllm_doctor.remedies.advise import _plain
from vllm_doctor.remedies.conditions import CONDITIONS
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
    lacking = {**CARD, "memory.kv_cache": int(-0.2 * GIB)}
    assert solved("more_utilization", "startup-kv-too-small", facts=lacking, events=none_left) == 0.93
    assert solved("more_utilization", "startup-kv-too-small", facts={**CARD, "memory.kv_cache": int(-1.2 * GIB)}, events=none_left) == "no room"


def test_a_start_whose_card_or_shortage_is_unknown_gets_no_made_up_step() -> None:
    none_left = {"startup.no_kv_memory": {}}
    known = {"memory.utilization": 0.9}
    assert solved("more_utilization", "startup-kv-too-small", facts=known, events=none_left) == "unknown"
    assert solved("more_utilization", "startup-kv-too-small", facts={**known, "memory.kv_cache": -GIB}, events=none_left) == "unknown"
    assert solved("more_utilization", "startup-kv-too-small", facts={**known, "memory.kv_cache": -20 * GIB}, events=none_left) == "no room"


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
    assert solved("profile_budget", flags={"max-num-batched-tokens": 8192}, events={TOO_LONG: {}}) == 2048


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
