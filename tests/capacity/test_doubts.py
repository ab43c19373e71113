"""What is wrong with an account is said in an issue, and the two places that count requests agree."""

from __future__ import annotations

from pathlib import Path

import vllm_doctor
from tests.remedies.cases import CARD, GIB, case_of, server
from vllm_doctor.capacity.doubts import doubts_of
from vllm_doctor.capacity.ledger import ledger
from vllm_doctor.capacity.size import whole_requests
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
