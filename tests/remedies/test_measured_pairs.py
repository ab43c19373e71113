"""What-if against starts that differ in a few options only: from what one of them measured to what the other did."""

from __future__ import annotations

import csv
import itertools

import pytest

from tests.judging import ROOT
from tools.memory_table import number, setup_of
from vllm_doctor.remedies.figures import GIB, Figures
from vllm_doctor.remedies.moves import Move
from vllm_doctor.remedies.resize import resized
from vllm_doctor.remedies.servers import Server
from vllm_doctor.ruleset.load import load_knowledge

Row = dict[str, str]
OPTIONS = {
    "kv_cache_dtype": "--kv-cache-dtype", "tp": "--tensor-parallel-size", "pp": "--pipeline-parallel-size",
    "gpu_mem_util": "--gpu-memory-utilization", "max_model_len": "--max-model-len", "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens", "enforce_eager": "--enforce-eager",
}  # fmt: skip
SERVER = ("version", "gpu", "model", "quant", "engine")
TOLERANCE = 0.08
"""Beyond the predicted range: no pair of the same host at the same hour is among them."""
UNLIKE = {
    ("0.7.2", "Qwen/Qwen2.5-Math-1.5B"): "a larger share gives a smaller pool: another process held the card at one of the starts",
    ("0.30.0", "Qwen/Qwen2.5-1.5B-Instruct"): "without graphs 1.1 GiB came free on a laptop's card, and 0.2 GiB of graphs were printed",
    ("0.11.0 (stated for Mistral row)", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"): "one of the two failed to start: no pool to compare",
}


def pairs() -> list[tuple[Row, Row]]:
    """Both ways: every two starts of one model, card and version with a pool, that differ in an option."""
    with (ROOT / "tests" / "capacity" / "starts.csv").open(encoding="utf-8", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["kv_tokens"] or r["kv_cache_gib"]]
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(tuple(row[k] for k in SERVER), []).append(row)
    found = [p for same in alike.values() for p in itertools.permutations(same, 2)]
    return [(a, b) for a, b in found if any(a[o] != b[o] for o in OPTIONS) and (a["version"], a["model"]) not in UNLIKE]


def name(pair: tuple[Row, Row]) -> str:
    a, b = pair
    return f"{a['model'].rpartition('/')[2]}: " + ", ".join(f"{o} {a[o] or '-'} to {b[o] or '-'}" for o in OPTIONS if a[o] != b[o])


@pytest.mark.parametrize("pair", pairs(), ids=name)
def test_a_what_if_comes_near_to_the_start_that_was_made(pair: tuple[Row, Row]) -> None:
    a, b = pair
    setup = setup_of(a, load_knowledge())
    assert setup is not None

    def size(key: str) -> float | None:
        gib = number(a[key])
        return None if gib is None else gib * GIB

    before = Figures(
        weights=size("weights_gib"),
        activation=size("activation_peak_gib"),
        non_torch=size("non_torch_gib"),
        graphs=size("cudagraph_gib"),
        kv_rest=size("kv_cache_gib"),
        kv_tokens=number(a["kv_tokens"]),
        servers=(Server(setup),),
    )
    moves = [Move(flag, b[o] or None, remove=not b[o]) for o, flag in OPTIONS.items() if a[o] != b[o]]
    found = resized(before, moves)
    assert found is not None
    key, low, high = ("kv_tokens", found.low.kv_tokens, found.high.kv_tokens)
    if not a["kv_tokens"] or not b["kv_tokens"]:
        key, low, high = ("kv_cache_gib", (found.low.kv_bytes or 0.0) / GIB, (found.high.kv_bytes or 0.0) / GIB)
    real = number(b[key])
    assert real is not None
    assert low is not None
    assert high is not None
    assert low * (1 - TOLERANCE) <= real <= high * (1 + TOLERANCE), (low, real, high)


def test_there_are_pairs_to_compare() -> None:
    assert len(pairs()) >= 14
