"""Figures that no machine prints - hundreds of digits, NaN, infinities, negative ones - in every place where a format reads a number: the whole
analysis answers, in both languages and every output."""

from __future__ import annotations

import re

import pytest

import vllm_doctor
from vllm_doctor.model.figures import LARGEST, figure
from vllm_doctor.reports import RENDERERS, Style
from vllm_doctor.ruleset.load import load

HOSTILE = ("9" * 400, "9" * 5000, "9" * 400 + ".5", "1e999", "1e300", "nan", "inf", "-1", "-0.5", "0", "0.0", "-" + "9" * 400)
START = """\
(APIServer pid=1) INFO 05-05 09:00:00 [utils.py:328] vLLM API server version 0.32.0
(APIServer pid=1) INFO 05-05 09:00:00 [utils.py:328] non-default args: {'model_tag': 'm', 'model': 'm', 'max_num_seqs': 8}
"""
SAMPLES = [(f.id, s.before, s.line) for f in load().formats for s in f.samples if re.search(r"\d", s.line)]


def with_figures(line: str, figures: str) -> str:
    """The line with every number of its message replaced; stamps and tags stay as they are."""
    head = re.match(r"(?:\([^)]*\) )?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|[\w.]+:\d+\]) ?)?", line)
    at = head.end() if head else 0
    return line[:at] + re.sub(r"(?<![\w.])-?\d+(?:\.\d+)?", figures, line[at:])


@pytest.mark.parametrize("figures", HOSTILE, ids=lambda f: f"{f[:6]}x{len(f)}")
def test_no_figure_in_any_line_stops_the_analysis(figures: str) -> None:
    for language in ("en", "zh"):
        log = START + "\n".join(f"{before}\n{with_figures(line, figures)}" for _, before, line in SAMPLES) + "\n"
        report = vllm_doctor.analyze(("server.log", log), language=language)
        assert [r.id for r in report.runs], figures
        for render in RENDERERS.values():
            assert render(report, Style(detail=1))


@pytest.mark.parametrize("figures", [HOSTILE[0], "0"], ids=lambda f: f"{f[:6]}x{len(f)}")
def test_no_figure_in_a_single_line_stops_the_analysis_of_the_rest(figures: str) -> None:
    for name, before, line in SAMPLES:
        report = vllm_doctor.analyze(("server.log", f"{START}{before}\n{with_figures(line, figures)}\n"))
        assert "0.32.0" in {r.vllm_version for r in report.runs}, name


def test_a_figure_of_400_digits_is_dropped_and_the_rest_is_read() -> None:
    line = "(EngineCore pid=41) INFO 05-05 09:00:02 [gpu_worker.py:642] Available KV cache memory: 3.21 GiB\n"
    huge = "(EngineCore pid=41) INFO 05-05 09:00:03 [kv_cache_utils.py:1] GPU KV cache size: " + "9" * 400 + " tokens\n"
    (memory,) = vllm_doctor.analyze(START + line + huge).memory
    assert (memory.kv_bytes, memory.kv_tokens) == (int(3.21 * 2**30), None)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), float("-inf"), LARGEST, True, "7", None])
def test_what_cannot_be_calculated_with_is_no_figure(value: object) -> None:
    assert figure(value) is None


def test_a_figure_is_a_float() -> None:
    assert (figure(7), figure(-1.5), figure(0)) == (7.0, -1.5, 0.0)
