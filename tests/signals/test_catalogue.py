"""Every declared signal has an answer, and every function is declared."""

from __future__ import annotations

import pytest

from tests.make import case, run
from vllm_doctor.model.case import Known, Unknown
from vllm_doctor.model.catalogue import SIGNALS, observation
from vllm_doctor.ruleset.load import load
from vllm_doctor.signals import derived, failures, run_wide
from vllm_doctor.signals.evaluate import Evaluator
from vllm_doctor.signals.windows import windows


def test_functions_are_declared() -> None:
    assert set(derived.FUNCTIONS) | set(run_wide.FUNCTIONS) | set(failures.FUNCTIONS) <= set(SIGNALS)


@pytest.mark.parametrize("name", SIGNALS)
def test_an_empty_run_knows_nothing(name: str) -> None:
    one = run(version=None, has_log=False)
    value = Evaluator(case(one), load().flags).value(name, one, 0, windows(one, 0)[0])
    inputs = {i.id for i in load().inputs}
    if name == "errors.visible":
        assert value == Known(0.0)
    else:
        assert isinstance(value, Unknown), f"{name} is {value} although nothing was seen"
        assert value.missing in inputs, f"nobody is told how to get {value.missing}"


def test_open_families_are_facts() -> None:
    declared = observation("flag.max-num-seqs")
    assert declared is not None
    assert (declared.kind, declared.unit) == ("fact", "flag")
    assert observation("flag.") is None
    assert observation("no.such.thing") is None
