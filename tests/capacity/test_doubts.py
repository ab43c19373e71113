"""What is wrong with an account is said in an issue, and the two places that count requests agree."""

from __future__ import annotations

from pathlib import Path

import pytest

import vllm_doctor
from tests.remedies.cases import CARD, GIB, case_of, server
from vllm_doctor.capacity.doubts import doubts_of
from vllm_doctor.capacity.ledger import ledger
from vllm_doctor.capacity.size import whole_requests
from vllm_doctor.language import filled
from vllm_doctor.model.case import Case, Run
from vllm_doctor.model.observations import Fact, Ref
from vllm_doctor.ruleset.load import load_knowledge

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "kv-exhaustion-0.32"


def codes(given: bool = False, **facts: object) -> list[str]:
    run = server(facts={**CARD, **facts})  # type: ignore[dict-item]
    case, _ = case_of(run)
    model = next(m for m in load_knowledge().models if "7B" in m.name.upper()) if given else None
    found = ledger(run, case, load_knowledge(), model)
    assert found is not None
    return [issue.code for issue in doubts_of(found, "en", given)]


def test_a_possible_account_is_not_doubted() -> None:
    assert codes() == []


def test_a_negative_activation_and_memory_beyond_the_card_are_doubted() -> None:
    assert codes(**{"memory.activation": -GIB}) == ["memory.implausible"]
    assert codes(**{"memory.kv_cache": 12 * GIB}) == ["memory.implausible"]


def test_a_config_of_another_model_is_doubted() -> None:
    assert codes(True, **{"kv_cache.tokens": 1_000}) == ["model-config"]


def uneven(*rooms: tuple[float, float]) -> list[str]:
    """What is said of workers with so much for weights and for the KV cache, in GiB."""
    facts = []
    for i, (weights, kv) in enumerate(rooms):
        ref = Ref("server.log", 10 + i, f"worker {i}")
        facts += [
            Fact("memory.weights", int(weights * GIB), ref, process=f"Worker_TP{i}"),
            Fact("memory.kv_cache", int(kv * GIB), ref, process=f"Worker_TP{i}"),
        ]
    run = Run(id="r1", facts=tuple(facts))
    found = ledger(run, Case(runs=(run,)))
    assert found is not None
    return [f"{i.code} {filled(i.message, i.values, 'en')} {i.ref.line if i.ref else ''}" for i in doubts_of(found, "en", False)]


def test_a_gpu_that_has_much_less_than_the_others_is_named() -> None:
    assert uneven((33.9, 29.11), (33.9, 30.4), (33.9, 30.4), (33.9, 12.2)) == [
        "memory.uneven GPU 3 has 12.20 GiB for the KV cache and the others at least 29.11 GiB: the engine uses no more than the smallest on each. "
        "Something that is not the weights takes 16.91 GiB more on GPU 3: look at what holds it there (nvidia-smi), before any option is changed. 13"
    ]


@pytest.mark.parametrize(
    "rooms",
    [
        ((33.9, 29.11), (33.9, 30.4)),  # the first rank's overhead
        ((14.0, 8.0), (8.0, 14.0)),  # stages of unequal weight
        ((1.0, 0.5), (1.0, 0.9)),
        ((33.9, 12.2),),
    ],
)
def test_gpus_that_are_alike_but_for_their_weights_are_not_told_apart(rooms: tuple[tuple[float, float], ...]) -> None:
    assert uneven(*rooms) == []


POOL = {"kv_cache.tokens": 102_976, "kv_cache.concurrency_length": 8192, "kv_cache.max_concurrency": 12.57}
NAMED = {**POOL, "model.name": "Qwen/Qwen2.5-7B-Instruct"}


@pytest.mark.parametrize(
    ("facts", "contradicts"),
    [
        (POOL, False),
        ({**POOL, "kv_cache.max_concurrency": 12.0}, False),  # a shape that is not known: the last block, or groups
        ({**NAMED, "kv_cache.max_concurrency": 11.5}, True),
        ({**NAMED, "kv_cache.max_concurrency": 12.56}, False),
        ({**POOL, "kv_cache.max_concurrency": 0.0}, True),
        ({**POOL, "kv_cache.max_concurrency": 110.0}, False),  # layers with a window: nine times in public starts
        ({**NAMED, "kv_cache.max_concurrency": 110.0}, True),
        ({"kv_cache.tokens": 999_999_999_999}, True),
        ({"kv_cache.tokens": 900_000}, False),  # 6 KiB per token: some model may
        ({"kv_cache.tokens": 900_000, "model.name": "Qwen/Qwen2.5-7B-Instruct"}, True),
        ({"kv_cache.tokens": 205_952, "model.name": "Qwen/Qwen2.5-7B-Instruct"}, False),  # 8 bits for 16
        ({"kv_cache.tokens": 900_000, "config.num-gpu-blocks-override": 56_250}, False),
        ({"kv_cache.tokens": 999_999_999_999, "config.num-gpu-blocks-override": 56_250}, False),
    ],
)
def test_figures_of_the_pool_that_contradict_each_other_are_doubted_and_not_used(facts: dict[str, object], contradicts: bool) -> None:
    run = server(facts={**CARD, **facts})  # type: ignore[dict-item]
    case, _ = case_of(run)
    found = ledger(run, case, load_knowledge())
    assert found is not None
    assert [i.code for i in doubts_of(found, "en", False)] == (["memory.contradiction"] if contradicts else [])
    assert (found.kv_tokens is None, found.fits == {}) == (contradicts, contradicts)


def test_a_contradiction_names_both_figures() -> None:
    run = server(facts={**CARD, **POOL, "kv_cache.max_concurrency": 0.0})
    case, _ = case_of(run)
    found = ledger(run, case, load_knowledge())
    assert found is not None
    (issue,) = doubts_of(found, "en", False)
    assert filled(issue.message, issue.values, "en") == (
        "The KV cache cannot hold 102,976 tokens and 0 requests of 8,192 tokens: these figures contradict each other, and neither is used to say how "
        "many requests fit."
    )
    assert filled(issue.message, issue.values, "zh") == (
        "KV 缓存不可能既有 102,976 tokens 又能容纳 0 个 8,192 tokens 的请求：这两个数值互相矛盾，均不用于计算能同时容纳多少请求。"
    )


def test_a_request_takes_whole_blocks() -> None:
    assert [whole_requests(5120, 165.1, 32), whole_requests(5120, 165.1, None), whole_requests(5120, 10_000, 32)] == [
        160 / 6,
        5120 / 165.1,
        160 / 313,
    ]


def test_memory_and_remedies_count_the_same_requests() -> None:
    report = vllm_doctor.analyze(FIXTURE / "server.log", FIXTURE / "metrics")
    told = {
        int(e.before)
        for f in report.findings
        for r in f.remedies
        for e in r.effect
        if e.quantity == "requests.fit.p50" and isinstance(e.before, int | float)
    }
    assert told == {int(report.memory[0].requests_that_fit["p50"].requests)} == {26}
