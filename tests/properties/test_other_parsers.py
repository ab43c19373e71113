"""Hostile input never raises; the arithmetic of counters and histograms keeps its laws."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parsing.test_gpu import DRIVER_525, DRIVER_580, MIG
from tests.parsing.test_launch import FLAGS
from tests.parsing.test_prometheus import METRICS, SCRAPE_032
from vllm_doctor.model.observations import Histogram, Issue
from vllm_doctor.parsing import gpu, launch, prometheus
from vllm_doctor.sources import Source, read

COMMAND = """export HF_TOKEN=x
$ VLLM_USE_V1=0 vllm serve a/b \\
   --max-num-seqs 64 -tp 2 --limit-mm-per-prompt '{"image": 4}' > log 2>&1
docker run --gpus all vllm/vllm-openai:v0.9.1 --model a/b
    args: ["vllm", "serve", "a/b", "--port", "1"]
llm = LLM(model="a/b", limit_mm_per_prompt={"image": 12},
          enforce_eager=True)
"""
CSV = (
    "index, name, memory.total [MiB], memory.used [MiB]\n0, NVIDIA L40S, 46068 MiB, 41877 MiB\n"
    "pid, process_name, used_gpu_memory [MiB]\n1, a, b, 5 MiB\n"
)
SEEDS = [SCRAPE_032, DRIVER_525, DRIVER_580, MIG, CSV, COMMAND]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A sample with pieces cut out, doubled, swapped or overwritten; or plain noise."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=400))
    data = draw(st.sampled_from(SEEDS)).encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 120)))
        piece = draw(
            st.sampled_from([b"", data[start:end] * 2, b"\n", b"\0", b"\xff\xfe", b'"', b"{", b"NaN", b"9" * 30, b"ERR!", b"|", b"# TYPE x y\n"])
        )
        data = data[:start] + piece + data[end:]
    return data


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_no_bytes_make_a_parser_raise(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    scrape, issues = prometheus.parse(data, "s", 5, METRICS)
    gpus, more = gpu.parse(text, "s", 5)
    launches = launch.find(text, "s", 5, FLAGS)
    assert b"".join(piece for _, piece in prometheus.split(data)) == data
    lines = range(5, 6 + data.count(b"\n") + data.count(b"\r"))
    refs = [issue.ref for issue in [*issues, *more] if issue.ref] + [g.ref for g in gpus] + [found.ref for found in launches]
    assert all(ref.source == "s" and ref.line in lines for ref in refs + list(scrape.refs.values() if scrape else []))
    if scrape is not None:
        assert all(math.isfinite(value) and value >= 0 for value in [*scrape.gauges.values(), *scrape.counters.values()])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.sampled_from([b"", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\0" * 257 + b"ustar"]))
def test_no_bytes_make_reading_raise(noise: bytes, magic: bytes) -> None:
    sources, issues = read([], magic + noise)
    later: list[Issue] = []
    kept = [piece for source in sources for piece in source.blocks(later)]
    assert kept or issues or later


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=5000), st.integers(1, 700))
def test_blocks_are_the_file(data: bytes, block: int) -> None:
    import gzip

    packed = gzip.compress(data)
    for source in (Source("s", None, data, len(data)), Source("s", None, packed, len(packed), None, "gzip")):
        issues: list[Issue] = []
        pieces = list(source.blocks(issues, block))
        assert (b"".join(pieces), issues) == (data, [])
        assert all(len(piece) <= block for piece in pieces)


counts = st.lists(st.integers(0, 1000).map(float), min_size=2, max_size=12)


@given(counts)
def test_the_growth_of_a_doubled_counter_is_double(values: list[float]) -> None:
    growth, double = prometheus.delta_counter(values), prometheus.delta_counter([2 * v for v in values])
    assert growth is not None
    assert double == 2 * growth


@given(counts, counts)
def test_growth_adds_up_over_adjoining_stretches(left: list[float], right: list[float]) -> None:
    whole = prometheus.delta_counter(left + right)
    parts = [prometheus.delta_counter(left), prometheus.delta_counter([left[-1], right[0]]), prometheus.delta_counter(right)]
    assert whole == sum(p for p in parts if p is not None)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    bounds = sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=8)))
    steps = draw(st.lists(st.integers(0, 20), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    rows, total = [], 0
    for bound, step in zip([*map(float, bounds), math.inf], steps, strict=True):
        total += step
        rows.append((bound, float(total)))
    return Histogram(tuple(rows), float(draw(st.integers(0, 1000))), float(total))


def scaled(histogram: Histogram, factor: float) -> Histogram:
    return Histogram(tuple((b, n * factor) for b, n in histogram.buckets), histogram.sum * factor, histogram.count * factor)


@given(histograms())
def test_a_doubled_histogram_has_grown_by_itself(histogram: Histogram) -> None:
    assert prometheus.delta_histogram(histogram, scaled(histogram, 2)) == histogram
    assert prometheus.sum_histograms([histogram, histogram]) == scaled(histogram, 2)


@given(histograms(), histograms())
def test_the_growth_of_a_sum_is_what_was_added(first: Histogram, more: Histogram) -> None:
    both = prometheus.sum_histograms([first, more])
    grown = prometheus.delta_histogram(first, both)
    assert (grown.count, grown.sum) == (more.count, more.sum)
    assert all(dict(more.buckets)[bound] == n for bound, n in grown.buckets)


@given(histograms(), st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 3.0, 0.5]))
def test_quantiles_ascend_lie_within_the_bounds_and_do_not_depend_on_scale(histogram: Histogram, p: float, q: float, factor: float) -> None:
    low, high = prometheus.quantile(histogram, min(p, q)), prometheus.quantile(histogram, max(p, q))
    if histogram.count == 0:
        assert (low, high) == (None, None)
        return
    assert low is not None
    assert high is not None
    assert 0 <= low <= high + 1e-9
    assert high <= histogram.buckets[-2][0]
    assert prometheus.quantile(scaled(histogram, factor), q) == pytest.approx(prometheus.quantile(histogram, q))
