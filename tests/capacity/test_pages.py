"""The pages that state figures of the memory model are current, and the figures meet what the product promises."""

from __future__ import annotations

import math
from statistics import median

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
    worse = math.ceil(median(errors) * 100) / 100  # rounded to the worse side
    assert {"starts": len(errors), "median_error": worse, "within_12_percent": math.floor(within * 100) / 100} == TYPICAL


def test_every_row_that_misses_says_why() -> None:
    def missed(start: memory_table.Start) -> bool:
        tokens, gib = abs(start.token_error or 0) > memory_table.GOAL_TOKENS, abs(start.kv_error or 0) > memory_table.GOAL_KV
        return tokens or (gib and not memory_table.guessed(start))

    assert [(s.row["version"], s.row["model"]) for s in STARTS if missed(s) and not s.row["why"]] == []


def test_bytes_per_token_are_those_of_the_log_or_the_row_says_why_not() -> None:
    rated = [s for s in STARTS if s.per_token and memory_table.uniform(s)]
    off = [s for s in rated if (p := s.per_token) and not p[1] <= p[0] <= p[2]]
    assert [(s.row["version"], s.row["model"]) for s in off if not s.row["why"]] == []
    assert len(rated) - len(off) >= 40
