"""An installed wheel works anywhere: the rules travel with it, compiled, and the checkout stays as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import msgspec
import pytest

from tests.judging import FIXTURES, ROOT
from vllm_doctor import __version__
from vllm_doctor.ruleset.load import knowledge_folder, load_folder
from vllm_doctor.ruleset.schema import Knowledge, RuleSet

LOG = FIXTURES / "oom-fragmentation-0.14" / "server.log"


def pip(python: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed `vllm-doctor`, in an environment that holds nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    installed = pip(folder / "bin" / "python", "install", "--quiet", str(wheel))
    assert installed.returncode == 0, installed.stderr
    return folder / "bin" / "vllm-doctor"


def run(command: Path, folder: Path, *arguments: str) -> str:
    """Output of the command in a folder far from the checkout, with nothing of the checkout in its environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(command), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.network
def test_a_wheel_holds_the_compiled_rules_and_they_are_those_of_the_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert "vllm_doctor/py.typed" in archive.namelist()
        compiled = msgspec.json.decode(archive.read("vllm_doctor/rules.json"), type=RuleSet)
        knowledge = msgspec.json.decode(archive.read("vllm_doctor/knowledge.json"), type=Knowledge)
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert compiled == load_folder(ROOT / "rules")
    assert knowledge == knowledge_folder(ROOT / "rules")
    assert {f for f in folders if not f.endswith(".dist-info")} == {"vllm_doctor"}


@pytest.mark.network
def test_building_leaves_no_compiled_rules_in_the_checkout(wheel: Path) -> None:
    assert not (ROOT / "vllm_doctor" / "rules.json").exists()
    assert not (ROOT / "vllm_doctor" / "knowledge.json").exists()


@pytest.mark.network
def test_an_installed_command_says_its_version(command: Path, tmp_path: Path) -> None:
    assert __version__ in run(command, tmp_path, "--version")


@pytest.mark.network
def test_an_installed_command_lists_its_rules(command: Path, tmp_path: Path) -> None:
    listed = run(command, tmp_path, "rules", "list")
    assert [c.id for c in load_folder(ROOT / "rules").causes if c.id not in listed] == []


@pytest.mark.network
def test_an_installed_command_analyses_a_log_elsewhere(command: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(LOG.read_bytes())
    report = json.loads(run(command, tmp_path, "analyze", "server.log", "--format", "json"))
    assert (report["verdict"], report["findings"][0]["id"]) == ("problem", "allocator-fragmentation")
    assert report["tool"]["rules_version"] == load_folder(ROOT / "rules").version


@pytest.mark.network
def test_an_installed_command_writes_the_page_with_everything_in_it(command: Path, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(LOG.read_bytes())
    page = run(command, tmp_path, "analyze", "server.log", "--format", "html", "--lang", "zh")
    assert '<html lang="zh-CN">' in page
    assert "uPlot (v1.6.32)" in page


@pytest.mark.network
def test_a_fault_in_the_rules_stops_the_build_and_names_its_place(tmp_path: Path) -> None:
    for name in ("vllm_doctor", "rules", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        subprocess.run(["cp", "-r", str(source), str(tmp_path / name)], check=True)
    (tmp_path / "rules" / "remedies" / "faulty.yaml").write_text("- id: faulty\n  tilte: {en: a, zh: b}\n", encoding="utf-8")
    built = pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tmp_path))
    assert built.returncode != 0
    assert "rules/remedies/faulty.yaml:1: " in built.stderr + built.stdout
    assert list(tmp_path.glob("*.whl")) == []


@pytest.mark.network
def test_an_installed_command_plans(command: Path, tmp_path: Path) -> None:
    assert "56.0 KiB of KV cache per token" in run(command, tmp_path, "plan", "--model", "Qwen2.5-7B", "--gpu", "24", "--lang", "en")
