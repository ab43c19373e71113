"""The effect that answers the finding comes first, in every output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remedies.cases import RULES, finding
from vllm_doctor import analyze
from vllm_doctor.model.quantities import QUANTITIES
from vllm_doctor.model.report import Effect
from vllm_doctor.remedies.concern import CONCERNS, by_concern
from vllm_doctor.reports.text import render

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ANSWERS = {
    "oom-near-miss-0.14": ("runtime-activation-oom", "memory.oom_shortfall"),
    "kv-exhaustion-0.32": ("kv-cache-exhaustion", "kv_cache.demand"),
    "startup-kv-too-small-0.8.5": ("startup-kv-too-small", "kv_cache.tokens"),
    "prefill-spike-big-0.32": ("prefill-spike", "step.duration"),
    "max-num-seqs-queue-0.32": ("max-num-seqs-limited", "requests.fit.p50"),
}


def effects_of(*names: str) -> list[Effect]:
    return [Effect(name, QUANTITIES[name].unit, 1, 2, "model") for name in names]


def test_concerns_are_of_causes_and_quantities_that_exist() -> None:
    assert set(CONCERNS) <= {c.id for c in RULES.causes}
    assert {q for first in CONCERNS.values() for q in first} <= set(QUANTITIES)


def test_what_a_finding_is_not_about_keeps_its_order() -> None:
    told = effects_of("kv_cache.tokens", "requests.fit.p50", "requests.limit", "memory.oom_shortfall")
    by_name = [[e.quantity for e in by_concern(finding(cause, variant), told)] for cause, variant in (
        ("runtime-activation-oom", None), ("prefill-spike", "oom"), ("prefill-spike", "latency"), ("engine-hang", None))]  # fmt: skip
    before = ["kv_cache.tokens", "requests.fit.p50", "requests.limit", "memory.oom_shortfall"]
    assert by_name == [["memory.oom_shortfall", *before[:3]], ["memory.oom_shortfall", *before[:3]], before, before]


@pytest.mark.parametrize(("name", "cause", "quantity"), [(name, *answer) for name, answer in ANSWERS.items()])
def test_the_effect_that_answers_the_finding_is_told_first_wherever_a_remedy_has_it(name: str, cause: str, quantity: str) -> None:
    report = analyze(FIXTURES / name)
    (found,) = [f for f in report.findings if f.id == cause]
    having = [[e.quantity for e in r.effect] for r in found.remedies if any(e.quantity == quantity for e in r.effect)]
    assert having
    assert {told[0] for told in having} == {quantity}


def test_what_was_missing_is_on_the_first_page_of_a_failed_allocation() -> None:
    page = render(analyze(FIXTURES / "oom-near-miss-0.14"))
    assert "effect  missing when the allocation failed: 233.8 MiB → 0 B (rule of thumb)" in page
