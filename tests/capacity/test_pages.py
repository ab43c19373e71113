"""The pages that state figures of the memory model are current, and the figures meet what the product promises."""

from __future__ import annotations

from statistics import median

import pytest

from tools import forum_questions, memory_table
from vllm_doctor.reports.plan import TYPICAL
from vllm_doctor.ruleset.load import load_knowledge

STARTS = memory_table.starts(load_knowledge())[0]


def test_the_table_in_the_page_is_what_make_memory_table_writes() -> None:
    assert memory_table.PAGE.read_text(encoding="utf-8") == memory_table.page_with(memory_table.table())


def test_the_forum_page_is_what_plan_calculates() -> None:
    assert forum_questions.PAGE.read_text(encoding="utf-8") == forum_questions.page()


def test_plan_states_the_error_that_was_measured() -> None:
    errors = [abs(s.kv_error) for s in STARTS if s.kv_error is not None and s.utilization_stated and not memory_table.guessed(s)]
    within = sum(e <= 0.12 for e in errors) / len(errors)
    assert {"starts": len(errors), "median_error": round(median(errors), 2), "within_12_percent": round(within, 2)} == TYPICAL


def test_every_row_that_misses_says_why() -> None:
    missed = [s.row["model"] for s in STARTS if abs(s.token_error or 0) > 0.01 or (abs(s.kv_error or 0) > 0.12 and not memory_table.guessed(s))]
    unexplained = [s.row["model"] for s in STARTS if s.row["model"] in missed and not s.row["why"]]
    assert unexplained == []


@pytest.mark.parametrize("start", [s for s in STARTS if s.per_token and memory_table.uniform(s)], ids=lambda s: s.row["model"])
def test_bytes_per_token_are_those_of_the_log(start: memory_table.Start) -> None:
    assert start.per_token is not None
    own, low, high = start.per_token
    assert low <= own <= high
