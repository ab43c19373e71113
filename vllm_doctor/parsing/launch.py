"""Launch commands in any pasted text -> `Launch`: shell lines, docker, compose and Kubernetes lists, `LLM(...)` in Python.

People paste what their terminal, chat or ticket made of a command: prompts, continuations, lost backslashes, dashes and quotes
that a word processor improved. Options come out in vLLM's long spelling; secrets are masked in `flags` and `environment`, while
`command` stays as given until the report is redacted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from msgspec import structs

from ..model.observations import Launch, Ref, Scalar
from ..ruleset.schema import Flag
from .launch_args import ASSIGNMENT, Options, arguments, mask_environment, split_words
from .launch_python import python_calls
from .launch_yaml import Part, lists

COMMAND_LINES = 200
LINE_CHARACTERS = 20_000
LAUNCHES = 50
TRIES = 300
"""Bounds on hostile text: lines of one command, characters of a line that is looked at, launches found, and lines tried as one."""

_PATH = r"(?<![\w./~-])(?:[\w./~-]*/)?"
_HEAD = re.compile(
    _PATH + r"vllm(?:\.exe)?[ \t]+serve(?=\s|$)"
    r"|" + _PATH + r"python[\w.]*(?:[ \t]+-[uOBI]+)*[ \t]+-m[ \t]+vllm\.entrypoints\.[\w.]+"
    r"|" + _PATH + r"python[\w.]*(?:[ \t]+-[uOBI]+)*[ \t]+[\w./~-]*vllm/entrypoints/[\w./]+\.py"
)
_CONTAINER = re.compile(r"(?:docker|podman|nerdctl)(?:[ \t]+container)?[ \t]+(?:run|create)\b")
_IMAGE = re.compile(r"(?:[\w.-]+(?::\d+)?/)*[\w.-]*vllm[\w.-]*(?::[\w.-]+)?(?:@sha256:\w+)?$")
_NAMED = {"--name", "--network", "--net", "--hostname", "-h", "-v", "--volume", "--mount", "--label", "-l", "-w", "--workdir", "-u", "--user", "-e",
          "--env", "--env-file", "--entrypoint", "--gpus", "--runtime", "--ipc", "--shm-size", "-p", "--publish"}  # fmt: skip
_PROMPT = re.compile(r"\s*(?:>>> |\(\w[\w.-]*\)\s+)?(?:[\w.-]+@[\w.-]+[^$#%\n]{0,80}[$#%]|PS [^>\n]{1,80}>|[A-Z]:\\[^>\n]{0,80}>|[$#%>])?\s*")
_BEFORE = re.compile(r"(?:nohup|sudo|exec|time|numactl|CMD|ENTRYPOINT|RUN|command:|args:|ExecStart=|-|\||then|do|eval)$")
_EXPORT = re.compile(r"\s*(?:[$#%>]\s+)?(?:export|ENV|set|setx|Environment=|\$env:)\s*(.+)", re.IGNORECASE)
_YAML_ENV = re.compile(r"\s*-?\s*name:\s*[\"']?([A-Z][A-Z0-9_]+)[\"']?\s*$")
_YAML_VALUE = re.compile(r"\s*value:\s*[\"']?(.*?)[\"']?\s*$")
_LIST_ENV = re.compile(r"\s*-\s*[\"']?([A-Z][A-Z0-9_]+)=(.*?)[\"']?\s*$")
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u200b": "", "\u2060": "", "\ufeff": ""})
_DASH = re.compile(r"(?:(?<=\s)|(?<=^))(?:-?[–—―−‒]{1,2})(?=[A-Za-z])", re.MULTILINE)


def find(text: str, source: str, first_line: int, flags: Sequence[Flag] = ()) -> list[Launch]:
    """Every launch in `text`, in order. Never raises.

    `flags` is the table of `rules/knowledge/flags.yaml`: it knows which short and old spellings stand for which option, and which
    options are switches. Values are numbers and booleans where they plainly are, else texts.
    """
    lines = [_cleaned(line) for line in text.replace("\r\n", "\n").split("\n")]
    options = Options.of(flags)
    exported = _exports(lines)
    assigned = {**_assigned(lines), **exported}
    found: list[tuple[int, Launch]] = []
    taken: set[int] = set()
    for listed in islice(lists(lines), LAUNCHES):
        start, end = listed.start, listed.end
        launch = _from_words(listed.words, options, exported, Ref(source, first_line + start, lines[start].strip()[:400]))
        if launch is not None:
            own = [p for p in listed.parts if _says(p.words, options, launch)] or [Part(start, listed.words, end)]
            written = "\n".join(lines[own[0].start : own[0].end]).rstrip()
            found.append((start, structs.replace(launch, text=written, variables=_variables(lines, start, end))))
            taken.update(range(start, end))
    index = tries = 0
    while index < len(lines) and len(found) < LAUNCHES and tries < TRIES:
        if index in taken or not ("vllm" in lines[index] or _CONTAINER.search(lines[index])):
            index += 1
            continue
        tries += 1
        command, end = _logical(lines, index)
        launch = _shell(command, options, exported, Ref(source, first_line + index, lines[index].strip()[:400]), assigned)
        if launch is not None:
            found.append((index, structs.replace(launch, text=_as_written(lines[index:end], command))))
            taken.update(range(index, end))
        index = end if launch is not None else index + 1
    for start, end, call, values, model in python_calls(lines):
        if start not in taken:
            settings = options.normalised(values)
            ref = Ref(source, first_line + start, lines[start].strip()[:400])
            found.append((start, Launch(call, settings, mask_environment(exported), model, ref, "\n".join(lines[start:end]))))
            taken.update(range(start, end))
    return [launch for _, launch in sorted(found, key=lambda item: item[0])]


def _cleaned(line: str) -> str:
    """Without what word processors do to quotes and dashes. A line that no one can have typed counts as empty."""
    if len(line) > LINE_CHARACTERS:
        return ""
    return line if line.isascii() else _DASH.sub("--", line.translate(_QUOTES))


def _as_written(lines: list[str], command: str) -> str:
    """The lines of a command, from where its own words begin: behind a prompt, or at its head where other words or a quote stand before
    it. Empty where that is not in the first line."""
    container, head = _CONTAINER.search(command), _HEAD.search(command)
    first = min((m.start() for m in (container, head) if m), default=0)
    before = command[:first]
    prompt = _PROMPT.match(before)
    start = (
        prompt.end() if prompt and not before.rstrip().endswith(("`", '"', "'")) and (not before[prompt.end() :] or _leading(before)[0]) else first
    )
    if start > len(lines[0].rstrip()):
        return ""
    text = "\n".join([lines[0][start:], *lines[1:]]).rstrip()
    quote = command[first - 1] if first and command[first - 1] in "`\"'" else ""
    return text[: text.index(quote)] if quote and quote in text else text


def _logical(lines: list[str], index: int) -> tuple[str, int]:
    """The command that starts on this line, with its continuations in one line, and the index behind it."""
    parts: list[str] = []
    end = index
    while end < len(lines) and end - index < COMMAND_LINES:
        line = lines[end].rstrip()
        end += 1
        continued = re.search(r"[ \t]*(?:\\|\^|(?<=\s)`)$", line)
        parts.append(line[: continued.start()] if continued else line)
        if continued:
            continue
        if end < len(lines) and re.match(r"\s*--?[a-z]", lines[end]) and not re.match(r"\s*-{3}", lines[end]):
            continue  # a lost backslash: options do not start a line by themselves
        break
    return " ".join([parts[0].rstrip(), *(part.strip() for part in parts[1:])]).rstrip(), end


def _says(words: list[str], options: Options, launch: Launch) -> bool:
    """Does this list by itself give the options of the launch?"""
    found = _from_words(words, options, {}, launch.ref)
    return found is not None and found.flags == launch.flags


def _shell(command: str, options: Options, exported: dict[str, str], ref: Ref, assigned: Mapping[str, str] = {}) -> Launch | None:
    """`assigned` are variables of the script, for what the command names by them."""
    container = _CONTAINER.search(command)
    head = _HEAD.search(command)
    if container and (head is None or container.start() < head.start()):
        return _container(command[container.start() :], options, exported, ref)
    if head is None:
        return None
    start = head.start()
    quote = command[start - 1] if start and command[start - 1] in "`\"'" else ""
    rest = command[head.end() :]
    if quote and quote in rest:
        rest = rest[: rest.index(quote)]
    before, environment = _leading(command[:start].rstrip("`\"'"))
    words = split_words(_expanded(rest, assigned))
    dashed = any(word.startswith("-") for word in words)
    if not (before or dashed) or (words and words[0][:1] in "[:({"):
        return None  # prose that mentions the command
    settings, model, strays = options.parsed(words)
    if strays and not (before and dashed):
        return None  # likewise: "restart vllm serve with --x to enable them"
    if not settings.keys() - {"--help", "-h"} and model is None:
        return None
    text = (" ".join(f"{k}={v}" for k, v in environment) + " " if environment else "") + head[0] + " " + arguments(rest)
    return Launch(text.strip(), settings, mask_environment({**exported, **dict(environment)}), model, ref)


def _leading(text: str) -> tuple[bool, list[tuple[str, str]]]:
    """Whether what stands in front of a command may stand there, and the assignments in it."""
    prompt = _PROMPT.match(text)
    rest = text[prompt.end() :] if prompt else text
    environment: list[tuple[str, str]] = []
    plain = True
    for word in split_words(re.split(r"&&|\|\||;", rest)[-1]):
        assigned = ASSIGNMENT.match(word)
        if assigned:
            environment.append((assigned[1], assigned[2]))
        elif not (_BEFORE.match(word) or word in ("env", "--") or word.startswith("-")):
            plain = False
    return plain, environment


def _container(command: str, options: Options, exported: dict[str, str], ref: Ref) -> Launch | None:
    words = split_words(command)
    environment: dict[str, str] = {}
    image = None
    for i, word in enumerate(words):
        previous = words[i - 1] if i else ""
        joined = re.match(r"(?:-e|--env)=?([A-Za-z_]\w*)=(.*)", word)
        assigned = ASSIGNMENT.match(word) if previous in ("-e", "--env") else joined
        if assigned:
            environment[assigned[1]] = assigned[2]
        elif image is None and i > 1 and len(word) < 300 and _IMAGE.match(word) and previous not in _NAMED:
            image = i
    rest = words[image + 1 :] if image is not None else words[_first(words, ("--model", "--model=")) :]
    return _from_words(rest, options, {**exported, **environment}, ref, arguments(command)) if rest else None


_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s\"'()`]+)\s*(?:#.*)?$")


def _assigned(lines: Iterable[str]) -> dict[str, str]:
    """Variables that a script sets for itself, one on a line: `ARGS="--port 1"`."""
    return {m[1]: m[2].strip("\"'") for line in lines if len(line) <= 2000 and (m := _ASSIGNED.match(line))}


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of the variables that are known, once: a value is not looked at again."""
    if "$" not in text or not variables:
        return text
    return _NAME.sub(lambda m: variables.get(m[1] or m[2], m[0]), text)


_SECTION = re.compile(r"(\s*)(?:-\s+)?(?:environment|env):\s*$")


def _variables(lines: list[str], start: int, end: int) -> str:
    """The lines of the section with the variables of the container whose list this is: the next one of the same depth, before or behind it."""
    depth = _depth(lines[start])
    for step, at in ((1, end), (-1, start - 1)):
        while 0 <= at < len(lines) and abs(at - start) < COMMAND_LINES and (not lines[at].strip() or _depth(lines[at]) >= depth):
            section = _SECTION.match(lines[at])
            if section and _depth(lines[at]) == depth:
                stop = at + 1
                while stop < len(lines) and lines[stop].strip() and (_depth(lines[stop]) > depth or lines[stop].startswith(" " * depth + "- ")):
                    stop += 1
                return "\n".join(lines[at:stop])
            if lines[at].lstrip().startswith("- ") and _depth(lines[at]) == depth and step < 0:
                break  # the container begins here
            at += step
    return ""


def _depth(line: str) -> int:
    """Where the key of a line of YAML begins, behind the dash of a list."""
    return len(line) - len(re.sub(r"^\s*(?:-\s+)?", "", line))


def _first(words: list[str], prefixes: tuple[str, ...]) -> int:
    return next((i for i, word in enumerate(words) if word == prefixes[0] or word.startswith(prefixes[1])), len(words))


def _from_words(words: list[str], options: Options, exported: dict[str, str], ref: Ref, command: str | None = None) -> Launch | None:
    """A launch from ready-made words, as in a container's list of arguments."""
    for word in words:
        if _HEAD.search(word) and " " in word:  # sh -c "vllm serve ..."
            return _shell(" ".join(word.replace("\\\n", " ").split()), options, exported, ref)
    rest = list(words)
    started = False
    for i, word in enumerate(rest):
        if i and rest[i - 1] in ("-c", "-lc") and word.startswith("serve "):  # bash -lc "serve ...", as an image's entry point has it
            rest, started = split_words(word)[1:], True
            break
        if (re.search(r"(?:^|/)vllm$", word) and rest[i + 1 : i + 2] == ["serve"]) or (
            word == "-m" and rest[i + 1 : i + 2] and "vllm." in rest[i + 1]
        ):
            rest, started = rest[i + 2 :], True
            break
    settings, model, _ = options.parsed(rest)
    if not settings and not (started and model):
        return None
    text = command if command is not None else " ".join(map(_quoted, words))
    return Launch(text, settings, mask_environment(exported), model, ref)


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./{}\[\]-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"


def _exports(lines: Iterable[str]) -> dict[str, str]:
    """Variables set on lines of their own: export, ENV, set, Environment=, and the lists of compose and Kubernetes files."""
    result: dict[str, str] = {}
    name: str | None = None
    for line in lines:
        if len(line) > 2000:
            continue
        value = _YAML_VALUE.match(line) if name is not None else None
        if value is not None and name is not None:
            result[name] = value[1]
        found = _YAML_ENV.match(line)
        name = found[1] if found else None
        if exported := _EXPORT.match(line):
            pairs = re.sub(r"\s*=\s*", "=", exported[1], count=1)
            for word in split_words(pairs):
                if assigned := ASSIGNMENT.match(word):
                    result[assigned[1]] = assigned[2]
        elif listed := _LIST_ENV.match(line):
            result[listed[1]] = listed[2]
    return result


__all__ = ["Launch", "Scalar", "find"]
