"""What is to be typed: a remedy's change as a diff and ready to paste, and a launch command in lines."""

from __future__ import annotations

import re
import shlex

from ..model.report import RemedyReport
from .plain import clean


def change_lines(remedy: RemedyReport) -> list[tuple[str, str]]:
    """A remedy's change as lines of a diff: what goes (`-`) and what comes (`+`)."""
    change = remedy.change
    if change is None:
        return []
    lead = "export " if remedy.kind == "env" else ""
    glue = "=" if remedy.kind == "env" else " "

    def option(value: str | None) -> str:
        bare = value is None or (value.lower() in ("true", "yes", "") and not lead)
        return lead + clean(change.flag) + ("" if bare else glue + clean(value or ""))

    lines = [("-", option(change.from_))] if change.from_ is not None or change.action == "remove" else []
    if change.action == "set":
        lines.append(("+", option(change.to) if change.to is not None else lead + clean(change.flag) + glue + "…"))
    return lines


def typed(remedy: RemedyReport) -> str:
    """What a reader would copy: the new option, quoted for a shell. Empty where there is nothing to paste."""
    change = remedy.change
    if change is None or change.action != "set" or change.to is None:
        return ""
    value = shlex.quote(clean(change.to))
    if remedy.kind == "env":
        return f"export {clean(change.flag)}={value}"
    return clean(change.flag) if change.to.lower() == "true" else f"{clean(change.flag)} {value}"


def launch_rows(command: str) -> list[str]:
    """A launch command in lines that can be pasted: its own where it has several, else one option on each, with backslashes between."""
    text = clean_lines(command)
    if len(text) > 1:
        return text
    rows = re.split(r"\s+(?=--[a-z])", text[0]) if text else []
    return [row + " \\" for row in rows[:-1]] + rows[-1:]


def clean_lines(command: str) -> list[str]:
    """The lines of a command without what a terminal must not see; indents stay, they are YAML's."""
    lines = [" " * (len(line) - len(line.lstrip(" "))) + clean(line).strip() for line in command.strip("\r\n").split("\n")]
    return [lines[0].strip()] if len(lines) == 1 else lines
