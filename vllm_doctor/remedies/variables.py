"""The variables of a container in a compose or Kubernetes file, with one of them set or removed."""

from __future__ import annotations

import json
import re

from ..model.secrecy import is_secret
from ..parsing.launch_args import MASK
from .rewrite import Edit

_ENTRY = re.compile(r"(\s*)(-\s+)?([\"']?)([A-Za-z_]\w*)(=|:\s+)(.*?)\3?\s*$")
_POD_ENTRY = re.compile(r"(\s*)-\s+name:\s*[\"']?([A-Za-z_]\w*)[\"']?\s*$")
_POD_VALUE = re.compile(r"(\s*value:\s*)(.*?)\s*$")


def _entries(section: str) -> list[tuple[int, int, str, str]]:
    """(first line, line behind, name, value) of each variable of an `environment:` or `env:` section, in the three forms that there are."""
    rows, result = section.split("\n"), []
    at = 1
    while at < len(rows):
        pod, entry = _POD_ENTRY.match(rows[at]), _ENTRY.match(rows[at])
        end = at + 1
        if pod:
            while end < len(rows) and len(rows[end]) - len(rows[end].lstrip()) > len(pod[1]):
                end += 1
            value = next((m[2] for row in rows[at + 1 : end] if (m := _POD_VALUE.match(row))), "")
            result.append((at, end, pod[2], value))
        elif entry and (entry[5] == "=") == bool(entry[2]):
            result.append((at, end, entry[4], entry[6]))
        at = end
    return result


def masked_variables(section: str) -> str:
    """The section with `***` for the values of secrets."""
    rows = section.split("\n")
    for first, end, name, value in _entries(section):
        if value and is_secret(name, value.strip("\"'")):
            for i in range(first, end):
                head, found, tail = rows[i].rpartition(value.strip("\"'"))
                rows[i] = head + MASK + tail if found else rows[i]
    return "\n".join(rows)


def with_variable(section: str, edit: Edit) -> str | None:
    """The section of a compose or Kubernetes file that sets a container's variables, after the edit; None where it has another form."""
    rows, found = section.split("\n"), _entries(section)
    if not found:
        return None
    own = next((e for e in found if e[2] == edit.option), None)
    first, end, name, _ = own or found[-1]
    pod, entry = _POD_ENTRY.match(rows[first]), _ENTRY.match(rows[first])
    if edit.value is None:
        return None if own is None else "\n".join([*rows[:first], *rows[end:]])
    if pod:
        gap = " " * (len(rows[first]) - len(rows[first].lstrip()))
        new = [rows[first].replace(name, edit.option), f"{gap}  value: {json.dumps(edit.value)}"]
    elif entry and entry[2]:
        new = [f"{entry[1]}{entry[2]}{entry[3]}{edit.option}={edit.value}{entry[3]}"]
    elif entry:
        new = [f"{entry[1]}{edit.option}: {json.dumps(edit.value)}"]
    else:
        return None
    return "\n".join([*rows[:first], *new, *rows[end:]] if own else [*rows[:end], *new, *rows[end:]])
