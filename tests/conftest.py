"""A closing word on the tests that could not run: silence would read as success."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.judging import OUTSIDE, outside_cases

# A property is not slower for holding: no test of ours watches the clock.
settings.register_profile("unhurried", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("unhurried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if OUTSIDE is None:
        terminalreporter.line("NOT RUN: all labelled outside cases, because VLLM_DOCTOR_CASES names no folder that holds captures/ and cases/")
    elif not outside_cases():
        terminalreporter.line(f"NOT RUN: 0 labelled cases found in captures/ and cases/ under VLLM_DOCTOR_CASES={OUTSIDE}")
