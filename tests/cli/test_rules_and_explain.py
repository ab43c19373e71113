"""`rules` and `explain`, on a small rule set of the test's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from vllm_doctor.cli import run
from vllm_doctor.cli.rules import rules_schema, table
from vllm_doctor.cli.templates import TEMPLATES
from vllm_doctor.ruleset.load import CHECKOUT, knowledge_folder, load_folder
from vllm_doctor.ruleset.schema import RuleSet

CAUSE = """\
id: kv-cache-exhaustion
maturity: testing
severity: high
applies: {version: ">=0.2", engine_generation: V1}
title: {en: The KV cache is full, zh: KV 缓存已满}
summary: {en: "{kv_cache.tokens} do not hold the requests.", zh: "{kv_cache.tokens} 容纳不下请求。"}
sources: ["vllm/v1/core/sched/scheduler.py, 0.32.0"]
thresholds:
  full: {value: 85 %, basis: heuristic, reason: the saw-tooth dips}
for:
  - when: [kv_cache.usage.max >= $full, requests.waiting.max > 0 count]
    weight: strong
    why: {en: "usage reached {kv_cache.usage.max}", zh: "使用率达到 {kv_cache.usage.max}"}
against:
  - {when: {any: [requests.waiting.max == 0 count, kv_cache.usage.max < 50 %]}, weight: decisive, why: {en: nobody waited, zh: 没有请求排队}}
explains: [queue-overload]
remedies: [lower-max-num-seqs]
not_remedies: [{flag: --swap-space, because: {en: gone since 0.18, zh: 0.18 起已移除}}]
false_positives: [a short burst]
tests: [{name: t, log: x, expect: not_checked}]
"""
REMEDY = """\
- id: lower-max-num-seqs
  title: {en: Admit fewer requests, zh: 同时接纳更少的请求}
  kind: flag
  risk: {en: longer queue, zh: 排队更长}
  verify: {en: fewer preemptions, zh: 抢占减少}
  sources: []
  change: {flag: --max-num-seqs}
"""
FLAG = """\
- name: --max-num-seqs
  first_version: 0.2.7
  last_version: 0.33.0
  default: "256"
  effect: most sequences in one step
  aliases: [--max_seqs]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rules folder that stands for the checkout's."""
    home = tmp_path / "rules"
    for name, text in {"causes/kv-cache-exhaustion.yaml": CAUSE, "remedies/scheduling.yaml": REMEDY, "knowledge/flags.yaml": FLAG}.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def load(extra: str | None = None) -> RuleSet:
        return load_folder(home if extra is None else Path(extra))

    monkeypatch.setattr("vllm_doctor.ruleset.load.CHECKOUT", home)
    monkeypatch.setattr("vllm_doctor.ruleset.load.load", load)
    monkeypatch.setattr("vllm_doctor.ruleset.load.load_knowledge", lambda extra=None: knowledge_folder(home))
    for name in ("VLLM_DOCTOR_LANG", "LC_ALL", "LC_MESSAGES", "LANG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_a_cause_is_explained_as_its_rule_states_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "kv-cache-exhaustion"]) == 0
    assert (
        capsys.readouterr().out
        == """\
The KV cache is full
kv-cache-exhaustion · high · testing · vLLM >=0.2, V1

‹kv_cache.tokens› do not hold the requests.

WHAT SHOWS IT
  + usage reached ‹kv_cache.usage.max› (strong)
      kv_cache.usage.max >= $full and requests.waiting.max > 0 count

WHAT SPEAKS AGAINST IT
  - nobody waited (decisive)
      requests.waiting.max == 0 count or kv_cache.usage.max < 50 %

THRESHOLDS
  $full = 85 %  the saw-tooth dips (heuristic)

WHAT TO DO
  1. Admit fewer requests
       --max-num-seqs ...
     risk: longer queue
     check: fewer preemptions
  not --swap-space: gone since 0.18

EXPLAINS
  - queue-overload

FALSE ALARMS
  - a short burst

SOURCES
  - vllm/v1/core/sched/scheduler.py, 0.32.0
"""
    )


def test_a_cause_is_explained_in_chinese(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "kv-cache-exhaustion", "--lang", "zh"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[5], lines[6]] == ["KV 缓存已满", "支持该原因的证据", "  + 使用率达到 ‹kv_cache.usage.max› (strong)"]


@pytest.mark.parametrize("name", ["--max-num-seqs", "max-num-seqs", "max_num_seqs", "max-seqs"])
def test_a_launch_option_is_found_by_any_spelling(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == 0
    assert capsys.readouterr().out == (
        "--max-num-seqs  (launch option)\n"
        "  what it does  most sequences in one step\n"
        "  default       256\n"
        "  versions      all that were read (0.2.7 to 0.33.0)\n"
        "  also called   --max_seqs\n"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kv-cache-exhaution", "kv-cache-exhaution is neither a cause nor a launch option that the rules know; did you mean: kv-cache-exhaustion?"),
        ("--max-num-seq", "--max-num-seq is neither a cause nor a launch option that the rules know; did you mean: --max-num-seqs?"),
        ("zzz", "zzz is neither a cause nor a launch option that the rules know; see `vllm-doctor rules list`"),
        ("engine-hang", "engine-hang is a cause of the product, but no rule for it is installed"),
    ],
)
def test_an_unknown_id_names_what_is_near(name: str, said: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == 2
    assert capsys.readouterr().err == f"vllm-doctor: {said}\n"


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("causes", ["id                   severity  maturity  title", "kv-cache-exhaustion  high      testing   The KV cache is full"]),
        ("remedies", ["id                  kind  changes         title", "lower-max-num-seqs  flag  --max-num-seqs  Admit fewer requests"]),
        ("flags", ["name            versions      default", "--max-num-seqs  0.2.7-0.33.0  256"]),
        ("formats", ["id  versions  samples  gives"]),
    ],
)
def test_rules_are_listed_as_a_table(kind: str, rows: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "list", kind]) == 0
    assert capsys.readouterr().out.splitlines() == rows


def test_a_table_aligns_chinese_by_cells() -> None:
    assert table([("名称", "x"), ("ab", "y"), ("abcdef", "z")]) == "名称    x\nab      y\nabcdef  z\n"


def test_lint_of_good_rules_counts_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "lint"]) == 0
    assert capsys.readouterr().out == "ok: 0 formats, 1 causes, 1 remedies, 1 flags, 0 models, 0 cards\n"


def test_lint_shows_every_fault_with_file_and_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "causes" / "kv-cache-exhaustion.yaml"
    path.write_text(CAUSE.replace("severity: high", "severity: huge"), encoding="utf-8")
    (home / "knowledge" / "flags.yaml").write_text(FLAG + "- 3\n", encoding="utf-8")
    assert run(["rules", "lint"]) == 1
    assert capsys.readouterr().err.splitlines()[:3] == [
        "the rules do not load: faults: 2",
        "rules/causes/kv-cache-exhaustion.yaml:3: Invalid enum value 'huge'",
        "    help: see `vllm-doctor rules schema`",
    ]


def test_faulty_rules_of_the_user_stop_an_analysis_before_it_starts(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own"
    (own / "causes").mkdir(parents=True)
    (own / "causes" / "x.yaml").write_text("id: x\n")
    assert run(["analyze", "--rules", str(own), "server.log"]) == 2
    assert "own/causes/x.yaml:1: Object missing required field `maturity`" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["format", "cause"])
def test_a_new_rule_goes_into_the_rules_folder_here_and_loads_once_it_is_filled_in(
    kind: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home.parent)
    path = Path("rules") / TEMPLATES[kind][0] / "engine-hang.yaml"
    assert run(["rules", "new", kind, "engine-hang"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert run(["rules", "lint"]) == 1
    text = path.read_text(encoding="utf-8")
    rows = [n for n, row in enumerate(text.splitlines(), 1) if "<FILL IN" in row]
    faults = [fault for fault in capsys.readouterr().err.splitlines() if ": fill in " in fault]
    assert [int(fault.split(":")[1]) for fault in faults] == rows
    path.write_text(re.sub("<FILL IN: [^>]*>", "some text", text), encoding="utf-8")
    assert run(["rules", "lint"]) == 0


def test_a_new_rule_is_not_written_where_nobody_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["rules", "new", "cause", "engine-hang"]) == 2
    assert capsys.readouterr().err == "vllm-doctor: there is no folder rules/ here: say where to write with --rules DIR\n"
    assert list(tmp_path.iterdir()) == []


def test_a_new_rule_never_replaces_a_file(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(home.parent)
    assert run(["rules", "new", "cause", "kv-cache-exhaustion"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (home / "causes" / "kv-cache-exhaustion.yaml").read_text(encoding="utf-8") == CAUSE


def test_a_new_rule_goes_where_the_user_says(tmp_path: Path) -> None:
    assert run(["rules", "new", "format", "my-line", "--rules", str(tmp_path / "mine")]) == 0
    assert (tmp_path / "mine" / "formats" / "my-line.yaml").is_file()


def test_the_schema_fits_every_kind_of_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(msgspec.json.encode(rules_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    for text in (CAUSE, REMEDY, FLAG, *(template.replace("@ID@", "x") for _, template in TEMPLATES.values())):
        jsonschema.validate(yaml.safe_load(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(CAUSE.replace("severity: high", "severity: huge")), schema)


def with_tests(home: Path, tests: str) -> None:
    """Gives the one cause other tests."""
    text = CAUSE.replace("[{name: t, log: x, expect: not_checked}]", tests)
    (home / "causes" / "kv-cache-exhaustion.yaml").write_text(text, encoding="utf-8")


def test_the_tests_inside_the_rules_are_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_tests(home, "[{name: t, log: x, expect: likely}]")
    assert run(["rules", "test"]) == 1
    got = capsys.readouterr()
    assert (got.out, got.err) == (
        "failed: 1: 0 samples of formats, 1 tests of causes\n",
        "kv-cache-exhaustion: t: expected likely, got no answer\n",
    )


def test_tests_without_any_fixtures_are_counted_as_not_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_tests(home, "[{name: t, case: fixtures/a, expect: likely}, {name: u, case: fixtures/b, expect: likely}]")
    assert run(["rules", "test"]) == 0
    got = capsys.readouterr()
    assert (got.out, got.err) == (
        "NOT RUN: 2 tests need fixtures that this installation does not have\nok: 0 samples of formats, 0 tests of causes\n",
        "",
    )


def test_one_missing_fixture_among_others_fails(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home.parent / "fixtures").mkdir()
    with_tests(home, "[{name: t, case: fixtures/a, expect: likely}]")
    assert run(["rules", "test"]) == 1
    assert capsys.readouterr().err == f"kv-cache-exhaustion: t: expected likely, got no folder {home.parent}/fixtures/a\n"


def test_with_rules_of_the_user_only_those_are_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (CHECKOUT / "formats" / "memory.yaml").read_text(encoding="utf-8")
    own = tmp_path / "mine" / "formats" / "memory.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(text, encoding="utf-8")
    samples = sum(len(f.samples) for f in load_folder(tmp_path / "mine").formats)
    assert run(["rules", "test", "--rules", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out == (
        f"ok: {samples} samples of formats, 0 tests of causes\n"
        f"note: the rules in {tmp_path / 'mine'} were tested; for the shipped ones leave --rules out\n"
    )


@pytest.mark.parametrize(
    ("language", "option", "said"),
    [
        ("en", (), "vllm-doctor: --gpu {x}: not among the known cards; give its GiB instead, such as 23.6\n"),
        ("zh", (), "vllm-doctor: --gpu {x}：不在已知显卡中；请改为给出显存的 GiB 数，例如 23.6\n"),
        ("en", ("--lang", "zh"), "vllm-doctor: --gpu {x}：不在已知显卡中；请改为给出显存的 GiB 数，例如 23.6\n"),
        ("zh", ("--lang", "en"), "vllm-doctor: --gpu {x}: not among the known cards; give its GiB instead, such as 23.6\n"),
    ],
)
def test_an_error_speaks_the_language_of_the_option_else_of_the_environment(
    language: str, option: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_DOCTOR_LANG", language)
    code = run(["plan", "--model", "Qwen2.5-7B", "--gpu", "{x}", *option])
    assert (code, capsys.readouterr().err) == (2, said)


def test_the_sizes_of_a_card_are_alternatives_in_both_languages(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {}
    for language in ("en", "zh"):
        assert run(["plan", "--model", "Qwen2.5-7B", "--gpu", "A100", "--lang", language]) == 2
        ends[language] = capsys.readouterr().err.rpartition("'A100 40GB'")[2]
    assert ends == {"en": " or 'A100 80GB'\n", "zh": " 或 'A100 80GB'\n"}
