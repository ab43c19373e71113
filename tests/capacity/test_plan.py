"""`plan`: the two forum threads, values solved for, and the command with its JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.plan import Plan, plan
from vllm_doctor.capacity.setup import GIB, Limit, Setup
from vllm_doctor.capacity.solving import Quantity, Wish, cautious, longest_length, starts_with
from vllm_doctor.cli import run
from vllm_doctor.reports.plan import as_text
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()


def setup(model: str = "Qwen2.5-7B-Instruct", card: str = "RTX 4090", **more: object) -> Setup:
    found, gpu = find_model(model, KNOWLEDGE), find_gpu(card, KNOWLEDGE)
    assert found.model is not None
    fields: dict[str, object] = {"version": "0.10.2", "gpu_memory_utilization": 0.9, "max_model_len": 8192, "quantization": found.quantization}
    return Setup(model=found.model, gpu=gpu.gpu, total_bytes=round((gpu.total_gib or 0) * GIB), **{**fields, **more})  # type: ignore[arg-type]


def codes(answer: Plan) -> list[str]:
    return [code for code, _ in answer.notes]


def test_thread_one_twenty_requests_queue() -> None:
    answer = plan(setup(), Wish(20))
    assert answer.budget.kv_bytes_per_token == 56 * 1024
    assert answer.budget.kv.bytes / GIB == pytest.approx(5.6, abs=0.1)
    assert answer.budget.kv_tokens == pytest.approx(105_000, rel=0.02)
    assert answer.fits["max_model_len"].requests == pytest.approx(12.8, abs=0.2)
    assert codes(answer) == ["queue"]


def test_thread_one_has_one_or_two_requests_fewer_where_graphs_are_subtracted() -> None:
    before, after = (plan(setup(version=v)).fits["max_model_len"].requests for v in ("0.19.1", "0.20.0"))
    assert 1 <= before - after <= 2


def test_thread_two_eight_requests_cannot_fill_the_pool() -> None:
    answer = plan(setup("Qwen2.5-7B-Instruct-AWQ", "A100 80GB"), Wish(8))
    assert answer.budget.weights.bytes / GIB == pytest.approx(5.2, abs=0.05)
    assert answer.budget.kv.bytes / GIB == pytest.approx(65, abs=1)
    assert answer.budget.kv_tokens > 1_000_000
    assert answer.fits["max_model_len"].requests > 140
    assert codes(answer) == ["room"]


@pytest.mark.parametrize(
    ("question", "wish", "options"),
    [
        ("max-model-len", Wish(), {"max_model_len": None}),
        ("max-model-len", Wish(20), {}),
        ("max-num-seqs", Wish(None, 3000, 500), {}),
        ("gpu-memory-utilization", Wish(10, 3000, 1000), {}),
        ("tp", Wish(60, 6000, 2000), {}),
    ],
)
def test_a_solved_value_fits_and_the_next_one_does_not(question: Quantity, wish: Wish, options: dict[str, object]) -> None:
    answer = plan(setup(**options), wish, question)
    assert answer.solved is not None
    own = answer.setup
    further = {
        "max-model-len": structs.replace(own, max_model_len=(own.max_model_len or 0) + 16),
        "max-num-seqs": structs.replace(own, max_num_seqs=(own.max_num_seqs or 0) + 1),
        "gpu-memory-utilization": structs.replace(own, gpu_memory_utilization=(own.gpu_memory_utilization or 0) - 0.01),
        "tp": structs.replace(own, tensor_parallel_size=own.tensor_parallel_size // 2),
    }[question]

    def fine(trial: Setup) -> bool:
        if question == "max-num-seqs":
            return plan(trial, wish).fits["wanted"].low >= (trial.max_num_seqs or 0)
        if question == "max-model-len":
            longest = plan(trial, wish)
            within = (trial.max_model_len or 0) <= (own.model.max_position_embeddings or 0)
            return within and longest.budget.starts and longest.fits["max_model_len"].low >= (wish.concurrency or 0)
        return starts_with(trial, wish)

    assert (fine(own), fine(further)) == (True, False)


def test_a_question_without_an_answer_says_so() -> None:
    answer = plan(setup("Llama-3.1-70B-Instruct"), Wish(1), "gpu-memory-utilization")
    assert answer.solved == ("gpu-memory-utilization", "")
    assert codes(answer)[0] == "no-kv"


def test_the_longest_length_is_the_last_that_starts() -> None:
    tight = setup("Llama-3.1-8B-Instruct", max_model_len=131072)
    longest = longest_length(tight)
    assert longest is not None
    assert [plan(structs.replace(tight, max_model_len=n)).budget.starts for n in (longest, longest + 16)] == [True, False]
    assert codes(plan(tight)) == ["below-max-len"]
    safe = longest_length(tight, cautious)
    assert safe is not None
    assert safe < longest
    assert plan(tight).flags["--max-model-len"] == str(safe)


def test_a_wish_brings_the_flags_it_needs() -> None:
    answer = plan(setup(max_model_len=2048, max_num_seqs=8), Wish(12, 3000, 1000))
    assert answer.flags == {"--gpu-memory-utilization": "0.9", "--max-model-len": "4000", "--max-num-seqs": "12"}
    assert [limit.name for limit in answer.limits] == ["max_num_seqs", "kv_cache"]
    told = " ".join(as_text([("card", answer)], "a/model", Wish(12, 3000, 1000)).split())
    assert "requests of the wanted length at once (4,000 tokens each;" in told
    assert "binds first: --max-num-seqs, at 8 requests" in told
    assert "longest allowed length" not in told


def test_a_wish_that_no_length_admits_is_bound_by_the_length_and_not_said_to_fit() -> None:
    wish = Wish(None, 6000, 200_000)
    answer = plan(setup(max_model_len=4096), wish)
    assert answer.limits[0] == Limit("max_model_len", 0, 206_000)
    told = " ".join(as_text([("card", answer)], "a/model", wish).split())
    assert "binds first: --max-model-len, at 0 requests" in told
    assert "of the wanted length at once" not in told


# -- the command


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["plan", *arguments]) == 0
    return capsys.readouterr().out


def test_json_has_the_published_shape(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(output(["--model", "Qwen2.5-7B", "--gpu", "4090", "--input", "1000", "--output", "24", "--format", "json"], capsys))
    answer = document["plan"]
    assert document["schema_version"] == "1"
    assert set(answer) >= {
        "model", "gpu", "vllm_version", "flags", "per_gpu", "kv_bytes_per_token", "kv_tokens", "max_concurrency", "requests_that_fit", "limits",
        "error_band", "basis",
    }  # fmt: skip
    assert (answer["model"], answer["gpu"], answer["kv_bytes_per_token"], answer["basis"]) == ("Qwen2.5-7B", "RTX 4090 24GB", 57344, "model")
    per_gpu = answer["per_gpu"]
    names = ("outside", "weights", "activation", "non_torch", "graphs", "kv", "headroom")
    assert sum(per_gpu[f"{n}_bytes"] for n in names) == per_gpu["total_bytes"]
    assert set(answer["requests_that_fit"]) == {"max_model_len", "wanted"}


def test_parts_known_by_measurement_make_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "21.99", "--gpu-memory-utilization", "0.90", "--vllm-version", "0.8.1"]
    parts = ["--weights-gib", "14.2487", "--activation-gib", "1.43", "--non-torch-gib", "0.06"]
    answer = json.loads(output([*arguments, *parts, "--format", "json"], capsys))["plan"]
    assert (answer["basis"], answer["error_band"]["typical"]) == ("measured", None)
    assert answer["kv_tokens"] == pytest.approx(75856, rel=0.001)


def test_a_log_of_the_same_set_up_makes_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 03-25 09:10:09 [worker.py:267] model weights take 14.25GiB; non_torch_memory takes 0.06GiB; "
        "PyTorch activation peak memory takes 1.43GiB; the rest of the memory reserved for KV Cache is 4.05GiB.\n"
    )
    text = output(["--model", "Qwen2.5-7B", "--gpu", "A10G", "--vllm-version", "0.8.1", "--max-model-len", "6600", "--log", str(log)], capsys)
    assert "Basis: measured." in text


def test_several_cards_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "Qwen2.5-7B", "--gpu", "L4", "--gpu", "A100 80GB", "--max-model-len", "8192", "--lang", "en"]
    text = output(arguments, capsys)
    assert [line.split("  ")[-1].strip() for line in text.splitlines() if line.startswith("  KV cache per token")] == ["56.0 KiB"]
    assert "L4 24GB" in text
    assert "A100 SXM4 80GB" in text
    document = json.loads(output([*arguments, "--format", "json"], capsys))
    assert [p["gpu"] for p in document["plans"]] == ["L4 24GB", "A100 SXM4 80GB"]


def test_a_config_json_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944}
    config |= {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768}  # type: ignore[dict-item]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in (str(tmp_path / "config.json"), str(tmp_path), json.dumps(config)):
        answer = json.loads(output(["--model", given, "--gpu", "24", "--format", "json"], capsys))["plan"]
        assert answer["kv_bytes_per_token"] == 57344
        assert answer["per_gpu"]["weights_bytes"] / GIB == pytest.approx(14.19, rel=0.002)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "no-such-model-of-ours", "--gpu", "24"], "not among the known models"),
        (["--model", "Qwen2.5-7B", "--gpu", "V100"], "fits several cards: V100 SXM2/PCIe 16GB, V100 SXM2/PCIe 32GB"),
        (["--model", "Qwen2.5-7B", "--gpu", "RTX 9999"], "not among the known cards"),
        (["--model", "Qwen2.5-7B", "--gpu", "A100"], "say the size: 'A100 40GB' or 'A100 80GB'"),
        (["--model", "Qwen2.5-7B", "--gpu", "24", "stray"], "unexpected argument 'stray'"),
        (["--model", "Qwen2.5-7B", "--gpu", "24", "--max-model-len", "many"], "is not a count"),
        (["--model", "{}", "--gpu", "24"], "it lacks num_hidden_layers"),
    ],
)
def test_misuse_is_said_and_exits_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_options_that_change_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(
        ["--model", "Qwen2.5-7B", "--gpu", "24", "--vllm-version", "0.10.2", "--swap-space", "8", "--enable-prefix-caching", "--lang", "en"], capsys
    )
    assert "--swap-space does not change what fits." in text
    assert "--enable-prefix-caching does not change what fits." in text


def test_it_speaks_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["--model", "Qwen2.5-7B", "--gpu", "24", "--concurrency", "20", "--lang", "zh"], capsys)
    assert "KV缓存占满不会导致CUDA显存不足" in re.sub(r"\s", "", text)


# -- the start command

BASE = ("--model", "Qwen2.5-7B", "--gpu", "RTX 4090", "--lang", "en")


def answer_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return json.loads(output([*BASE, *arguments, "--format", "json"], capsys))["plan"]  # type: ignore[no-any-return]


def test_the_command_is_quoted_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["--model", "x;rm -rf ~/Qwen2.5-7B", "--gpu", "24", "--served-model-name", "a b;c", "--lang", "en"], capsys)
    assert "    vllm serve 'x;rm -rf ~/Qwen2.5-7B' --served-model-name 'a b;c'\n" in text


def test_the_command_holds_every_option_that_the_figures_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    given = "-q awq --dtype half --block-size 32 --num-gpu-blocks-override 4000 --no-enable-chunked-prefill --enable-expert-parallel -dp 2"
    given += (
        " --enforce-eager --cpu-offload-gb 1 --kv-cache-dtype fp8 --max-model-len 2048 --disable-hybrid-kv-cache-manager --gpu-memory-utilization 0.8"
    )
    assert answer_of(capsys, *given.split())["command"] == (
        "vllm serve Qwen2.5-7B --data-parallel-size 2 --gpu-memory-utilization 0.8 --max-model-len 2048 --block-size 32 "
        "--num-gpu-blocks-override 4000 --cpu-offload-gb 1 --dtype half --kv-cache-dtype fp8 --enforce-eager --enable-expert-parallel "
        "--disable-hybrid-kv-cache-manager --no-enable-chunked-prefill --quantization awq"
    )


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("--vllm-version 0.4.2 --max-model-len 4096", "python -m vllm.entrypoints.openai.api_server --model Qwen2.5-7B --max-model-len 4096"),
        ("--vllm-version 0.8.5 --engine V0 --no-enable-chunked-prefill --max-model-len 4096",
         "VLLM_USE_V1=0 vllm serve Qwen2.5-7B --max-model-len 4096 --enable-chunked-prefill False"),
        ("--num-speculative-tokens 3 --draft-model Qwen2.5-0.5B --max-model-len 4096",
         """vllm serve Qwen2.5-7B --max-model-len 4096 --speculative-config '{"model": "Qwen2.5-0.5B", "num_speculative_tokens": 3}'"""),
        ("--vllm-version 0.6.6 --num-speculative-tokens 3 --max-model-len 4096",
         "vllm serve Qwen2.5-7B --max-model-len 4096 --num-speculative-tokens 3"),
        ("--offline --enforce-eager --max-model-len 4096", "LLM('Qwen2.5-7B', max_model_len=4096, enforce_eager=True)"),
        ("-q Q4_K_M --max-model-len 4096", "vllm serve Qwen2.5-7B --max-model-len 4096 --quantization gguf"),
        ("-q w8a16 --max-model-len 4096", "vllm serve Qwen2.5-7B --max-model-len 4096"),
    ],
)  # fmt: skip
def test_the_command_is_spelt_as_its_version_wants(arguments: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_of(capsys, *arguments.split())["command"] == command


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--tp 3", "heads-split"),
        ("--tp 28", "mlp-split"),
        ("--tp 14", "kv-heads-split"),
        ("--pp 99", "stages"),
        ("--tp 4 -dcp 3", "context-parallel"),
        ("--other-gib 20", "free-below-budget"),
        ("--other-gib 20 --vllm-version 0.6.6", "overcommitted"),
        ("--kv-cache-memory-bytes 30Gi", "overcommitted"),
        ("--num-gpu-blocks-override 90000", "overcommitted"),
        ("--vllm-version 0.6.6 --max-num-batched-tokens 1024 --max-model-len 8192", "batched-below-length"),
        ("--max-num-batched-tokens 100 --max-num-seqs 200", "batched-below-seqs"),
        ("--vllm-version 0.6.6 --max-num-seqs 40000 --max-model-len 2048", "batched-below-seqs"),
    ],
)
def test_what_vllm_refuses_is_said_and_no_command_is_printed(arguments: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, *arguments.split())
    assert (answer["starts"], answer["command"], code in [n["code"] for n in answer["notes"]]) == (False, None, True)
    text = output([*BASE, *arguments.split()], capsys)
    assert text.startswith("It does not start: ")
    assert "vllm serve" not in text


def test_a_length_above_the_models_limit_names_the_limit_and_a_command_that_starts(capsys: pytest.CaptureFixture[str]) -> None:
    text = output([*BASE, "--max-model-len", "64000"], capsys)
    assert "It does not start with a length of 64,000 tokens: the model's limit is 32,768, whatever the memory." in " ".join(text.split())
    assert "this surely starts:\n    vllm serve Qwen2.5-7B --max-model-len 3" in text
    assert "start it with:" not in text
    assert "model-limit" not in [n["code"] for n in answer_of(capsys, "--max-model-len", "64000", "--rope-scaling", "{}")["notes"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--kv-cache-memory-bytes 3Gi --vllm-version 0.9.0", "vLLM 0.9.0 has no such option (known from 0.10.2"),
        ("--engine V0", "has V1 only"),
        ("--engine V1 --vllm-version 0.5.5", "has V0 only"),
        ("--kv-cache-dtype fp8 --vllm-version 0.3.3", "does not know it"),
        ("--vllm-version latest", "not a version"),
        ("--weights-gib nan", "'nan' is not a number from 0"),
        ("--graphs-gib inf", "'inf' is not a number from 0"),
        ("--gpu-memory-utilization nan", "'nan' is not a number from 0.01 to 1"),
        ("--input 0 --output 0", "at least one token"),
        ("--input -1", "'-1' is below 0"),
        ("--tp 0", "'0' is below 1"),
        ("--max-num-seqs 0", "'0' is below 1"),
        ("--block-size 0", "'0' is below 1"),
        ("--block-size 7", "a multiple of 16"),
        ("--dtype int3", "not one of auto"),
        ("--quantization awqish", "--quantization awqish: unknown"),
        ("--kv-cache-dtype q4", "not one of auto"),
    ],
)
def test_values_that_vllm_would_not_take_exit_with_2(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *BASE, *arguments.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_version_newer_than_those_read_is_planned_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_of(capsys, "--vllm-version", "0.40.0")["notes"][-1] == {"code": "version-outside", "version": "0.40.0", "nearest": "0.33.0"}


def test_other_options_of_a_pasted_command_are_carried_along(capsys: pytest.CaptureFixture[str]) -> None:
    pasted = (
        "--trust-remote-code --port 8000 --enable-lora --limit-mm-per-prompt={} --seed -1 --swap-space 4 --max-model-length 9 --max-model-len 4096"
    )
    answer = answer_of(capsys, *pasted.split())
    words = "--trust-remote-code --port 8000 --enable-lora --limit-mm-per-prompt={} --seed -1 --max-model-length 9"
    assert answer["other_options"] == words.split()
    assert [n for n in answer["notes"] if n["code"] != "first-start"] == [
        {"code": "takes-memory", "flag": "--enable-lora"},
        {"code": "takes-memory", "flag": "--limit-mm-per-prompt"},
        {"code": "no-such-option", "flag": "--swap-space", "version": "0.33.0"},
        {"code": "perhaps-meant", "flag": "--max-model-length", "close": "--max-model-len"},
        {"code": "not-modelled", "flag": "--trust-remote-code, --port, --seed"},
    ]


def test_a_first_start_is_told_apart_from_a_later_one(capsys: pytest.CaptureFixture[str]) -> None:
    copy = 152064 * 3584 * 2  # Qwen2.5-7B's embedding at 16 bits
    assert {"code": "first-start", "copy": copy} in answer_of(capsys)["notes"]
    assert [n["code"] for n in answer_of(capsys, "--enforce-eager")["notes"] if n["code"] == "first-start"] == []


def test_how_many_requests_fit_is_not_told_of_a_cache_that_is_not_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["--model", "deepseek-ai/DeepSeek-V4-Flash", "--gpu", "H200", "--tp", "4"], capsys)
    assert text.startswith("How many requests fit cannot be told")


def test_the_text_says_which_entries_were_matched(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  calculated for model Qwen/Qwen2.5-7B-Instruct, card RTX 4090 24GB\n" in output([*BASE], capsys)


def test_a_solved_value_holds_at_the_cautious_end_and_both_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "--solve", "max-num-seqs", "--input", "3000", "--output", "500")
    solved, fits = answer["solved"], answer["requests_that_fit"]["wanted"]
    assert int(solved["value"]) == int(fits["range"][0]) < int(solved["middle"])


def test_room_is_promised_only_at_the_cautious_end() -> None:
    base = setup()
    fit = plan(base, Wish(1)).fits["max_model_len"]
    asked = [int(fit.low), int(fit.low) + 1, int(fit.requests) + 1]
    assert [codes(plan(base, Wish(n)))[0] for n in asked] == ["room", "edge", "queue"]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ([], "It starts: "),
        (["--concurrency", "2", "--input", "1000"], "2 at once cannot fill the KV cache: "),
        (["--concurrency", "200", "--input", "3000"], "Of 200 wanted at once, "),
        (["--input", "90000"], "A request of 90,000 tokens exceeds the model's limit of 32,768"),
        (["--solve", "max-num-seqs", "--input", "3000"], "Use --max-num-seqs "),
        (["--tp", "3"], "It does not start: 28 attention heads"),
        (["--max-model-len", "8192", "--other-gib", "4"], "It does not start: free memory below the budget"),
    ],
)
def test_the_first_line_is_the_answer(arguments: list[str], first: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output([*BASE, *arguments], capsys)
    assert text.startswith(first)
    assert re.sub(r"\s+", " ", text).count(re.sub(r"\s+", " ", text.partition("\n\n")[0])) == 1


def test_estimates_have_the_digits_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    text = output([*BASE, "--max-model-len", "8192"], capsys)
    rows = [line for line in text.splitlines() if "calculated (" in line or "rule of thumb" in line]
    assert rows
    assert all(re.search(r"\d+\.\d GiB|\d0? MiB", line) and not re.search(r"\d\.\d\d GiB|\.\d MiB", line) for line in rows)
    assert re.search(r"room for \d{2,3},\d00 tokens", text)


WAYS: tuple[tuple[Setup, Wish], ...] = (
    (setup("Qwen2.5-72B-Instruct", "A100 80GB", max_model_len=None), Wish()),
    (setup("Qwen2.5-32B-Instruct", max_model_len=None), Wish(10, 3000, 1000)),
    (setup("Qwen2.5-32B-Instruct-AWQ", max_model_len=None, version="0.33.0"), Wish()),
    (setup("Qwen2.5-7B-Instruct"), Wish(20, 6000, 2000)),
    (setup("Llama-3.1-8B-Instruct", max_model_len=None), Wish(1, 60000, 1000)),
    (setup(outside_bytes=4 * GIB, version="0.19.1"), Wish()),
)


@pytest.mark.parametrize(("given", "wish"), WAYS)
def test_each_way_out_holds_what_is_wished(given: Setup, wish: Wish) -> None:
    answer = plan(given, wish)
    assert answer.ways
    for way in answer.ways:
        flags = way.flags
        changed = structs.replace(
            given,
            quantization=way.checkpoint or given.quantization,
            max_model_len=int(flags.get("--max-model-len", given.max_model_len or 0)) or None,
            tensor_parallel_size=int(flags.get("--tensor-parallel-size", given.tensor_parallel_size)),
            kv_cache_dtype=flags.get("--kv-cache-dtype", given.kv_cache_dtype),
            gpu_memory_utilization=float(flags.get("--gpu-memory-utilization", given.gpu_memory_utilization or 0.9)),
            max_num_seqs=int(flags.get("--max-num-seqs", 0)) or given.max_num_seqs,
            max_num_batched_tokens=int(flags.get("--max-num-batched-tokens", 0)) or given.max_num_batched_tokens,
        )
        assert starts_with(changed, wish), way
        assert way.requests >= (wish.concurrency or 0)


def test_a_length_that_helps_nobody_is_not_advised() -> None:
    tight = setup("Qwen2.5-32B-Instruct-AWQ", max_model_len=None, version="0.33.0", gpu_memory_utilization=0.9)
    answer = plan(tight)
    lengths = [int(f["--max-model-len"]) for f in (answer.flags, *(w.flags for w in answer.ways)) if "--max-model-len" in f]
    assert not answer.command_starts or lengths
    assert all(n >= 512 for n in lengths)


def test_a_card_without_bfloat16_is_started_with_float16() -> None:
    assert plan(setup(card="V100 32GB")).flags["--dtype"] == "float16"
    assert "--dtype" not in plan(setup()).flags


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("千问2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5 7b int4", "MODEL"),
        ("Qwen2.5-7B-Instruct-AWQ", "Qwen2.5-7B-Instruct-AWQ"),
        ("/models/my qwen2.5-7b", "'/models/my qwen2.5-7b'"),
    ],
)
def test_a_spoken_name_is_not_typed_into_the_command(typed: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["--model", typed, "--gpu", "RTX 4090", "--max-model-len", "8192", "--lang", "en"], capsys)
    assert f"    vllm serve {named} --max-model-len 8192\n" in text


def test_a_set_up_that_holds_the_wish_needs_no_way_out() -> None:
    assert plan(setup(), Wish(5, 1000, 100)).ways == ()


def test_without_fp8_arithmetic_no_fp8_is_advised() -> None:
    answer = plan(setup(card="A100 40GB", max_model_len=32768), Wish(60, 20000, 2000))
    assert answer.ways
    assert [w for w in answer.ways if "fp8" in (w.checkpoint, w.flags.get("--kv-cache-dtype"))] == []


@pytest.mark.parametrize(
    ("name", "options", "noted"),
    [
        ("Qwen3-30B-A3B-FP8", {"tensor_parallel_size": 4}, True),
        ("Qwen3-30B-A3B-FP8", {"tensor_parallel_size": 2}, False),
        ("Qwen3-30B-A3B-FP8", {"tensor_parallel_size": 4, "enable_expert_parallel": True}, False),
        ("Qwen3-30B-A3B-FP8-dynamic", {"tensor_parallel_size": 4}, False),
        ("Qwen2.5-72B-Instruct-AWQ", {"tensor_parallel_size": 8}, True),
    ],
)
def test_blocks_of_a_quantised_checkpoint_are_not_cut(name: str, options: dict[str, object], noted: bool) -> None:
    assert ("blocks-split" in codes(plan(setup(name, "L40S", **options)))) == noted


def test_one_request_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    text = output([*BASE, "--max-model-len", "8192", "--num-gpu-blocks-override", "600"], capsys)
    assert "1 request of the longest allowed length at once" in text
    assert "1 requests" not in text


def test_the_chinese_header_has_one_pair_of_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    assert " · vLLM（已知最新版，V1-e） · " in output([*BASE, "--lang", "zh"], capsys)


def test_the_models_own_limit_is_named_where_it_binds() -> None:
    roomy = setup(card="A100 80GB", max_model_len=None)
    assert codes(plan(roomy, None, "max-model-len")) == ["limit-binds"]
    assert codes(plan(roomy, Wish(None, 40000, 1))) == ["wish-above-limit"]
