"""What `plan` is given as people write it: counts of cards, names of options, versions, sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_doctor.capacity.names import counted, find_gpu
from vllm_doctor.cli import run
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()
MODEL = ["plan", "--model", "Qwen2.5-7B-Instruct"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*MODEL, *arguments, "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(
    ("written", "count", "card"),
    [
        ("4090*2", 2, "RTX 4090 24GB"),
        ("4090x2", 2, "RTX 4090 24GB"),
        ("3090 * 4", 4, "RTX 3090 24GB"),
        ("2x4090", 2, "RTX 4090 24GB"),
        ("2 x RTX 3090", 2, "RTX 3090 24GB"),
        ("8×H100", 8, "H100 SXM5 80GB"),
        ("H100*8", 8, "H100 SXM5 80GB"),
        ("双卡4090", 2, "RTX 4090 24GB"),
        ("4090双卡", 2, "RTX 4090 24GB"),
        ("四张 3090", 4, "RTX 3090 24GB"),
        ("8卡 H100", 8, "H100 SXM5 80GB"),
        ("dual 3090", 2, "RTX 3090 24GB"),
        ("H100,H100", 2, "H100 SXM5 80GB"),
        ("4090 24g x 2", 2, "RTX 4090 24GB"),
        ("4 A100 80G", 4, "A100 SXM4 80GB"),
        ("RTX 4090 (x2)", 2, "RTX 4090 24GB"),
        ("MI300X x8", 8, "MI300X 192GB"),
        ("2x24GB", 2, None),
        ("24x2", 2, None),
        # no counts
        ("RTX 4090", 1, "RTX 4090 24GB"),
        ("RX 7900 XTX", 1, "Radeon RX 7900 XTX 24GB"),
        ("MI300X", 1, "MI300X 192GB"),
        ("4090显卡", 1, "RTX 4090 24GB"),
        ("Ascend 910C 128GB (2x64)", 1, "Ascend 910C 128GB (2x64)"),
        ("NVIDIA H100 80GB HBM3", 1, "H100 SXM5 80GB"),
    ],
)
def test_a_count_of_cards_is_read_and_no_size_or_name_is_one(written: str, count: int, card: str | None) -> None:
    found = find_gpu(written, KNOWLEDGE)
    assert (found.count, found.gpu and found.gpu.name) == (count, card)
    assert found.total_gib is not None
    assert found.total_gib > 20


def test_no_name_in_the_table_is_read_as_a_count() -> None:
    for gpu in KNOWLEDGE.gpus:
        for name in (gpu.name, *gpu.aliases):
            assert find_gpu(name, KNOWLEDGE).count == 1, name


def test_different_cards_in_one_text_are_none_of_them() -> None:
    assert find_gpu("4090,3090", KNOWLEDGE).total_gib is None
    assert counted("4090,3090") == (1, "4090,3090")
    sized = find_gpu("RTX 5080 + RTX 5070 Ti (16GB each)", KNOWLEDGE)
    assert (sized.gpu, sized.total_gib, sized.count) == (None, 15.6, 2)


@pytest.mark.parametrize(
    ("arguments", "tp", "pp"),
    [
        (["--gpu", "2x4090"], 2, 1),
        (["--gpu", "4x4090", "--pp", "2"], 2, 2),
        (["--gpu", "4x4090", "--dp", "2"], 2, 1),
        (["--gpu", "4x4090", "--tp", "2"], 2, 1),
        (["--gpu", "4090", "--tp", "2"], 2, 1),
    ],
)
def test_a_count_is_tensor_parallel_where_the_options_leave_it(capsys: pytest.CaptureFixture[str], arguments: list[str], tp: int, pp: int) -> None:
    plan = answer(capsys, *arguments, "--max-model-len", "8192")["plan"]
    assert plan["tensor_parallel_size"] == tp
    assert plan["flags"].get("--pipeline-parallel-size", "1") == str(pp)
    assert plan["flags"]["--tensor-parallel-size"] == str(tp)


def test_a_count_is_said_in_the_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MODEL, "--gpu", "双卡4090", "--lang", "zh"]) == 0
    assert "2 × RTX 4090 24GB 运行 Qwen2.5-7B-Instruct · vLLM（已知最新版，V1-e） · 张量并行 2" in capsys.readouterr().out


def test_options_take_no_more_cards_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MODEL, "--gpu", "2x4090", "--tp", "2", "--pp", "2"]) == 2
    assert "2 GPUs, while the options take 4" in capsys.readouterr().err


def test_underscores_stand_for_hyphens_as_in_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    with_hyphens = answer(capsys, "--gpu", "4090", "--max-model-len", "8192", "--gpu-memory-utilization", "0.85", "--tensor-parallel-size", "2")
    underscored = answer(capsys, "--gpu", "4090", "--max_model_len", "8192", "--gpu_memory_utilization=0.85", "--tensor_parallel_size", "2")
    assert underscored == with_hyphens
    assert underscored["plan"]["settings"]["max_model_len"] == 8192
    assert answer(capsys, "--gpu", "4090", "--solve", "max_model_len")["plan"]["solved"]["quantity"] == "max-model-len"


@pytest.mark.parametrize("option", ["--dp", "-dp", "--data-parallel-size", "--data_parallel_size"])
def test_the_short_names_of_vllm_are_known(capsys: pytest.CaptureFixture[str], option: str) -> None:
    plan = answer(capsys, "--gpu", "4090", "--max-model-len", "8192", option, "8")["plan"]
    assert plan["flags"]["--data-parallel-size"] == "8"
    assert [n for n in plan["notes"] if n["code"] == "not-modelled"] == []


@pytest.mark.parametrize(
    ("written", "version", "generation"),
    [
        ("0.10.1.1", "0.10.1.1", "V1-b"),
        ("0.9.0.1", "0.9.0.1", "V1-a"),
        ("vllm 0.9.1", "0.9.1", "V1-b"),
        ("vLLM==0.9.1", "0.9.1", "V1-b"),
        ("vllm/vllm-openai:v0.9.1", "v0.9.1", "V1-b"),
        (" v0.9.1 ", "v0.9.1", "V1-b"),
        ("vllm-0.6.3", "0.6.3", "V0-b"),
    ],
)
def test_versions_are_read_as_pip_and_people_write_them(capsys: pytest.CaptureFixture[str], written: str, version: str, generation: str) -> None:
    plan = answer(capsys, "--gpu", "4090", "--max-model-len", "8192", "--vllm-version", written)["plan"]
    assert (plan["vllm_version"], plan["engine_generation"]) == (version, generation)


@pytest.mark.parametrize("written", ["vllm", "latest", "0.9.1.1.1", "vllm==", "torch 2.9"])
def test_what_is_no_version_is_refused(capsys: pytest.CaptureFixture[str], written: str) -> None:
    assert run([*MODEL, "--gpu", "4090", "--vllm-version", written]) == 2
    assert "not a version such as 0.10.2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "card", "gib"),
    [
        ("24564MiB", None, 23.63),
        ("24564", None, 23.63),
        ("NVIDIA GeForce RTX 4090, 24564MiB", "RTX 4090 24GB", 23.585),
        ("NVIDIA A100-SXM4-80GB, 81920 MiB", "A100 SXM4 80GB", 79.175),
        ("1000", None, 1000.0),
    ],
)
def test_a_size_is_read_as_nvidia_smi_shows_it(written: str, card: str | None, gib: float) -> None:
    found = find_gpu(written, KNOWLEDGE)
    assert (found.gpu and found.gpu.name, found.total_gib) == (card, gib)


def test_a_number_that_many_cards_bear_is_asked_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MODEL, "--gpu", "RTX6000"]) == 2
    assert "RTX 6000 Ada 48GB, Quadro RTX 6000 24GB, RTX PRO 6000 Blackwell 96GB" in capsys.readouterr().err
    for written, card in (
        ("RTX 6000 Ada", "RTX 6000 Ada 48GB"),
        ("RTX6000 24GB", "Quadro RTX 6000 24GB"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell 96GB"),
    ):
        found = find_gpu(written, KNOWLEDGE).gpu
        assert found is not None
        assert found.name == card


@pytest.mark.parametrize(("card", "on", "off"), [("RTX A6000", 44.55, 47.54), ("RTX 6000 Ada", 44.5, 47.5), ("RTX 5000 Ada", 29.5, 31.6)])
def test_a_card_with_ecc_on_or_off_has_both_sizes_in_its_range(capsys: pytest.CaptureFixture[str], card: str, on: float, off: float) -> None:
    def kv(size: str) -> tuple[int, list[int], list[dict[str, Any]]]:
        plan = answer(capsys, "--gpu", size, "--vllm-version", "0.10.2", "--gpu-memory-utilization", "0.9")["plan"]
        return plan["per_gpu"]["kv_bytes"], plan["error_band"]["kv_bytes"], plan["notes"]

    named, both, notes = kv(card)
    with_ecc, with_range, _ = kv(f"{on}GiB")
    without, without_range, none = kv(f"{off}GiB")
    assert named == pytest.approx(with_ecc, rel=0.01)
    assert both == pytest.approx([with_range[0], without_range[1]], rel=0.01)
    assert both[0] < with_ecc < without < both[1]
    assert [n["ecc_off"] for n in notes if n["code"] == "ecc"] == [round(on * 2**30) + round((off - on) * 2**30)]
    assert [n for n in none if n["code"] == "ecc"] == []
    assert [n for n in kv(f"{card} {off}GiB")[2] if n["code"] == "ecc"] == []


def test_ecc_is_told_by_what_nvidia_smi_shows() -> None:
    found = find_gpu("NVIDIA RTX A6000, 49140MiB", KNOWLEDGE)
    assert (found.total_gib, found.spread_gib) == (47.27, 0.0)


@pytest.mark.parametrize("card", ["Gaudi 2", "TPU v6e", "Ascend 910B 64GB", "Arc A770"])
def test_a_device_without_cuda_is_said_not_to_be_checked(capsys: pytest.CaptureFixture[str], card: str) -> None:
    plan = answer(capsys, "--gpu", card, "--max-model-len", "2048", "--quantization", "awq")["plan"]
    assert [n["code"] for n in plan["notes"] if n["code"] == "other-device"] == ["other-device"]
    assert plan["error_band"]["typical"] is None
    assert run([*MODEL, "--gpu", card, "--lang", "en"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "has not been checked on" in text
    assert "measured starts" not in text


def test_help_names_the_unit_of_each_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--gpu-memory-utilization SHARE" in text
    assert "--other-gib GIB" in text.replace("GiB", "GIB")


def test_the_opposite_of_a_switch_is_known_as_the_switch(capsys: pytest.CaptureFixture[str]) -> None:
    plan = answer(capsys, "--gpu", "4090", "--max-model-len", "8192", "--no-enable-prefix-caching", "--no-such-thing")["plan"]
    assert [(n["code"], n["flag"]) for n in plan["notes"] if "flag" in n] == [
        ("no-effect", "--enable-prefix-caching"),
        ("not-modelled", "--no-such-thing"),
    ]
    assert plan["other_options"] == ["--no-enable-prefix-caching", "--no-such-thing"]


def test_a_config_that_is_not_there_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "/nowhere/config.json", "--gpu", "4090"]) == 2
    assert "cannot read /nowhere/config.json" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_config_is_read_in_the_encodings_that_editors_write(capsys: pytest.CaptureFixture[str], tmp_path: Path, encoding: str) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding=encoding)
    assert run(["plan", "--model", str(file), "--gpu", "4090", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["kv_bytes_per_token"] == 16 * 8 * 64 * 2 * 2


@pytest.mark.parametrize(
    ("written", "near"),
    [("Quen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"), ("Qwen2.5-70B", "Qwen/Qwen2.5-72B-Instruct"), ("lama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct")],
)
def test_a_mistyped_model_gets_its_neighbours(capsys: pytest.CaptureFixture[str], written: str, near: str) -> None:
    assert run(["plan", "--model", written, "--gpu", "4090"]) == 2
    assert near in capsys.readouterr().err


def test_so_many_gpus_that_cannot_share_the_model_get_the_nearest_that_can(capsys: pytest.CaptureFixture[str]) -> None:
    plan = answer(capsys, "--gpu", "3x4090")["plan"]
    assert not plan["starts"]
    found = [(w["kind"], w["flags"]["--tensor-parallel-size"], w["checkpoint"]) for w in plan["ways"]]
    assert found == [("tp", "2", None), ("tp", "4", None)]


def test_one_gpu_is_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "Qwen2.5-0.5B-Instruct", "--gpu", "4090", "--tp", "3", "--lang", "en"]) == 0
    text = capsys.readouterr().out
    assert "--tensor-parallel-size 2 (2 such GPUs)" in text or "--tensor-parallel-size 1 (1 such GPU)" in text
    assert "1 such GPUs" not in text


@pytest.mark.parametrize("length", [[], ["--max-model-len", "8192"]])
@pytest.mark.parametrize("version", ["0.6.3", "0.10.2"])
def test_a_card_that_others_use_gets_a_smaller_share(capsys: pytest.CaptureFixture[str], version: str, length: list[str]) -> None:
    plan = answer(capsys, "--gpu", "4090", "--vllm-version", version, "--other-gib", "6", *length)["plan"]
    assert not plan["starts"]
    shares = [float(w["flags"]["--gpu-memory-utilization"]) for w in plan["ways"] if "--gpu-memory-utilization" in w["flags"]]
    assert shares
    assert all(0.6 < share < 0.74 for share in shares)


def test_the_command_has_a_length_in_whole_blocks_as_the_way_has(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "Llama-3.1-8B-Instruct", "--gpu", "4090", "--vllm-version", "0.10.2", "--format", "json"]
    assert run(["plan", *arguments]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    command, way = plan["flags"]["--max-model-len"], next(w for w in plan["ways"] if w["kind"] == "length")
    assert (int(command) % 16, command) == (0, way["flags"]["--max-model-len"])
