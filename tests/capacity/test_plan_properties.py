"""Any model, card, version, split, quantisation, wish and question: a plan holds together, and does what it promises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from vllm_doctor.capacity.names import find_gpu
from vllm_doctor.capacity.plan import Plan, plan
from vllm_doctor.capacity.refusals import refusals
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.capacity.size import requests_that_fit, size
from vllm_doctor.capacity.solving import LENGTH_STEP, QUANTITIES, SOLVERS, Wish, cautious, certainty, hopeful, roomy, runs, starts_with
from vllm_doctor.reports.plan import as_json, as_text
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()
SHAPED = [m for m in KNOWLEDGE.models if m.num_hidden_layers and m.num_attention_heads]
CARDS = [find_gpu(name, KNOWLEDGE) for name in (
    "RTX 3060", "RTX 4090", "L4", "A10G", "A100 40GB", "A100 80GB", "H100", "H200", "B200", "MI300X", "GB10", "24", "79.19",
)]  # fmt: skip
VERSIONS = ("0.2.7", "0.4.2", "0.6.3", "0.6.6", "0.8.5", "0.9.1", "0.10.2", "0.17.1", "0.19.1", "0.20.2", "0.28.0", "0.33.0", None)
WISHES = (Wish(), Wish(20), Wish(8, 3000, 500), Wish(None, 2000, 200), Wish(1, 100_000, 1000), Wish(300, 500, 100))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    card = draw(st.sampled_from(CARDS))
    assert card.total_gib is not None
    return Setup(
        model=draw(st.sampled_from(SHAPED)),
        gpu=card.gpu,
        total_bytes=round(card.total_gib * GIB),
        device="rocm" if card.gpu and card.gpu.vendor == "AMD" else "cuda",
        version=draw(st.sampled_from(VERSIONS)),
        tensor_parallel_size=draw(st.sampled_from((1, 1, 2, 3, 4, 8))),
        pipeline_parallel_size=draw(st.sampled_from((1, 1, 2, 4))),
        quantization=draw(st.sampled_from((None, None, "awq", "gptq-int8", "fp8", "bitsandbytes", "Q4_K_M"))),
        max_model_len=draw(st.sampled_from((None, 2048, 8192, 32768, 100_000))),
        max_num_seqs=draw(st.sampled_from((None, 1, 16, 512))),
        max_num_batched_tokens=draw(st.sampled_from((None, None, 512, 8192, 32768))),
        gpu_memory_utilization=draw(st.sampled_from((None, 0.5, 0.8, 0.95))),
        kv_cache_dtype=draw(st.sampled_from(("auto", "auto", "fp8"))),
        enforce_eager=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(setups(), st.sampled_from(WISHES), st.sampled_from((None, *QUANTITIES)), st.sampled_from(("en", "zh")))
def test_a_plan_adds_up_and_its_command_starts(setup: Setup, wish: Wish, question: str | None, language: str) -> None:
    answer = plan(setup, wish, question)  # type: ignore[arg-type]
    budget = answer.budget
    assert sum(p.bytes for p in budget.parts.values()) + budget.outside.bytes + budget.kv.bytes + budget.headroom == budget.total
    assert all(p.span[0] <= p.bytes <= p.span[1] for p in (*budget.parts.values(), budget.kv))
    assert all(f.low <= f.requests <= f.high for f in answer.fits.values())
    assert answer.command_starts or answer.solved_short or not answer.starts
    assert not answer.command_starts or runs(started(answer))
    assert not answer.command_sure or certainty(started(answer)) == "surely"
    assert (answer.certainty == "no") == (not hopeful(answer.setup).starts or bool(refusals(answer.setup, budget)))
    assert answer.certainty != "surely" or cautious(answer.setup).starts
    assert all(roomy(advised) for advised in shares(answer))
    assert as_text([("card", answer)], "a/model", wish, language=language)
    assert as_json([("card", answer)], "a/model", wish)


def shares(answer: Plan) -> list[Setup]:
    """The set-ups of ways that raise the utilisation, with all that bears on what lies outside the budget."""
    found = []
    for way in answer.ways:
        share = float(way.flags.get("--gpu-memory-utilization", 0))
        if share > answer.budget.utilization:
            seqs = int(way.flags.get("--max-num-seqs", 0)) or answer.setup.max_num_seqs
            found.append(structs.replace(answer.setup, gpu_memory_utilization=share, max_num_seqs=seqs))
    return found


def started(answer: Plan) -> Setup:
    """The set-up that the proposed command is of."""
    flags = answer.flags

    def whole(name: str, otherwise: int | None) -> int | None:
        return int(flags[name]) if name in flags else otherwise

    return structs.replace(
        answer.setup,
        max_model_len=whole("--max-model-len", None),
        max_num_seqs=whole("--max-num-seqs", None),
        max_num_batched_tokens=whole("--max-num-batched-tokens", None),
        tensor_parallel_size=whole("--tensor-parallel-size", 1) or 1,
        gpu_memory_utilization=float(flags["--gpu-memory-utilization"]) if "--gpu-memory-utilization" in flags else None,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(setups(), st.sampled_from(WISHES))
def test_a_solved_length_and_count_are_the_largest(setup: Setup, wish: Wish) -> None:
    longest = SOLVERS["max-model-len"](setup, wish, cautious)
    top = setup.model.max_position_embeddings or 131072
    if longest is not None and longest.max_model_len is not None and longest.max_model_len + LENGTH_STEP <= top:
        longer = structs.replace(longest, max_model_len=longest.max_model_len + LENGTH_STEP)
        assert not starts_with(longer, Wish(wish.concurrency))
    most = SOLVERS["max-num-seqs"](setup, wish, cautious)
    if most is not None and most.max_num_seqs is not None:
        more = structs.replace(most, max_num_seqs=most.max_num_seqs + 1)
        budget = cautious(more)
        fits = requests_that_fit(budget, more, wish.tokens or budget.max_model_len)
        assert fits < most.max_num_seqs + 1 or refusals(more, budget) or not budget.starts


@settings(max_examples=60, deadline=None, derandomize=True)
@given(setups())
def test_more_memory_and_smaller_steps_never_shrink_the_pool(setup: Setup) -> None:
    for field, rising in (
        ("gpu_memory_utilization", (0.5, 0.7, 0.9, 0.95)),
        ("total_bytes", tuple(round(setup.total_bytes * f) for f in (1.0, 1.2, 1.5))),
        ("max_num_seqs", (512, 64, 8, 1)),
        ("max_num_batched_tokens", (32768, 8192, 2048, 512)),
    ):
        pools = [size(structs.replace(setup, **{field: value})).kv.bytes for value in rising]
        assert pools == sorted(pools), field


@pytest.mark.parametrize(("tp", "code"), [(7, "vocabulary-split"), (28, "vocabulary-split"), (4, None)])
def test_a_vocabulary_that_does_not_divide_is_refused(tp: int, code: str | None) -> None:
    """Qwen2.5-7B has 28 heads; its 152,064 words divide by 4 and not by 7."""
    model = next(m for m in KNOWLEDGE.models if m.name == "Qwen/Qwen2.5-7B-Instruct")
    card = find_gpu("H100", KNOWLEDGE)
    setup = Setup(
        model=structs.replace(model, intermediate_size=7 * 4096, num_key_value_heads=28), gpu=card.gpu, total_bytes=80 * GIB, tensor_parallel_size=tp
    )
    assert next((c for c, _ in plan(setup).notes if c.endswith("split")), None) == code
