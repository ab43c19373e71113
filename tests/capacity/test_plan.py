"""`plan`: the two forum threads, values solved for, and the command with its JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.plan import Plan, Quantity, Wish, longest_length, plan, starts_with
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.cli import run
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
            return plan(trial, wish).fits["wanted"].requests >= (trial.max_num_seqs or 0)
        if question == "max-model-len":
            longest = plan(trial, wish)
            within = (trial.max_model_len or 0) <= (own.model.max_position_embeddings or 0)
            return within and longest.budget.starts and longest.fits["max_model_len"].requests >= (wish.concurrency or 0)
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
    assert plan(tight).flags["--max-model-len"] == str(longest)


def test_a_wish_brings_the_flags_it_needs() -> None:
    answer = plan(setup(max_model_len=2048, max_num_seqs=8), Wish(12, 3000, 1000))
    assert answer.flags == {"--gpu-memory-utilization": "0.9", "--max-model-len": "4000", "--max-num-seqs": "12"}
    assert answer.limits[0].name == "max_model_len"


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
        (["--model", "Qwen2.5-7B", "--gpu", "24", "--no-such-option", "1"], "No such option"),
        (["--model", "Qwen2.5-7B", "--gpu", "24", "--max-model-len", "many"], "is not a count"),
        (["--model", "{}", "--gpu", "24"], "it lacks num_hidden_layers"),
    ],
)
def test_misuse_is_said_and_exits_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_options_that_change_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["--model", "Qwen2.5-7B", "--gpu", "24", "--swap-space", "8", "--enable-prefix-caching", "--lang", "en"], capsys)
    assert "--swap-space does not change what fits." in text
    assert "--enable-prefix-caching does not change what fits." in text


def test_it_speaks_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["--model", "Qwen2.5-7B", "--gpu", "24", "--concurrency", "20", "--lang", "zh"], capsys)
    assert "KV缓存占满不会导致CUDA显存不足" in re.sub(r"\s", "", text)
