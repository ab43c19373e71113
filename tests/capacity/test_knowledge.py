"""Models, cards and notes on options as rules/knowledge states them, and what a folder of one's own may add."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_doctor.cli import run
from vllm_doctor.ruleset.errors import RulesInvalid
from vllm_doctor.ruleset.load import CHECKOUT, knowledge_folder, load_folder, load_knowledge
from vllm_doctor.ruleset.schema import Flag

KNOWLEDGE = load_knowledge()


def written(folder: Path, file: str, text: str) -> str:
    (folder / "knowledge").mkdir()
    (folder / "knowledge" / file).write_text(text, encoding="utf-8")
    return str(folder)


def test_every_note_is_of_an_option_that_is_known() -> None:
    flags = {f.name for f in load_folder(CHECKOUT).flags}
    assert [n.flag for n in KNOWLEDGE.notes if n.flag not in flags] == []


@pytest.mark.parametrize("flag", load_folder(CHECKOUT).flags, ids=lambda f: f.name)
def test_every_option_is_explained_in_chinese(flag: Flag, capsys: pytest.CaptureFixture[str]) -> None:
    assert flag.zh is not None
    assert bool(flag.zh.notes) == bool(flag.notes)
    assert run(["explain", "--lang", "zh", flag.name]) == 0
    text = re.sub(r"`[^`]*`", "", capsys.readouterr().out.replace(flag.zh.default, ""))
    assert not re.search(r"(?:[A-Za-z]+ ){4}", text), "a sentence in English"


def test_names_are_unique() -> None:
    for names in ([m.name for m in KNOWLEDGE.models], [g.name for g in KNOWLEDGE.gpus], [n.flag for n in KNOWLEDGE.notes]):
        assert sorted(set(names)) == sorted(names)


def test_one_object_a_line_reads_as_other_yaml_does(tmp_path: Path) -> None:
    lines = written(tmp_path, "models.yaml", '# note\n- {"name": "a/b", "source": "s", "confidence": "c", "num_hidden_layers": 2}\n')
    block = tmp_path / "block"
    block.mkdir()
    written(block, "models.yaml", "- name: a/b\n  source: s\n  confidence: c\n  num_hidden_layers: 2\n")
    assert knowledge_folder(Path(lines)) == knowledge_folder(block)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('- {"name": "a", "source": "s", "confidence": "c", "layers": 2}\n', "knowledge/models.yaml:1: Object contains unknown field `layers`"),
        ('- {"name": "a", "source": "s", "confidence": "c"}\n' * 2, "knowledge/models.yaml:2: 'a' is also defined in"),
        ("- name: a\n  source: s\n", "knowledge/models.yaml:1: Object missing required field `confidence`"),
    ],
)
def test_a_fault_is_located(text: str, fault: str, tmp_path: Path) -> None:
    folder = written(tmp_path, "models.yaml", text)
    with pytest.raises(RulesInvalid) as invalid:
        knowledge_folder(Path(folder))
    assert fault in f"{invalid.value.errors[0].file.partition('/')[2]}:{invalid.value.errors[0].line}: {invalid.value.errors[0].reason}"


def test_ones_own_model_is_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = (
        '"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "total_params_b": 1.5'
    )
    folder = written(tmp_path, "models.yaml", f'- {{"name": "our/house-1b", "source": "ours", "confidence": "config", {shape}}}\n')
    assert run(["plan", "--model", "house-1b", "--gpu", "24", "--rules", folder, "--lang", "en"]) == 0
    assert "32.0 KiB of KV cache per token" in capsys.readouterr().out


def test_an_option_is_explained_with_its_myths(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--lang", "en", "swap-space"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "in memory V0: pinned host memory for swapped sequence groups. V1: none." in text
    assert "It is a buffer against CUDA OOM or preemption. It is not:" in text
