"""Lists of arguments in compose files, Kubernetes manifests and Dockerfiles, by lines: pastes are seldom whole YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .launch_args import split_words

_KEY = re.compile(r"(\s*)(?:-\s+)?[\"']?(args|command|entrypoint|CMD|ENTRYPOINT)[\"']?\s*:?\s*(.*)$")
_ITEM = re.compile(r"\s*-\s+(.*)$")
LIST_LINES = 200


class Part(NamedTuple):
    """One list: its lines from `start` up to `end`, and its words."""

    start: int
    words: list[str]
    end: int


class Listed(NamedTuple):
    """A command and its args together, in the order in which a container joins them, and the lists that it is made of."""

    start: int
    words: list[str]
    end: int
    parts: list[Part]


def lists(lines: list[str]) -> Iterator[Listed]:
    """Each list that vLLM may be started with. A command and its args, or an entry point and its command, make one."""
    pending: dict[str, Part] = {}
    vllm_image = False
    index = 0
    while index < len(lines):
        line = lines[index]
        if re.match(r"\s*(?:-\s+)?image:", line):
            vllm_image = "vllm" in line
        key = _KEY.match(line) if len(line) < 20_000 else None
        words, end = _words(lines, index, key) if key else ([], index + 1)
        if not key or not words:
            index += 1
            continue
        name = _ORDER[key[2].lower()]
        near = pending and index - max(p.end for p in pending.values()) < 12 and name not in pending
        if pending and not (near and set(pending) | {name} in _JOINED):
            yield from _joined(pending, vllm_image)
            pending = {}
        pending[name] = Part(index, words, end)
        index = end
    if pending:
        yield from _joined(pending, vllm_image)


_ORDER = {"entrypoint": "entrypoint", "command": "command", "cmd": "command", "args": "args"}
_JOINED = ({"entrypoint", "command"}, {"command", "args"})
"""What a container is started with: compose and Dockerfiles have an entry point and a command, Kubernetes a command and args."""


def _joined(parts: dict[str, Part], image: bool) -> Iterator[Listed]:
    ordered = [parts[name] for name in ("entrypoint", "command", "args") if name in parts]
    words = [word for part in ordered for word in part.words]
    if _is_vllm(words, image):
        yield Listed(min(p.start for p in ordered), words, max(p.end for p in ordered), ordered)


def _is_vllm(words: list[str], image: bool) -> bool:
    return (
        image or any("vllm" in word for word in words) or any(word.startswith(("--model", "--max-model-len", "--gpu-memory-util")) for word in words)
    )


def _words(lines: list[str], index: int, key: re.Match[str]) -> tuple[list[str], int]:
    value = key[3].strip()
    indent = len(key[1])
    if value.startswith("["):
        return _flow(lines, index, value)
    if value.startswith("-"):
        return _plain(lines, index, value, indent)
    if value and not re.fullmatch(r"[|>][+-]?\d?", value):
        return [], index + 1  # a plain command line: read as shell
    words: list[str] = []
    end = index + 1
    while end < len(lines) and end - index < LIST_LINES:
        line = lines[end]
        if not line.strip() or line.lstrip().startswith("#"):
            end += 1
            continue
        depth = len(line) - len(line.lstrip())
        item = _ITEM.match(line)
        if value:
            if depth <= indent:
                break
            text = line.strip().removesuffix("\\")
            words += split_words(text)
        elif item and depth >= indent:
            words.append(_bare(item[1]))
        else:
            break
        end += 1
    return words, end


def _plain(lines: list[str], index: int, value: str, indent: int) -> tuple[list[str], int]:
    """`command: --model m --port 1`: options of the image's own entry point, which may go on in deeper lines."""
    words, end = split_words(value), index + 1
    while end < len(lines) and end - index < LIST_LINES and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
        words += split_words(lines[end].strip())
        end += 1
    return words, end


def _flow(lines: list[str], index: int, value: str) -> tuple[list[str], int]:
    end = index + 1
    while "]" not in value and end < len(lines) and end - index < LIST_LINES:
        value += " " + lines[end].strip()
        end += 1
    words = []
    for double, single, bare in re.findall(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s,\[\]\"']+)", value):
        words.append(double.replace('\\"', '"') if double else single or bare)
    return words, end


def _bare(text: str) -> str:
    text = re.sub(r"\s+#.*$", "", text.strip()) if text[:1] not in "\"'" else text.strip()
    if len(text) > 1 and text[0] in "\"'" and text.rfind(text[0]) > 0:
        quote = text[0]
        return text[1 : text.rfind(quote)].replace('\\"', '"') if quote == '"' else text[1 : text.rfind(quote)]
    return text
