"""The user's own launch command after the first change that has a value, and the difference as a unified diff.

One change, not several: the report says "one change at a time", and what the second one would do depends on the first. Of a command that cannot
be changed for certain only the option that changes is told. Without a command but with the arguments that the server printed at start, one is
put together from those and marked so. Secrets are masked always.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import shlex
from collections.abc import Sequence

from msgspec import Struct, structs

from ..model.case import Run
from ..model.judgement import Advice
from ..model.observations import Launch, Scalar
from ..parsing.launch_args import MASK, Options
from ..ruleset.schema import Flag
from .call import is_call
from .rewrite import Edit, masked, rewritten
from .variables import masked_variables, with_variable

WIDTH = 90
"""A command that was put together goes on one line up to this."""
NO_NUMBER = frozenset({"nan", "inf", "-inf"})
"""What a broken line may give for a figure."""
NOT_NEGATIVE = frozenset(
    {"max-model-len", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "cpu-offload-gb", "swap-space"}
    | {"block-size", "tensor-parallel-size", "pipeline-parallel-size"}
)
"""Sizes and counts. Less than -1 comes of a broken line; -1 itself stands for "as the engine chooses" with some of them."""
LOG_ONLY = frozenset({"model", "model-tag", "dispatch-function", "config", "subparser"})
"""Arguments of the log that are no options to repeat: the model stands by itself."""


class Rewritten(Struct, frozen=True):
    """`put_together`: the command is not the user's, but made of the arguments in the log; `left_out` are options whose value the log does
    not print in a form that can be typed; `only_option`: there is a command of the user's, but no certain way to write the change into it, so
    that `before` and `after` are the option alone."""

    before: str
    after: str
    diff: str
    remedy: str
    put_together: bool = False
    left_out: tuple[str, ...] = ()
    only_option: bool = False


def command_after(run: Run, advice: Sequence[Advice], flags: Sequence[Flag]) -> Rewritten | None:
    """The command with the first change of the advice that can be typed; None where there is no command, no such change, or no certain way
    to write it."""
    options = Options.of(flags)
    known = {f.name: f for f in flags}
    item = next((a for a in advice if a.action and a.option and not (a.action == "set" and a.to is None)), None)
    if item is None or item.option is None:
        return None  # another change in its place would not be the first one of the list
    edit = Edit(item.option, None if item.action == "remove" else text_of(item.to), known[item.option].env)
    if run.launch is not None:
        return _changed(run.launch, edit, options, item.remedy) or _option(run.launch, edit, item.remedy)
    made, left_out = _put_together(run, options)
    other = _changed(made, edit, options, item.remedy) if made else None
    return None if other is None else structs.replace(other, put_together=True, left_out=tuple(o for o in left_out if o != edit.option))


def _option(launch: Launch, edit: Edit, remedy: str) -> Rewritten:
    """The option alone, before and after."""

    def typed(value: Scalar | None) -> str:
        if value is None:
            return ""
        if edit.environment:
            return f"{edit.option}={shlex.quote(text_of(value))}"
        if is_call(launch.text or launch.command):
            return f"{edit.option.lstrip('-').replace('-', '_')}={value if isinstance(value, bool) else _keyword(text_of(value))}"
        return edit.option if value is True or value == "true" else f"{edit.option} {shlex.quote(text_of(value))}"

    given = launch.environment.get(edit.option) if edit.environment else launch.flags.get(edit.option)
    before, after = typed(given), typed(edit.value)
    return Rewritten(before, after, _difference(before, after), remedy, only_option=True)


def _keyword(value: str) -> str:
    """A value as Python has it."""
    return value.capitalize() if value in ("true", "false") else value if re.fullmatch(r"-?\d+(?:\.\d+)?", value) else repr(value)


def _changed(launch: Launch, edit: Edit, options: Options, remedy: str) -> Rewritten | None:
    before, after = "", None
    if launch.text:
        before = masked(launch.text)
        after = rewritten(before, edit, options, launch.flags)
    if after is None and edit.environment and launch.variables:
        before = masked_variables(launch.variables)
        after = with_variable(before, edit)
    return None if after is None or after == before else Rewritten(before, after, _difference(before, after), remedy)


def _difference(before: str, after: str) -> str:
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm=""))


def text_of(value: Scalar | None) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _put_together(run: Run, options: Options) -> tuple[Launch | None, tuple[str, ...]]:
    """`vllm serve MODEL --option value ...` from the line of non-default arguments."""
    given = [f for f in run.facts if f.name.startswith("flag.") and "non-default args" in f.ref.text]
    model = run.text("model.name")
    if not given or not model:
        return None, ()
    words, left_out = [f"vllm serve {shlex.quote(model)}"], []
    for fact in given:
        name = fact.name.removeprefix("flag.")
        if name in LOG_ONLY or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            continue
        broken = name in NOT_NEGATIVE and isinstance(fact.value, int | float) and fact.value < 0 and fact.value != -1
        value = None if broken else _typed(fact.value)
        if value is None:
            left_out.append(f"--{name}")
        elif value == "":
            words.append(f"--{name}")
        elif value == "false":
            words.append(f"--no-{name}")
        else:
            words.append(f"--{name} {value}")
    line = " ".join(words)
    text = line if len(line) <= WIDTH else " \\\n  ".join(words)
    settings, parsed_model, _ = options.parsed(shlex.split(line)[2:])
    return Launch(line, settings, {}, parsed_model, given[0].ref, text), tuple(left_out)


def _typed(value: Scalar) -> str | None:
    """A printed argument as shell words; empty for a switch that is on, None where it cannot be typed (an object's representation, no
    number)."""
    if str(value).strip().lower() in NO_NUMBER:
        return None
    if isinstance(value, bool):
        return "" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if value == MASK:
        return MASK
    if value[:1] not in "[{(":
        return None if "<" in value else shlex.quote(value)
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    if isinstance(literal, list | tuple):
        return " ".join(shlex.quote(str(item)) for item in literal) if all(isinstance(i, str | int | float) for i in literal) and literal else None
    try:
        return shlex.quote(json.dumps(literal))
    except (TypeError, ValueError):
        return None
