"""What the commands share: exit codes as exceptions, the terminal, and writing results. Loads click only."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..model.observations import Issue
    from ..ruleset.errors import RulesInvalid
    from ..ruleset.schema import Model, RuleSet

WIDEST = 120
"""Wider lines are hard to read; a wide terminal does not change that."""
LARGEST_CONFIG = 4 * 2**20
"""Bytes. A config.json has a few kilobytes; one with per-layer quantisation a few hundred."""


@dataclass
class Session:
    """What the outermost handler must know about the command that ran."""

    verbose: bool = False
    language: str | None = None
    """The one that --lang asked for."""


class Misuse(click.ClickException):
    """Something in the command line that the user can correct: an English text with {names}, and their values.

    The language is chosen where the error is shown. A value that is a list reads as alternatives. A text without values is taken as it is.
    """

    exit_code = 2

    def __init__(self, template: str, /, **values: object) -> None:
        self.template, self.values = template, values
        super().__init__(self.in_language("en"))

    def in_language(self, language: str) -> str:
        """The text with its values; what the system or a library said stays as it came."""
        from ..language import translator

        _ = translator(language)
        text = _(self.template)
        return text.format(**{k: _(" or ").join(v) if isinstance(v, list) else v for k, v in self.values.items()}) if self.values else text


class NoInput(Misuse):
    """Nothing that was handed over could be read."""

    exit_code = 3


def language_of(option: str | None) -> str:
    """The language to speak: the option, else the environment's. The option is kept for errors that come later."""
    from ..language import detect

    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context else None
    if session and option:
        session.language = option
    return option or detect(os.environ)


def warn(text: str) -> None:
    """To stderr, whatever its encoding can show."""
    with suppress(OSError):  # a closed stderr is no reason to fail
        click.echo(_encodable(text, sys.stderr), err=True)


def emit(text: str) -> None:
    """To stdout. A reader that went away (`| head`) is no error and says nothing."""
    try:
        sys.stdout.write(_encodable(text, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's own flush at exit must not fail again


_TYPOGRAPHY = str.maketrans("▁▂▃▄▅▆▇█", "_.:-=+*#") | str.maketrans(
    {"→": "->", "…": "...", "·": "-", "●": "*", "—": "-", "–": "-", "×": "x", "“": '"', "”": '"'}
)


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_TYPOGRAPHY).encode(encoding, "replace").decode(encoding)
    except LookupError:
        pass
    return text


def write_file(path: str, text: str) -> None:
    """Replaces the file in one step: a reader sees the old content or the new, never a part. Devices and pipes are written to.

    Raises Misuse where that is not possible.
    """
    target = Path(os.path.realpath(path))
    data = text.encode("utf-8", "replace")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        umask = os.umask(0)
        os.umask(umask)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask
        import tempfile

        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise Misuse("cannot write {path}: {reason}", path=path, reason=error.strerror or error) from None


def colored(stream: TextIO) -> bool:
    """May the output carry colours? Not for pipes and files, not against NO_COLOR, not on terminals that have none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def links(stream: TextIO) -> Callable[[str], str | None] | None:
    """From the name of a local file to its URI, for terminals that are known to show hyperlinks (OSC 8); others might print the codes."""
    env = os.environ
    vte = env.get("VTE_VERSION", "")
    known = (
        env.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "Tabby")
        or env.get("TERM") in ("xterm-kitty", "xterm-ghostty", "alacritty", "foot")
        or any(env.get(name) for name in ("WT_SESSION", "KONSOLE_VERSION", "DOMTERM"))
        or (vte.isdigit() and int(vte) >= 5000)
    )
    if not known or not colored(stream) or env.get("SSH_CONNECTION"):  # over SSH a file: link would open on the wrong machine
        return None

    def link(name: str) -> str | None:
        path = Path(name)
        try:
            return path.resolve().as_uri() if path.is_file() else None
        except (OSError, ValueError):
            return None

    return link


def width() -> int:
    """Columns to fill: the terminal's or COLUMNS up to a readable limit, 100 where there is no terminal."""
    import shutil

    return max(40, min(shutil.get_terminal_size((100, 24)).columns, WIDEST))


def issue_lines(issues: Iterable[Issue], language: str) -> list[str]:
    """Issues as lines for stderr: located, in the language, without control characters."""
    from ..language import filled
    from ..reports.plain import clean

    lines = []
    for issue in issues:
        text = filled(issue.message, issue.values, language)
        place = ""
        if issue.ref is not None and (issue.ref.line or issue.ref.source not in text):
            place = f"{issue.ref.source}:{issue.ref.line}: " if issue.ref.line else f"{issue.ref.source}: "
        lines.append(clean(f"{place}{text} ({issue.code})"))
    return lines


def read_model_config(path: str) -> Model:
    """The model's shape from a config.json. Raises Misuse where it cannot be read or is none."""
    from ..capacity.config_json import ConfigInvalid, model_from_config

    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_CONFIG:
            raise Misuse("{path} is too large for a config.json", path=path)
        data = file.read_bytes()
        marked = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # what Windows' PowerShell writes
        return model_from_config(data.decode("utf-16" if marked else "utf-8"), file.absolute().parent.name or file.name)
    except ConfigInvalid as error:
        raise Misuse("{path}: {reason}", path=path, reason=error) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse("cannot read {path}: {reason}", path=path, reason=error) from None


def load_rules(rules_dir: str | None) -> RuleSet:
    """The shipped rules, with the user's folder on top. Raises Misuse with all located faults (in a checkout, also of its own rules)."""
    from ..ruleset.errors import RulesInvalid
    from ..ruleset.load import load

    try:
        return load(rules_dir)
    except RulesInvalid as invalid:
        raise rule_faults(invalid) from None


def rule_faults(invalid: RulesInvalid) -> Misuse:
    """All faults of a rule set, one or two lines each, in the compilers' `file:line: reason` form."""
    from ..reports.plain import clean

    lines = []
    for fault in sorted(invalid.errors, key=lambda e: (e.file, e.line)):
        lines.append(clean(f"{fault.file}:{fault.line}: {fault.reason}"))
        if fault.help:
            lines.append(clean(f"    help: {fault.help}"))
    return Misuse("the rules do not load: faults: {n}\n{faults}", n=len(invalid.errors), faults="\n".join(lines))
