"""Every option of the knowledge file is a lever of some remedy, or helps no cause, with the reason; every lever can be typed and has an effect."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.judging import FIXTURES, LabelledCase, labelled_cases, outside_cases, report_on
from tests.remedies.cases import FLAGS, RULES
from vllm_doctor.model.observations import Launch
from vllm_doctor.parsing.launch import find
from vllm_doctor.parsing.launch_args import Options
from vllm_doctor.remedies.command import text_of
from vllm_doctor.remedies.rewrite import Edit, rewritten

NO_CURE = {
    "--api-server-count": "more front ends cure a busy API server, a cause that no rule tells yet",
    "--async-scheduling": "hides time of the CPU, a cause that no rule tells yet",
    "--attention-backend": "which backend is slow on which card no input tells; a refused one names itself",
    "--calculate-kv-scales": "about the exactness of an FP8 cache",
    "--compilation-config": "one JSON for many things: graphs have options of their own",
    "--cudagraph-capture-sizes": "the list of what --max-cudagraph-capture-size bounds in one number",
    "--disable-async-output-proc": "costs time of the CPU in V0, a cause that no rule tells yet",
    "--disable-chunked-mm-input": "decides how an image is scheduled; the length of a step stays",
    "--disable-frontend-multiprocessing": "costs time of the CPU in V0, a cause that no rule tells yet",
    "--disable-log-stats": "takes evidence away; what is missing is asked for where it is missing",
    "--distributed-executor-backend": "how workers are started; no failure is told to come from one of them",
    "--enable-lora": "what a server is for; its slots and their rank are the levers",
    "--enable-sleep-mode": "what a server is for; it bars expandable segments in old versions, which is a conflict",
    "--kv-cache-metrics": "evidence, not a cure",
    "--kv-transfer-config": "what a deployment is built on",
    "--max-cpu-loras": "adapters in host memory, where a few hundred MiB are no cause",
    "--max-log-len": "shortens logged prompts",
    "--max-long-partial-prefills": "a part of --max-num-partial-prefills, which is the lever",
    "--max-num-queued-tokens": "the same limit as --max-num-queued-reqs in another unit",
    "--max-paddings": "of releases before 0.4, for batches that are padded no more",
    "--max-parallel-loading-workers": "newer executors do without it, and nothing shows what it would save",
    "--max-seq-len-to-capture": "longest context that V0 runs with graphs: their memory goes by batch sizes",
    "--mm-processor-cache-type": "where processed media lie; their size has its own option",
    "--multi-step-stream-outputs": "a part of --num-scheduler-steps, whose removal is the lever",
    "--optimization-level": "compile effort against start-up time",
    "--prefill-context-parallel-size": "not usable in released versions but for what its developers try",
    "--safetensors-load-strategy": "page cache while loading, which the kernel gives back",
    "--scheduling-policy": "who waits, not how long all wait",
    "--show-hidden-metrics-for-version": "evidence, not a cure",
    "PYTORCH_ALLOC_CONF": "the new name of PYTORCH_CUDA_ALLOC_CONF, which is still read",
    "VLLM_ENABLE_STARTUP_PLAN": "no failure is told to come from a stale plan",
    "VLLM_ENGINE_READY_TIMEOUT_S": "no line is known that tells a slow start from a hanging one",
    "VLLM_LOG_STATS_INTERVAL": "evidence, not a cure",
    "VLLM_USE_V1": "another engine is another server: none of its figures would hold",
    "VLLM_USE_V2_MODEL_RUNNER": "another runner: none of its figures would hold",
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "outputs in one batch of the front end: nobody measured that it matters",
}
"""Options that help no cause that is told here."""


def test_every_option_is_used_or_has_a_reason_not_to_be() -> None:
    advised = {str(r.change.flag or r.change.env) for r in RULES.remedies if r.change}
    named = {item.flag for c in RULES.causes for item in c.not_remedies}
    assert set(FLAGS) - advised - named == set(NO_CURE)


def test_every_remedy_is_of_a_cause() -> None:
    assert {r.id for r in RULES.remedies} == {name for c in RULES.causes for name in c.remedies}


OPTIONS = Options.of(RULES.flags)
VALUES = {
    "--limit-mm-per-prompt": '{"image":0,"video":0}', "--kv-cache-dtype": "fp8", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "--gpu-memory-utilization": 0.91, "--watermark": 0.05,
}  # fmt: skip
LEVERS = sorted(
    {
        (
            str(r.change.flag or r.change.env),
            r.change.action,
            text_of(VALUES.get(str(r.change.flag or r.change.env), r.change.to if r.change.to is not None else 64)),
        )
        for r in RULES.remedies
        if r.change
    }
)
SHELL = "vllm serve Qwen/Qwen2.5-7B-Instruct{options} --port 8000"
COMPOSE = """services:
  vllm:
    image: vllm/vllm-openai:v0.10.2
    environment:
      - HF_HUB_OFFLINE=1
    command:
      - --model
      - Qwen/Qwen2.5-7B-Instruct
{items}      - --port
      - "8000"
"""
KUBERNETES = """        image: vllm/vllm-openai:v0.10.2
        args: ["--model", "Qwen/Qwen2.5-7B-Instruct"{items}, "--port", "8000"]
"""
FORMS = ["shell", "compose", "kubernetes"]


def _text(form: str, option: str, value: str, given: bool) -> str:
    words = [] if not given else [option] if value == "true" else [option, value]
    if form == "shell":
        return SHELL.format(options="".join(f" {shlex.quote(w)}" for w in words))
    if form == "compose":
        return COMPOSE.format(items="".join(f"      - {json.dumps(w)}\n" for w in words))
    return KUBERNETES.format(items="".join(f", {json.dumps(w)}" for w in words))


def _read(text: str) -> Launch:
    (launch,) = find(text, "launch.txt", 1, RULES.flags)
    return launch


def _flags(launch: Launch) -> dict[str, str]:
    return {k: text_of(v) for k, v in launch.flags.items() if k not in ("--port", "--model")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("option", "action", "value"), LEVERS)
def test_every_lever_can_be_written_into_a_command_and_read_back(form: str, option: str, action: str, value: str) -> None:
    flag = FLAGS[option]
    before = _read(_text(form, option, value, given=action == "remove"))
    after = rewritten(before.text, Edit(option, None if action == "remove" else value, flag.env), OPTIONS, before.flags)
    if flag.env and form != "shell":  # a variable has no place in a list of arguments
        assert after is None
        return
    assert after is not None
    read = _read(after)
    assert read.flags["--port"] == 8000
    if flag.env:
        assert read.environment[option] == value
    else:
        assert _flags(read) == ({} if action == "remove" else {option: value})


NO_FIGURE = {
    "--enable-log-requests": "evidence", "--disable-log-requests": "evidence", "--enable-logging-iteration-details": "evidence",
    "--enable-prefix-caching": "how much prompts share no input tells",
    "--prefill-schedule-interval": "how often a step holds a prompt, not how long it takes",
    "--scheduler-reserve-full-isl": "how often requests are preempted, which no input predicts",
    "--disable-custom-all-reduce": "a test", "--max-num-partial-prefills": "who waits for whom", "--num-scheduler-steps": "who waits for whom",
    "--scheduler-delay-factor": "how long prompts were held back no input tells", "--skip-mm-profiling": "what the encoder needs is not known then",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "when a wait is given up", "VLLM_RPC_TIMEOUT": "when a wait is given up",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "when a wait is given up", "--max-num-queued-reqs": "who is refused, where no queue was measured",
}  # fmt: skip
"""Options of which nothing can be predicted in figures, with what they change instead."""
BARE = {
    ("cudagraph-oom", "--enforce-eager"): "an error of the driver states no sizes",
    ("max-model-len-exceeds-model", "--max-model-len"): "no figure",
}
"""(cause, option) for which a case may hold no figures."""


def without_effect(case: LabelledCase) -> list[str]:
    """Changes of the report that have a value, but no effect."""
    return [
        f"{case.folder.name}: {f['id']}: {r['id']}"
        for f in report_on(case)["findings"]
        for r in f["remedies"]
        if r.get("change")
        and (r["change"]["to"] is not None or r["change"]["action"] == "remove")
        and not r["effect"]
        and r["change"]["flag"] not in NO_FIGURE
        and (f["id"], r["change"]["flag"]) not in BARE
    ]


@pytest.mark.parametrize("case", labelled_cases(FIXTURES) + outside_cases(), ids=lambda c: c.folder.name)
def test_a_change_with_a_value_has_an_effect(case: LabelledCase) -> None:
    assert without_effect(case) == []
