"""The command line: what it loads, what it says, how it ends. The pipeline is a stand-in except where a whole process is started."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vllm_doctor
from tests.reports import samples
from vllm_doctor.cli import run
from vllm_doctor.cli.analyze import exit_code
from vllm_doctor.cli.common import links
from vllm_doctor.model.observations import Issue, Ref
from vllm_doctor.model.report import Report
from vllm_doctor.model.timebound import TimeBound
from vllm_doctor.reports import RENDERERS
from vllm_doctor.reports.json import render as render_json
from vllm_doctor.reports.text import render as render_text
from vllm_doctor.ruleset.schema import RuleSet

HEAVY = {"msgspec", "yaml", "rich", "requests", "jinja2", "prometheus_client", "regex"}
LOG = b"INFO 11-30 13:48:08 [api_server.py:1] vLLM API server version 0.10.2\n"
NO_RULES = RuleSet("0", [], [], [], [], [], [])


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "VLLM_DOCTOR_LANG": "", **options.pop("env", {})}
    code = "import sys; from vllm_doctor.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False, env=environ, **options)


def modules_after(*arguments: str) -> set[str]:
    """Top-level modules that are loaded once the command has run."""
    code = (
        "import sys; from vllm_doctor.cli import run; code = run(); "
        "print('\\n' + ' '.join({m.partition('.')[0] for m in sys.modules}), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return set(done.stderr.splitlines()[-1].split())


class Pipeline:
    """Stands for sources and pipeline: takes what the command hands over and gives a prepared report."""

    def __init__(self) -> None:
        self.report: Report = samples.kv_exhaustion()
        self.issues: list[Issue] = []
        self.sources: list[str] | None = None
        self.read_calls: list[tuple[tuple[str, ...], bool, int, float]] = []
        self.options: dict[str, Any] = {}
        self.error: Exception | None = None

    def read(self, arguments: tuple[str, ...], stdin: object, *, scrapes: int, interval: float, progress: object) -> tuple[list[str], list[Issue]]:
        self.read_calls.append((tuple(arguments), stdin is not None, scrapes, interval))
        return list(arguments) if self.sources is None else self.sources, self.issues

    def analyze(self, sources: list[str], **options: Any) -> Report:
        if self.error:
            raise self.error
        self.options = {"sources": sources, **options}
        return self.report


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    stand_in = Pipeline()
    for name, member in (("sources", stand_in.read), ("pipeline", stand_in.analyze)):
        module = types.ModuleType(f"vllm_doctor.{name}")
        setattr(module, member.__name__, member)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("vllm_doctor.ruleset.load.load", lambda extra=None: NO_RULES)
    for name in ("VLLM_DOCTOR_LANG", "LC_ALL", "LC_MESSAGES", "LANG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return stand_in


# -- what is loaded


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["analyze", "--help"], ["explain", "--help"], ["plan", "--help"], ["rules", "--help"], ["rules", "new", "--help"]],
)
def test_help_and_version_load_click_only(arguments: list[str]) -> None:
    assert modules_after(*arguments) & HEAVY == set()


def test_json_from_a_log_loads_neither_http_nor_templates_nor_terminal(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(LOG)
    assert modules_after("analyze", "--format", "json", str(tmp_path / "server.log")) & {"requests", "jinja2", "rich", "prometheus_client"} == set()


# -- help and usage


def test_the_version_is_the_package_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"vllm-doctor {vllm_doctor.__version__}\n")


def test_help_lists_the_commands() -> None:
    text = command("--help").stdout.decode()
    assert [line.split()[0] for line in text.partition("Commands:\n")[2].splitlines() if line[2:3].strip()] == [
        "analyze",
        "explain",
        "plan",
        "rules",
        "serve",
    ]


def test_exactly_the_formats_that_exist_are_offered() -> None:
    done = command("analyze", "--format", "pdf", "x.log")
    assert done.returncode == 2
    assert f"'pdf' is not one of {', '.join(map(repr, RENDERERS))}" in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["analyze", "--nope"], "No such option"),
        (["analyze", "--since", "noon", "x"], "'noon' is not a time"),
        (["analyze", "--fail-on", "info", "x"], "'info' is not one of"),
        (["analyze", "--rules", "/no/such", "x"], "does not exist"),
        (["analyze", "-o", "/no/such/folder/report.txt", "x"], "its folder does not exist"),
        (["explain"], "Missing argument"),
        (["rules", "new", "cause", "Not_An_Id"], "'Not_An_Id' is not an id"),
    ],
)
def test_misuse_exits_with_2_and_says_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err


def test_nothing_named_and_nothing_piped_is_misuse(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    assert run(["analyze"]) == 2
    assert capsys.readouterr().err.startswith("Usage: vllm-doctor analyze [OPTIONS] [PATH|URL|-]...")


# -- what is handed over


def test_the_options_reach_the_pipeline(pipeline: Pipeline, tmp_path: Path) -> None:
    arguments = ["analyze", "a.log", "b.txt", "--lang", "zh", "--since", "-10m", "--until", "13:48", "--no-redact", "--rules", str(tmp_path)]
    assert run(arguments) == 0
    assert pipeline.options == {
        "sources": ["a.log", "b.txt"],
        "extra_issues": [],
        "language": "zh",
        "rules_dir": str(tmp_path),
        "since": TimeBound(before_last=600),
        "until": TimeBound(clock=49680),
        "redact": False,
        "progress": None,
        "model": None,
    }


def test_urls_are_read_as_often_as_asked(pipeline: Pipeline) -> None:
    assert run(["analyze", "http://h:8000/metrics", "a.log", "--scrapes", "4", "--interval", "2"]) == 0
    assert pipeline.read_calls == [(("http://h:8000/metrics", "a.log"), False, 4, 2.0)]


def test_a_model_config_gives_the_shape_and_is_no_input(pipeline: Pipeline, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}')
    assert run(["analyze", "a.log", "--model-config", str(config)]) == 0
    assert pipeline.options["sources"] == ["a.log"]
    assert (pipeline.options["model"].num_hidden_layers, pipeline.options["model"].head_dim) == (2, 16)


def test_a_model_config_that_is_none_is_misuse(pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert run(["analyze", "a.log", "--model-config", str(tmp_path / "config.json")]) == 2
    assert "it lacks num_hidden_layers, hidden_size, num_attention_heads" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["analyze"], ["analyze", "-"]])
def test_stdin_is_read_if_piped_or_named(arguments: list[str], pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: False, buffer=object()))
    assert run(arguments) == 0
    assert pipeline.read_calls == [(("-",), True, 2, 10.0)]


def test_the_language_comes_from_the_environment(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert run(["analyze", "a.log"]) == 0
    assert pipeline.options["language"] == "zh"


# -- what comes out


def test_the_report_is_text_without_colour_where_no_terminal_is(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "a.log"]) == 0
    assert capsys.readouterr().out == render_text(pipeline.report, width=100)


@pytest.mark.parametrize(("flag", "detail"), [("-q", -1), ("-v", 1)])
def test_quiet_and_verbose_change_the_detail(flag: str, detail: int, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "a.log", flag]) == 0
    assert capsys.readouterr().out == render_text(pipeline.report, width=100, detail=detail)


@pytest.mark.parametrize(("environ", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)])
def test_a_terminal_gets_colours_unless_it_refuses(
    environ: dict[str, str], colored: bool, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["analyze", "a.log"]) == 0
    assert ("\x1b[" in capsys.readouterr().out) == colored


def test_the_json_report_is_the_renderers(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "a.log", "--format", "json"]) == 0
    assert capsys.readouterr().out == render_json(pipeline.report)


def test_a_file_is_replaced_whole_and_keeps_its_mode(pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    target.chmod(0o640)
    assert run(["analyze", "a.log", "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == render_text(pipeline.report, width=100)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]
    assert capsys.readouterr().out == ""


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    assert run(["analyze", "a.log", "-o", str(target)]) == 2
    assert (target.read_text(), [p.name for p in tmp_path.iterdir()]) == ("old", ["report.txt"])
    assert capsys.readouterr().err == f"vllm-doctor: cannot write {target}: No space left on device\n"


def test_a_device_is_written_to_and_not_replaced(pipeline: Pipeline) -> None:
    assert run(["analyze", "a.log", "-o", os.devnull]) == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize(
    ("make", "level", "code"),
    [
        (samples.kv_exhaustion, "never", 0),
        (samples.kv_exhaustion, "critical", 0),
        (samples.kv_exhaustion, "high", 1),
        (samples.kv_exhaustion, "medium", 1),
        (samples.failed_start, "high", 0),
        (samples.healthy, "low", 0),
    ],
)
def test_fail_on_counts_what_is_confirmed_or_likely_at_that_severity_or_worse(
    make: Callable[[], Report], level: str, code: int, pipeline: Pipeline
) -> None:
    assert exit_code(make(), level) == code
    pipeline.report = make()
    assert run(["analyze", "a.log", "--fail-on", level]) == code


def test_no_readable_input_exits_with_3_and_names_each(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.sources = []
    pipeline.issues = [
        Issue("unreadable", "{name} cannot be read: {reason}", {"name": "a.log", "reason": "no \x1b[31msuch {file}"}),
        Issue("other", "broken", {}, Ref("b.log", 3, "")),
    ]
    assert run(["analyze", "a.log"]) == 3
    assert capsys.readouterr() == (
        "",
        "vllm-doctor: none of the inputs could be read\na.log cannot be read: no such {file} (unreadable)\nb.log:3: broken (other)\n",
    )


# -- how it ends


def test_a_bug_is_one_line_with_the_way_to_report_it(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.error = ValueError("bad \x1b[31mthing\nsecond line")
    assert run(["analyze", "a.log"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"internal error in vllm-doctor {vllm_doctor.__version__}: ValueError: bad thing second line (test_cli.py:")
    assert "Traceback" not in err
    assert "please report" in err


def test_a_bug_shows_its_traceback_with_v(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.error = ValueError("bad \x1b[31mthing")
    assert run(["analyze", "a.log", "-v"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert "ValueError: bad thing\n" in err
    assert "\x1b" not in err


def test_an_interrupt_ends_quietly(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["vllm_doctor.pipeline"], "analyze", interrupt)
    assert run(["analyze", "a.log"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "from vllm_doctor.cli.common import emit; [emit('x' * 70000 + '\\n') for _ in range(9)]"
    piped = subprocess.run(
        ["sh", "-c", '{ "$0" -c "$1"; echo "rc $?" >&2; } | head -c 5', sys.executable, code], capture_output=True, text=True, check=True
    )
    assert (piped.stdout, piped.stderr) == ("xxxxx", "rc 0\n")


def test_an_output_that_knows_only_ascii_gets_ascii(pipeline: Pipeline) -> None:
    code = "from vllm_doctor.cli.common import emit; emit('● 5 → 7 · 显存 …\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout == b"* 5 -> 7 - ?? ...\n"


@pytest.mark.parametrize(
    ("environ", "linked"),
    [
        ({}, False),
        ({"TERM_PROGRAM": "vscode"}, True),
        ({"VTE_VERSION": "7600"}, True),
        ({"VTE_VERSION": "4800"}, False),
        ({"TERM_PROGRAM": "vscode", "NO_COLOR": "1"}, False),
        ({"TERM_PROGRAM": "vscode", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False),
    ],
)
def test_files_are_links_only_on_a_local_terminal_that_is_known_to_show_them(
    environ: dict[str, str], linked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("NO_COLOR", "TERM", "TERM_PROGRAM", "VTE_VERSION", "WT_SESSION", "KONSOLE_VERSION", "DOMTERM", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "a b.log").write_text("x")
    link = links(types.SimpleNamespace(isatty=lambda: True))  # type: ignore[arg-type]
    assert (link is not None) == linked
    if link is not None:
        assert link(str(tmp_path / "a b.log")) == f"{tmp_path.as_uri()}/a%20b.log"
        assert [link(name) for name in ("no/such.log", "-", "http://host/metrics", "bad\0name", str(tmp_path))] == [None] * 5
    assert links(types.SimpleNamespace(isatty=lambda: False)) is None  # type: ignore[arg-type]
