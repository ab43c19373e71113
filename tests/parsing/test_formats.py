"""Formats against their own samples, and what must not be read as an event."""

from __future__ import annotations

import msgspec
import pytest

from vllm_doctor.model.observations import Clock
from vllm_doctor.parsing import formats, log
from vllm_doctor.ruleset.load import load
from vllm_doctor.ruleset.schema import Format

FORMATS = load().formats


def events(text: str) -> dict[str, int]:
    tally = log.fold(text.encode(), "s", Clock(2026), FORMATS)
    return {kind: found.count for part in tally.parts for kind, found in part.events.items()}


def a_format(**changes: object) -> Format:
    base = {
        "id": "f",
        "literal": "took long",
        "regex": r"It took long: (?P<s>\d+) ms",
        "gives": {"startup.compile": {"field": "s", "unit": "ms"}},
        "samples": [{"version": "1", "line": "INFO 11-30 13:00:00 [a.py:1] It took long: 250 ms", "want": {"startup.compile": 0.25}}],
    }
    return msgspec.convert({**base, **changes}, Format)


def test_every_shipped_sample_is_read_by_exactly_one_format_and_in_full() -> None:
    assert [str(e) for e in formats.check(FORMATS)] == []


def test_a_sample_that_wants_less_than_the_line_gives_is_a_fault() -> None:
    wanted = [{"version": "1", "line": "It took long: 250 ms", "want": {}}]
    assert [e.reason for e in formats.check([a_format(samples=wanted)])] == ["sample 1 (1) gives {'startup.compile': 0.25}"]


def test_a_sample_that_two_formats_read_is_a_fault_of_both() -> None:
    twins = [a_format(), a_format(id="g")]
    assert [e.reason for e in formats.check(twins)] == ["sample 1 (1) is read by ['f', 'g']"] * 2


def test_a_sample_that_no_format_reads_is_a_fault() -> None:
    wanted = [{"version": "1", "line": "It took long: soon", "want": {}}]
    assert [e.reason for e in formats.check([a_format(samples=wanted)])] == ["sample 1 (1) is read by no format"]


def test_an_unknown_parser_is_a_fault() -> None:
    assert "no parser is called 'magic'" in formats.check([a_format(regex=None, parser="magic", gives=["startup.compile"])])[0].reason


def test_a_pattern_that_takes_too_long_three_times_is_switched_off_and_reported() -> None:
    slow = [a_format(literal="xxxx", regex=r"(.*x){20}$", gives={"startup.failed": {}})]
    text = ("x" * 400 + "y\n").encode() * 5
    tally = log.fold(text, "s", Clock(2026), slow)
    assert [(i.code, i.values) for i in tally.issues] == [("pattern-timeout", {"format": "f"})]


@pytest.mark.parametrize(
    "line",
    [
        "INFO 03-27 10:29:03 [model_runner.py:1442] Capturing cudagraphs for decoding. If out-of-memory error occurs during cudagraph capture, wait.",
        "(EngineCore pid=2) WARNING 06-23 10:27:23 [kv_cache_utils.py:1152] Add 6 padding layers, may waste at most 60.00% KV cache memory",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 101376",
        "ERROR 11-30 14:10:02 [client.py:306] NoneType: None",
        "(APIServer pid=1) INFO 11-30 14:02:32 [launcher.py:44] Route: /abort_requests, Methods: POST",
        "INFO 11-30 14:15:27 [x.py:1] Terminated and Killed workers were counted: OverKilled",
        '    raise ValueError("No available memory for the cache blocks. "',
    ],
)
def test_advice_and_look_alikes_are_no_trouble(line: str) -> None:
    harmless = {"startup.capturing", "exception"}
    assert set(events(line)) <= harmless


def test_a_prompt_is_never_read_whatever_it_holds() -> None:
    prompt = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Killed process 1 (x) No available memory for the cache blocks. "
    prompt += "Engine core proc EngineCore_DP0 died unexpectedly, Avg prompt throughput: 1.0 tokens/s, Traceback (most recent call last)"
    line = f"INFO 11-30 14:15:27 [logger.py:39] Received request cmpl-1: prompt: '{prompt}', params: SamplingParams(n=1), lora_request: None."
    assert events(line) == {"request.received": 1}


def test_the_note_on_free_memory_is_advice_and_its_twin_an_error() -> None:
    advice = "INFO 11-30 14:15:27 [gpu_worker.py:1] Free memory on device (3.2/4.0 GiB) on startup. Desired GPU memory utilization is (0.9, 3.6 GiB)."
    error = "ValueError: Free memory on device (3.2/4.0 GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB). Decrease"
    assert events(advice) == {}
    assert events(error) == {"startup.free_below_budget": 1, "exception": 1}


def test_options_that_speak_of_tokens_of_a_text_are_kept() -> None:
    line = "INFO 11-30 14:15:27 [a.py:1] non-default args: {'long_prefill_token_threshold': 2048, 'return_tokens_as_token_ids': True}"
    tally = log.fold(line.encode(), "s", Clock(2026), FORMATS)
    values = {fact.name: fact.value for fact in tally.parts[0].facts}
    assert values == {"flag.long-prefill-token-threshold": 2048, "flag.return-tokens-as-token-ids": True}


def test_secrets_among_the_options_are_not_kept() -> None:
    line = "INFO 11-30 14:15:27 [a.py:1] non-default args: {'model': 'm', 'api_key': ['sk-abc'], 'hf_token': 'hf_x', 'tokenizer': 't', 'port': 1}"
    tally = log.fold(line.encode(), "s", Clock(2026), FORMATS)
    values = {fact.name: fact.value for fact in tally.parts[0].facts}
    assert values == {"model.name": "m", "flag.model": "m", "flag.api-key": "***", "flag.hf-token": "***", "flag.tokenizer": "t", "flag.port": 1}
