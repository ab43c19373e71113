"""Fixtures are what rules are tested on: their labels, figures and privacy must hold, and the trimming must not bend the story."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.judging import FIXTURES, ROOT, LabelledCase, labelled_cases, report_on, right_answer, wrong_answer
from vllm_doctor.model.catalogue import CAUSE_IDS
from vllm_doctor.ruleset.load import load_folder

CASES = labelled_cases(FIXTURES)
OOM = [c for c in CASES if c.folder.name.startswith("oom-")]
FOLDER = {"ids": lambda case: case.folder.name}
NEUTRAL_ADDRESS = re.compile(r"127\.0\.0\.1|0\.0\.0\.0|192\.0\.2\.\d+")
ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
PRIVATE = re.compile(r"/home/|/root/|/Users/|\bhf_[A-Za-z0-9]{20}|\bsk-[A-Za-z0-9]{20}|\bAKIA|[\w.]+@[\w-]+\.[a-z]{2,}")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TRIM = script("trim_capture")


def files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*")) if p.is_file()]


def scrapes(case: LabelledCase) -> list[Path]:
    return sorted((case.folder / "metrics").glob("*.txt"))


@pytest.mark.parametrize("case", CASES, **FOLDER)
def test_a_label_is_complete_and_names_known_causes(case: LabelledCase) -> None:
    label = yaml.safe_load((case.folder / "case.yaml").read_text(encoding="utf-8"))
    assert set(label) - {"healthy", "evidence"} == {"vllm_version", "expect", "accept", "also", "confidence", "input"}
    assert case.near <= set(CAUSE_IDS) | {"healthy", "unclear"}
    assert label.get("healthy", False) is (case.expect == "healthy")
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?", case.vllm_version)


@pytest.mark.parametrize("case", CASES, **FOLDER)
def test_a_fixture_tells_nothing_about_people_and_machines(case: LabelledCase) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in files(case.folder))
    assert [a for a in ADDRESS.findall(text) if not NEUTRAL_ADDRESS.fullmatch(a)] == []
    assert PRIVATE.findall(text) == []
    assert [p for p in re.findall(r"Received request \S+: prompt: (.*?), params: ", text) if len(p) > 40] == []


@pytest.mark.parametrize("case", [c for c in CASES if scrapes(c)], **FOLDER)
def test_scrapes_are_whole_and_in_order(case: LabelledCase) -> None:
    times = [float(path.stem.split("_")[1]) for path in scrapes(case)]
    assert times == sorted(times)
    for path in scrapes(case):
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
        assert any(f.name.startswith("vllm:") for f in families) is not case.folder.name.startswith("log-disable-stats")
        for family in families:
            if family.type == "histogram":
                buckets = [s.value for s in family.samples if s.name.endswith("_bucket") and s.labels.get("le") == "+Inf"]
                assert buckets == [s.value for s in family.samples if s.name.endswith("_count")]


def test_all_fixtures_together_stay_small() -> None:
    assert sum(path.stat().st_size for path in files(FIXTURES)) < 6 * 2**20


def test_every_recipe_has_its_fixture() -> None:
    assert set(TRIM.RECIPES) | {c.folder.name for c in OOM} == {c.folder.name for c in CASES}


SIZE = r"([\d.]+ [GM]iB)"


def mib(text: str) -> float:
    number, unit = text.split()
    return float(number) * (1024 if unit == "GiB" else 1)


@pytest.mark.parametrize("case", OOM, **FOLDER)
def test_the_figures_of_an_out_of_memory_error_agree(case: LabelledCase) -> None:
    log = (case.folder / "server.log").read_text(encoding="utf-8")
    found = re.search(
        rf"Tried to allocate {SIZE}\. GPU 0 has a total capacity of {SIZE} of which {SIZE} is free\..* this process has {SIZE} memory in use\. "
        rf"Of the allocated memory {SIZE} is allocated by PyTorch, and {SIZE} is reserved by PyTorch but unallocated",
        log,
    )
    assert found is not None
    tried, total, free, own, allocated, reserved = map(mib, found.groups())
    foreign = total - free - own
    named = re.search(rf"Process \d+ has {SIZE} memory in use", log)
    assert foreign == pytest.approx(mib(named[1]) if named else (6.73 * 1024 if case.expect == "other-process-on-gpu" else 0), abs=12)
    assert 256 < own - allocated - reserved < 2048, "what is left is the context, graphs and NCCL"
    assert (reserved >= tried) is (case.expect == "allocator-fragmentation")
    assert free < tried
    tokens, concurrency = re.search(r"KV cache size: ([\d,]+) tokens", log), re.search(r"for 32,768 tokens per request: ([\d.]+)x", log)
    assert tokens is not None
    assert concurrency is not None
    pool = int(tokens[1].replace(",", "")) * 131072 / 2**20
    assert int(tokens[1].replace(",", "")) / 32768 == pytest.approx(float(concurrency[1]), abs=0.005)
    assert pool + 14.99 * 1024 < allocated


def scrape(running: int, preemptions: int) -> str:
    return f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:num_preemptions_total{{engine="0"}} {preemptions}.0\n'


def test_trimming_keeps_the_ends_the_extremes_and_both_sides_of_a_change() -> None:
    texts = [scrape(running=9 if i == 5 else 1, preemptions=3 if i >= 14 else 0) for i in range(20)]
    assert TRIM.scrapes_to_keep(texts, every=8) == {0, 5, 8, 13, 14, 16, 19}
    assert TRIM.scrapes_to_keep([], every=8) == set()


def test_trimming_drops_whole_families_and_only_boundaries_between_empty_buckets() -> None:
    counts = {"0.1": 0, "0.2": 0, "0.3": 4, "0.4": 4, "0.5": 4, "0.6": 4, "+Inf": 5}
    buckets = {le: f'vllm:x_seconds_bucket{{engine="0",le="{le}",model_name="m"}} {n}.0' for le, n in counts.items()}
    text = "\n".join(
        [
            "# HELP python_info Python",
            "# TYPE python_info gauge",
            'python_info{version="3"} 1.0',
            "# HELP vllm:x_seconds X",
            "# TYPE vllm:x_seconds histogram",
            *buckets.values(),
            'vllm:x_seconds_count{engine="0",model_name="m"} 5.0',
            'vllm:x_seconds_created{engine="0",model_name="m"} 1.0',
        ]
    )
    kept = TRIM.trim_scrape(text, False, TRIM.empty_boundaries(text)).splitlines()
    assert kept == [
        "# TYPE vllm:x_seconds histogram",
        *(buckets[le] for le in ("0.2", "0.3", "0.6", "+Inf")),
        'vllm:x_seconds_count{engine="0",model_name="m"} 5.0',
    ]
    assert TRIM.trim_scrape(text, True, set()).splitlines()[0] == "# HELP vllm:x_seconds X"


def test_trimming_shortens_prompts_and_keeps_the_shape_of_their_line() -> None:
    line = "INFO 11-30 14:18:01 [logger.py:39] Received request cmpl-1-0: prompt: 'a prompt of many more words', params: SamplingParams(n=1), "
    assert TRIM.shorten(line + "prompt_token_ids: [1, 22, 333, 4, 5, 6], lora_request: None.") == (
        "INFO 11-30 14:18:01 [logger.py:39] Received request cmpl-1-0: prompt: 'a prompt of many more wo', params: SamplingParams(n=1), "
        "prompt_token_ids: [1, 22, 333, 4], lora_request: None."
    )
    assert TRIM.shorten("'cache_dir': '/home/somebody/.cache/vllm'") == "'cache_dir': '/srv/vllm/.cache/vllm'"


def test_trimming_thins_noise_and_keeps_the_rest_of_a_log() -> None:
    routes = [f"INFO [launcher.py:43] Route: /{i}, Methods: GET" for i in range(5)]
    leaks = ["nanobind: leaked 4 instances!", *[f' - leaked instance {i} of type "t"' for i in range(5)]]
    refused = ['INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error'] * 5
    log = "\n".join(["start", *routes, *refused, *leaks, "end"])
    assert TRIM.trim_log(log, access_run=2).splitlines() == ["start", *routes[:2], *refused[:2], *leaks[:3], "end"]
    assert TRIM.trim_log(log, access_run=None).count("500 Internal") == 5


KNOWN = {cause.id for cause in load_folder(ROOT / "rules").causes} | {"healthy", "unclear"}
"""What the rules can answer so far. A fixture may come before its cause; until then no answer about it may mislead."""


@pytest.mark.parametrize("case", [c for c in CASES if c.confidence >= 0.7], **FOLDER)
def test_a_fixture_is_diagnosed(case: LabelledCase) -> None:
    report = report_on(case)
    assert wrong_answer(case, report) is None
    if case.expect in KNOWN:
        assert right_answer(case, report), (report["verdict"], [f["id"] for f in report["findings"]])
