"""Plots of one row: what is high, what is zero, and what was not measured."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.reports import samples
from vllm_doctor.model.report import SeriesReport
from vllm_doctor.reports.spark import peak, span_of, spark
from vllm_doctor.reports.text import render


def series(*values: float | None, every: int = 1) -> SeriesReport:
    points = [(f"2026-11-30T13:00:{n * every:02d}", v, v, v) for n, v in enumerate(values) if v is not None]
    return SeriesReport("run-1", 0, "requests.waiting", "count", 1, points)


@pytest.mark.parametrize(
    ("values", "top", "bars"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), 7, "▁▂▃▄▅▆▇█"),
        ((0, 0.001, 999, 1000), 1000, "▁▁▂▂▂▇▇█"),
        ((0, 0, 0, 0), 0, "▁▁▁▁▁▁▁▁"),
        ((float("nan"), 4, 4, 4), 4, "  ██████"),
    ],
)
def test_only_zero_is_lowest_and_only_the_top_is_highest(values: tuple[float, ...], top: float, bars: str) -> None:
    assert spark(series(*values), *clock(len(values)), top, 8) == bars


def clock(n: int) -> tuple[float, float]:
    across = span_of([series(*[1.0] * n)])
    assert across is not None
    return across


def test_a_step_shows_its_peak() -> None:
    assert spark(series(*[1.0] * 10, 8.0, *[1.0] * 19), *clock(30), 8, 10) == "▂▂▂█▂▂▂▂▂▂"


def test_what_was_not_measured_is_empty() -> None:
    values = [1.0] * 5 + [None] * 20 + [1.0] * 5
    assert spark(series(*values), *clock(30), 1, 10) == "██      ██"


def test_no_series_has_no_span_and_no_peak() -> None:
    empty = SeriesReport("run-1", 0, "requests.waiting", "count", 1, [])
    assert (span_of([empty]), span_of([]), peak(empty), peak(series(1, 5, 2))) == (None, None, None, 5)


def test_the_rows_of_a_report_stand_below_each_other() -> None:
    for language, width in (("en", 80), ("zh", 80), ("en", 50)):
        lines = render(samples.kv_exhaustion(language), width=width).splitlines()
        before = [found[1] for line in lines if (found := re.match("(.*?)[▁-█]{8,}", line))]
        assert len(before) == 3
        starts = {len(text.encode("gbk")) for text in before}  # in GBK a Chinese character has two bytes, as it has two cells
        assert len(starts) == 1


def test_another_engine_is_not_mixed_in() -> None:
    report = samples.kv_exhaustion()
    other = [msgspec.structs.replace(s, engine=1, points=[(t, 999.0, 999.0, 999.0) for t, *_ in s.points]) for s in report.series]
    assert "999" not in render(msgspec.structs.replace(report, series=(*other, *report.series)), width=100)
