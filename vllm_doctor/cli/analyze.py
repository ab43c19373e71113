"""`vllm-doctor analyze`: inputs to a report. Everything beyond click is imported where it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..language import LANGUAGES
from ..reports import RENDERERS, Style
from .common import Misuse, NoInput, Session, colored, emit, issue_lines, language_of, links, load_rules, read_model_config, width, write_file

if TYPE_CHECKING:
    from ..model.report import Report
    from ..model.timebound import TimeBound

Progress = Callable[[str, int, int], None]
SEVERITIES = ("critical", "high", "medium", "low")


def _time(ctx: click.Context, param: click.Parameter, value: str | None) -> TimeBound | None:
    from ..model.timebound import parse

    try:
        return None if value is None else parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command("analyze", short_help="Say what went wrong, from logs, metrics, GPU dumps and the launch command.")
@click.argument("inputs", nargs=-1, metavar="[PATH|URL|-]...")
@click.option("--format", "output_format", type=click.Choice(list(RENDERERS)), default="text", show_default=True, help="Form of the report.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report to FILE instead of stdout.")
@click.option("--lang", type=click.Choice(LANGUAGES), help="Language of the report (default: from the environment).")
@click.option("--rules", "rules_dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Add the rules in DIR, or replace by id.")
@click.option("--since", callback=_time, metavar="T", help="From T on: ISO, MM-DD HH:MM[:SS], HH:MM[:SS], or -10m before the last observation.")
@click.option("--until", callback=_time, metavar="T", help="Up to T, in the same forms.")
@click.option(
    "--fail-on", type=click.Choice((*SEVERITIES, "never")), default="never", show_default=True,
    help="Exit with 1 if something of this severity or worse is confirmed or likely.",
)  # fmt: skip
@click.option("--no-redact", is_flag=True, help="Keep keys, prompts, names and hosts in the report.")
@click.option("--model-config", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="The model's config.json, for its memory.")
@click.option("--scrapes", type=click.IntRange(1, 1000), default=2, show_default=True, help="Times to read a URL: 2 show rates, 3 or more trends.")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, metavar="S", help="Seconds between two readings of a URL."
)
@click.option("-q", "--quiet", is_flag=True, help="Only the answer and what to do; no progress.")
@click.option("-v", "--verbose", is_flag=True, help="Every line of evidence with its neighbours, the timeline, and all issues.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    inputs: tuple[str, ...],
    output_format: str,
    output: str | None,
    lang: str | None,
    rules_dir: str | None,
    since: TimeBound | None,
    until: TimeBound | None,
    fail_on: str,
    no_redact: bool,
    model_config: str | None,
    scrapes: int,
    interval: float,
    quiet: bool,
    verbose: bool,
) -> int:
    """Reads server logs, /metrics scrapes, nvidia-smi dumps, kernel logs and launch commands in any mixture: files, folders, archives
    (.gz .zst .zip .tar), http(s)://host/metrics, or - for stdin, which is also read if piped and nothing is named.

    Nothing is sent anywhere. Secrets, prompts and names are masked in the report unless you say --no-redact.

    Exit code: 0 ran, 1 found something at --fail-on, 2 usage, 3 no input could be read, 4 internal error.
    """
    session = ctx.find_object(Session)
    if session:
        session.verbose = verbose
    language = language_of(lang)
    if not inputs:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("name at least one file, folder or URL, or pipe a log in", ctx)
        inputs = ("-",)
    if output and not Path(output).absolute().parent.is_dir():
        raise Misuse("cannot write {path}: its folder does not exist", path=output)
    load_rules(rules_dir)  # faults in the user's rules are said before a long log is read

    from ..sources import read

    progress = _progress(quiet)
    shape = read_model_config(model_config) if model_config else None
    stdin = sys.stdin.buffer if "-" in inputs else None
    sources, issues = read(inputs, stdin, scrapes=scrapes, interval=interval, progress=progress)
    if progress:
        progress("", 0, 0)
    if not sources:
        said = "".join("\n" + line for line in issue_lines(issues, language))
        raise NoInput("none of the inputs could be read{issues}", issues=said)

    from ..pipeline import analyze

    report = analyze(
        sources, extra_issues=issues, language=language, rules_dir=rules_dir, since=since, until=until, redact=not no_redact, progress=progress,
        model=shape,
    )  # fmt: skip
    if progress:
        progress("", 0, 0)
    for found in report.issues:
        if found.code == "reversed-window":  # known only now: 23:50 to 00:10 is a window where the input goes over midnight
            raise Misuse(found.message)
    to_terminal = output is None
    style = Style(
        width() if to_terminal else 100,
        to_terminal and colored(sys.stdout),
        1 if verbose else -1 if quiet else 0,
        links(sys.stdout) if to_terminal else None,
    )
    text = RENDERERS[output_format](report, style)
    if output is None:
        emit(text)
    else:
        write_file(output, text)
    return exit_code(report, fail_on)


def exit_code(report: Report, fail_on: str) -> int:
    """1 if a finding is confirmed or likely at `fail_on` or worse, else 0."""
    if fail_on == "never":
        return 0
    bad = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return int(any(f.status in ("confirmed", "likely") and f.severity in bad for f in report.findings))


def _progress(quiet: bool) -> Progress | None:
    """Shows one changing line on stderr (what, done, in all), or nothing where nobody watches. An empty name clears it."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(name: str, done: int, total: int) -> None:
        from ..reports.plain import clean, cut

        text = clean(name) + (f"  {done:,} / {total:,}" if total else "")
        sys.stderr.write("\r\x1b[K" + cut(text, width() - 1))
        sys.stderr.flush()

    return show
