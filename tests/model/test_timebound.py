"""`--since` and `--until`, as written and as resolved against an input."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_doctor.model.timebound import TimeBound, parse


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


FIRST, LAST = at("2026-11-29T22:00:00"), at("2026-11-30T13:51:36")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("-10m", TimeBound(before_last=600)),
        ("-1h30m", TimeBound(before_last=5400)),
        ("-2d", TimeBound(before_last=172800)),
        ("-45s", TimeBound(before_last=45)),
        ("13:48", TimeBound(clock=49680)),
        ("13:48:10", TimeBound(clock=49690)),
        ("13:48:10.5", TimeBound(clock=49690.5)),
        ("11-30 13:48", TimeBound(month=11, day=30, clock=49680)),
        (" 11-30 13:48:10 ", TimeBound(month=11, day=30, clock=49690)),
        ("2026-11-30", TimeBound(year=2026, month=11, day=30)),
        ("2026-11-30T13:48", TimeBound(year=2026, month=11, day=30, clock=49680)),
        ("2026-11-30 13:48:10", TimeBound(year=2026, month=11, day=30, clock=49690)),
        ("2026-11-30T13:48:10Z", TimeBound(year=2026, month=11, day=30, clock=49690, utc_offset=0)),
        ("2026-11-30T13:48:10+08:00", TimeBound(year=2026, month=11, day=30, clock=49690, utc_offset=28800)),
        ("2026-11-30T13:48:10-0530", TimeBound(year=2026, month=11, day=30, clock=49690, utc_offset=-19800)),
        ("02-29 00:00", TimeBound(month=2, day=29)),
    ],
)
def test_a_time_is_read_with_what_it_leaves_open(text: str, bound: TimeBound) -> None:
    assert parse(text) == bound


@pytest.mark.parametrize(
    "text", ["", "-", "10m", "noon", "13", "13:60", "25:00", "24:01", "11-30", "13-01 10:00", "2026-02-30", "0000-01-01", "2026-11-30T", "-05:00"]
)
def test_what_is_no_time_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: use 2026-11-30T13:48:00"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-10m", "2026-11-30T13:41:36"),
        ("13:48", "2026-11-30T13:48:00"),
        ("23:30", "2026-11-29T23:30:00"),
        ("14:00", "2026-11-30T14:00:00"),
        ("11-29 23:30", "2026-11-29T23:30:00"),
        ("12-24 10:00", "2026-12-24T10:00:00"),
        ("10-01 00:00", "2026-10-01T00:00:00"),
        ("2025-01-01", "2025-01-01T00:00:00"),
        ("2026-11-30T13:48:10+08:00", "2026-11-30T13:48:10"),
    ],
)
def test_missing_parts_come_from_the_input(text: str, expected: str) -> None:
    assert parse(text).resolve(FIRST, LAST) == at(expected)


def test_a_date_without_a_year_after_new_year_is_in_the_old_one() -> None:
    assert parse("12-31 23:00").resolve(at("2026-12-31T20:00:00"), at("2027-01-01T03:00:00")) == at("2026-12-31T23:00:00")


def test_the_leap_day_is_found_in_the_year_that_has_one() -> None:
    assert parse("02-29 12:00").resolve(FIRST, LAST) == at("2024-02-29T12:00:00")


def test_a_bound_with_a_zone_is_moved_to_the_clock_of_the_input_where_that_is_known() -> None:
    assert parse("2026-11-30T05:48:10Z").resolve(FIRST, LAST, utc_offset=28800) == at("2026-11-30T13:48:10")
    assert parse("05:48Z").resolve(FIRST, LAST, utc_offset=28800) == at("2026-11-30T13:48:00")


@given(st.text(max_size=30))
def test_any_text_is_a_time_that_resolves_or_a_value_error(text: str) -> None:
    bound = None
    with suppress(ValueError):
        bound = parse(text)
    assert bound is None or isinstance(bound.resolve(FIRST, LAST), float)
