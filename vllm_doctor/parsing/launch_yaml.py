"""Lists of arguments in compose files, Kubernetes manifests and Dockerfiles, by lines: pastes are seldom whole YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .launch_args import split_words

_KEY = re.compile(r"(\s*)(?:-\s+)?[\"']?(args|command|entrypoint|CMD|ENTRYPOINT)[\"']?\s*:?\s*(.*)$")
_ITEM = re.compile(r"\s*-\s+(.*)$")
LIST_LINES = 200


def lists(lines: list[str]) -> Iterator[tuple[int, list[str], int]]:
    """(first line, words, line behind) of each list that vLLM may be started with. A command and its args make one list."""
    pending: tuple[int, list[str], int] | None = None
    kinds: set[str] = set()
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
        near = pending is not None and index - pending[2] < 12 and key[2] not in kinds
        if pending and near and key[2] == "args":
            pending = (pending[0], pending[1] + words, end)
        elif pending and near and key[2] == "command":
            pending = (pending[0], words + pending[1], end)
        else:
            if pending and _is_vllm(pending[1], vllm_image):
                yield pending
            pending, kinds = (index, words, end), set()
        kinds.add(key[2])
        index = end
    if pending and _is_vllm(pending[1], vllm_image):
        yield pending


def _is_vllm(words: list[str], image: bool) -> bool:
    return (
        image or any("vllm" in word for word in words) or any(word.startswith(("--model", "--max-model-len", "--gpu-memory-util")) for word in words)
    )


def _words(lines: list[str], index: int, key: re.Match[str]) -> tuple[list[str], int]:
    value = key[3].strip()
    indent = len(key[1])
    if value.startswith("["):
        return _flow(lines, index, value)
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
