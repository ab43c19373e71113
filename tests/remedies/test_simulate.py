"""What-if: nothing changes where nothing is changed, and what changes follows vLLM's own arithmetic."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.remedies.cases import CARD, FLAGS, GIB, RULES, case_of, finding, server
from vllm_doctor.language import CATALOGUE, read_po
from vllm_doctor.model.catalogue import SIGNALS
from vllm_doctor.model.quantities import QUANTITIES
from vllm_doctor.model.report import Effect
from vllm_doctor.remedies.figures import Figures
from vllm_doctor.remedies.levers import LEVERS
from vllm_doctor.remedies.moves import Move
from vllm_doctor.remedies.servers import OPTIONS
from vllm_doctor.remedies.simulate import effects, quantities, simulate

sizes = st.floats(1.0, 2**40) | st.none()
counts = st.integers(1, 2000).map(float) | st.none()
figures = st.builds(
    Figures,
    engine=st.sampled_from(["V0", "V1", None]),
    total=sizes,
    utilization=st.floats(0.1, 0.99) | st.none(),
    weights=sizes,
    activation=sizes,
    graphs=sizes,
    graphs_counted=st.booleans() | st.none(),
    kv_bytes=sizes,
    kv_tokens=counts,
    bytes_per_token=st.floats(1.0, 2**20) | st.none(),
    block_size=st.sampled_from([16.0, 32.0, None]),
    max_len=counts,
    slots=counts,
    budget=counts,
    ranks=st.sampled_from([1.0, 2.0, 4.0]),
    lengths=st.dictionaries(st.sampled_from(["p50", "p95"]), st.floats(1, 1e5)),
    fixed_pool=st.booleans(),
    longest_prompt=counts,
    longest_output=counts,
    present=counts,
    held=counts,
    waiting=counts,
    running=counts,
    step=st.floats(0.001, 100) | st.none(),
    itl_p99=st.floats(0.001, 100) | st.none(),
    oom_requested=sizes,
    oom_free=sizes,
    reserved=sizes,
    cut_streams=counts,
)


@given(figures)
def test_without_a_change_everything_stays(before: Figures) -> None:
    told = effects(before, [])
    assert {e.quantity: e.before for e in told} == quantities(before)
    assert [e for e in told if e.before != e.after] == []


@given(figures, st.sampled_from(sorted(LEVERS)))
def test_a_change_to_an_unknown_value_predicts_nothing(before: Figures, lever: str) -> None:
    assert effects(before, [Move(lever)]) == ()


@given(figures, st.sampled_from(sorted(LEVERS)), st.sampled_from([0, 1, 4, 64, 4096, 0.5, "fp8", "auto", True, "expandable_segments:True"]), counts)
def test_every_effect_is_a_declared_quantity_and_an_ordered_range(before: Figures, lever: str, to: object, now: float | None) -> None:
    for effect in (*effects(before, [Move(lever, to, now)]), *effects(before, [Move(lever, from_=now, remove=True)])):  # type: ignore[arg-type]
        assert effect.unit == QUANTITIES[effect.quantity].unit
        for value in (effect.before, effect.after):
            ends = value if isinstance(value, list) else [value]
            assert ends == sorted(v for v in ends if v is not None) or ends == [None]
            assert all(v is None or v >= 0 for v in ends)


def test_quantities_have_units_of_the_catalogue_and_both_languages() -> None:
    units = {d.unit for d in SIGNALS.values()}
    assert {q.unit for q in QUANTITIES.values()} <= units
    chinese = read_po(CATALOGUE.read_text(encoding="utf-8"))
    assert [q.text for q in QUANTITIES.values() if not re.search("[\u4e00-\u9fff]", chinese.get(q.text, ""))] == []


def test_every_lever_is_an_option_or_one_that_a_remedy_names() -> None:
    named = {r.lever for r in RULES.remedies if r.lever}
    assert {name for name in (*LEVERS, *OPTIONS) if name not in FLAGS} == named


def told(moves: list[Move], facts: dict[str, object] | None = None, **more: object) -> dict[str, Effect]:
    run = server(facts={**CARD, **(facts or {})}, **more)  # type: ignore[dict-item, arg-type]
    case, evaluator = case_of(run)
    return {e.quantity: e for e in simulate(case, run, finding("kv-cache-exhaustion"), moves, evaluator)}


def test_more_utilization_is_that_share_of_the_card_in_tokens() -> None:
    effect = told([Move("--gpu-memory-utilization", 0.95, 0.9)])
    tokens = effect["kv_cache.tokens"]
    assert tokens.before == 102_976
    assert tokens.after == pytest.approx(102_976 + 0.05 * 24 * GIB / (56 * 1024), rel=0.01)
    assert (tokens.basis, tokens.unit) == ("model", "tokens")
    assert effect["memory.outside_budget"].after == pytest.approx(1.2 * GIB, abs=2)


@given(st.floats(0.5, 0.99), st.floats(0.5, 0.99))
def test_tokens_rise_with_utilization(a: float, b: float) -> None:
    before = Figures(total=24.0 * GIB, utilization=0.9, kv_bytes=5.5 * GIB, kv_tokens=102_976, bytes_per_token=56 * 1024)

    def tokens(share: float) -> float:
        after = [e.after for e in effects(before, [Move("--gpu-memory-utilization", share)]) if e.quantity == "kv_cache.tokens"]
        return float(after[0]) if after else 102_976  # type: ignore[arg-type]

    assert (tokens(a) <= tokens(b)) is (a <= b) or tokens(a) == tokens(b)


def test_fp8_doubles_the_tokens_and_the_requests() -> None:
    effect = told([Move("--kv-cache-dtype", "fp8", "auto")])
    assert effect["kv_cache.tokens"].after == [201_000, 206_000]
    assert (effect["requests.fit.max_model_len"].before, effect["requests.fit.max_model_len"].after) == (12, [24, 25])


def test_a_forced_number_of_blocks_does_not_move_with_the_budget() -> None:
    forced = {"config.num-gpu-blocks-override": 512}
    assert "kv_cache.tokens" not in told([Move("--gpu-memory-utilization", 0.95, 0.9)], forced)


def test_without_the_override_the_pool_is_what_vllm_says_it_replaced() -> None:
    facts = {"kv_cache.tokens": 5120, "config.num-gpu-blocks-override": 160, "kv_cache.blocks_by_budget": 16384}
    effect = told([Move("--num-gpu-blocks-override", from_=160, remove=True)], facts)["kv_cache.tokens"]
    assert (effect.before, effect.after) == (5120, 524_288)


def test_without_the_size_of_a_token_the_new_pool_is_unknown() -> None:
    run = server(facts={"kv_cache.tokens": 50_000, "memory.utilization": 0.9})
    case, evaluator = case_of(run)
    (effect,) = simulate(case, run, finding("kv-cache-exhaustion"), [Move("--gpu-memory-utilization", 0.95, 0.9)], evaluator)
    assert (effect.quantity, effect.before, effect.after) == ("kv_cache.tokens", 50_000, None)


def test_a_smaller_budget_shortens_steps_by_its_share_to_twice_that() -> None:
    before = Figures(budget=8192, longest_prompt=8000, step=8.0, itl_p99=6.0)
    effect = {e.quantity: (e.before, e.after) for e in effects(before, [Move("--max-num-batched-tokens", 1000)])}
    assert effect == {"step.tokens": (8192, 1000), "step.duration": (8.0, [1.0, 2.0]), "latency.itl.p99": (6.0, [0.75, 1.5]), "prefill.steps": (1, 8)}


def test_gaps_that_no_long_step_made_do_not_shrink_with_the_budget() -> None:
    before = Figures(budget=8192, longest_prompt=8000, itl_p99=6.0)
    assert "latency.itl.p99" not in {e.quantity for e in effects(before, [Move("--max-num-batched-tokens", 1000)])}


def test_two_gpus_hold_the_weights_saved_and_twice_the_tokens() -> None:
    effect = told([Move("--tensor-parallel-size", 2, 1)])["kv_cache.tokens"]
    size = 5.5 * GIB + 7 * GIB
    assert isinstance(effect.after, list)
    assert effect.after == [pytest.approx(size / (56 * 1024), rel=0.01), pytest.approx(2 * size / (56 * 1024), rel=0.01)]
    assert effect.basis == "rule-of-thumb"
