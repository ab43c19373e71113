"""The command line. Each command is a module, imported when it is called for; here only click is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from .. import __version__
from .common import Misuse, Session, language_of, warn

COMMANDS = {"analyze": ".analyze", "explain": ".explain", "plan": ".plan", "rules": ".rules", "serve": ".serve"}
"""Name of a command -> the module that holds it as `command`."""

INTERRUPTED = 130
INTERNAL_ERROR = 4


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name], __package__).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="vllm-doctor", message="%(prog)s %(version)s")
def vllm_doctor() -> None:
    """Says why a vLLM server crashed, will not start, queues, stalls or got slow, with the lines that show it.

    \b
    vllm-doctor analyze server.log metrics.txt nvidia-smi.txt
    kubectl logs POD | vllm-doctor analyze
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point: runs the command and exits."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0 ran, 1 something was found, 2 usage, 3 no readable input, 4 internal error.

    The one place where exceptions end: what the user can act on is a ClickException with its own exit code; anything else is a bug and
    gets one line, with -v a traceback.
    """
    session = Session()
    try:
        code = vllm_doctor.main(args=None if arguments is None else list(arguments), prog_name="vllm-doctor", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else 0
    except Misuse as error:
        warn(f"vllm-doctor: {error.in_language(language_of(session.language))}")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        _report_bug(error, session)
        return INTERNAL_ERROR


def _report_bug(error: Exception, session: Session) -> None:
    import traceback

    from ..language import translator
    from ..reports.plain import clean, cut

    if session.verbose:
        warn(clean_lines("".join(traceback.format_exception(error))))
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    _ = translator(language_of(session.language))
    what = f"{type(error).__name__}: {cut(clean(str(error)), 200)}{place}"
    text = _("internal error in vllm-doctor {version}: {what}. This is a bug; please report this line and what -v adds, without private data.")
    warn(text.format(version=__version__, what=what))


def clean_lines(text: str) -> str:
    """Several lines, each made harmless for a terminal."""
    from ..reports.plain import clean

    return "\n".join(clean(line) for line in text.rstrip("\n").split("\n"))
