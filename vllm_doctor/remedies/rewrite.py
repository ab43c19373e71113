"""A launch command with one thing changed, in the user's own quoting and layout: shell lines, docker, lists of compose and Kubernetes
files, `LLM(...)` calls.

The text is cut into words with their places, and only what changes is replaced; a new option takes the gap (line break, indent, dash,
comma) that its neighbours have. The result is read back: if it does not say exactly the old options with the one change, there is none.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from msgspec import Struct

from ..model.observations import Scalar
from ..model.secrecy import is_secret
from ..parsing.launch_args import ASSIGNMENT, MASK, Options
from .call import is_call, with_keyword

WORDS, CHARACTERS = 400, 20_000
"""Longest command that is rewritten."""


class Word(Struct, frozen=True):
    """A word of the command and where it stands, quotes included."""

    start: int
    end: int
    text: str
    quote: str = ""


class Edit(Struct, frozen=True):
    """An option (`--long-name`) or variable to set to a text, or to remove (`value` None). A switch is set to `true`."""

    option: str
    value: str | None
    environment: bool = False


_LIST_KEY = re.compile(r"\s*(?:-\s+)?[\"']?(?:args|command|entrypoint|CMD|ENTRYPOINT)[\"']?\s*:?\s*(.*)$")
_KEYWORD = re.compile(r"(\w+)(\s*=\s*)([\"'])([^\"']*)\3")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_OPERATOR = re.compile(r"(?:\d?>>?|<|&>|\|{1,2}$|&{1,2}$|;|#)")


def masked(text: str) -> str:
    """The command with `***` for the values of secret options and variables, whatever its layout. What is no secret stays to the letter."""
    words = _tokens(text, comments=True)
    if words is None:
        return _KEYWORD.sub(lambda m: f"{m[1]}{m[2]}{m[3]}{MASK}{m[3]}" if is_secret(m[1], m[4]) else m[0], text)
    inner = _nested(text, words)
    if inner is not None and inner[2] == text[inner[0] : inner[1]]:
        return text[: inner[0]] + masked(inner[2]) + text[inner[1] :]
    result = text
    for i in range(len(words) - 1, -1, -1):
        word, before = words[i], words[i - 1].text if i else ""
        head, equals, value = word.text.partition("=")
        named = _OPTION.fullmatch(head) or ASSIGNMENT.match(word.text)
        if equals and named and is_secret(head, value):
            result = result[: word.start] + word.quote + head + "=" + MASK + word.quote + result[word.end :]
        elif _OPTION.fullmatch(before) and not word.text.startswith("--") and is_secret(before, word.text):
            result = result[: word.start] + word.quote + MASK + word.quote + result[word.end :]
    return result


def rewritten(text: str, edit: Edit, options: Options, flags: dict[str, Scalar]) -> str | None:
    """The command after the edit, or None where it cannot be made for certain. `flags` are the options as they were read from it."""
    if not text or len(text) > CHARACTERS:
        return None
    if is_call(text):
        return None if edit.environment else with_keyword(text, edit.option, edit.value)
    words = _tokens(text)
    if words is None or len(words) > WORDS:
        return None
    inner = _nested(text, words)
    if inner is not None:
        new = rewritten(inner[2], edit, options, flags)
        return None if new is None else _put_back(text, inner, new)
    first = _first_option(words, options, flags)
    if first is None:
        return None
    if edit.environment:
        set_ = _variable(text, words, first, edit)
        return set_ if set_ is not None and _says(set_, options, flags) else None
    places = [i for i in range(first, len(words)) if _names(words[i], edit.option, options)]
    place = places[-1] if places else None  # of an option that is repeated the last one holds
    after: str | None = text
    if edit.value is None:
        for one in reversed(places):
            after = _removed(str(after), words, one, edit, options)
        after = after if places else None
    elif place is None:
        after = _added(text, words, first, edit)
    else:
        after = _replaced(text, words, place, edit, options)
    expected = {k: v for k, v in flags.items() if k != edit.option}
    if edit.value is not None:
        expected |= options.normalised({edit.option: edit.value})
    return after if after is not None and _says(after, options, expected) else None


# -- words


def _tokens(text: str, *, comments: bool = False) -> list[Word] | None:
    """Words of the layout that the text has, with those of `comments` in and behind brackets if wanted; None for a Python call."""
    if is_call(text):
        return None
    first = text.split("\n", 1)[0]
    key = _LIST_KEY.match(first)
    if key is None:
        return _shell(text, 0)
    value = key[1].strip()
    if value.startswith("["):
        return _flow(text, comments)
    if re.fullmatch(r"[|>][+-]?\d?", value):
        return _shell(text, len(first))
    if value:
        return _shell(text, key.start(1))
    return _block(text)


def _shell(text: str, start: int) -> list[Word]:
    """Words of a shell command up to an operator. A backslash, caret or backtick at a line's end is white space."""
    words: list[Word] = []
    i = start
    while i < len(text):
        gap = re.compile(r"(?:\s|[\\^`][ \t]*\r?\n)+").match(text, i)
        if gap:
            i = gap.end()
            continue
        begin, parts, quote, quotes = i, [], "", set()
        while i < len(text):
            c = text[i]
            if quote:
                if c == quote:
                    quote = ""
                elif c == "\\" and quote == '"' and text[i + 1 : i + 2] in ('"', "\\", "$", "`"):
                    i += 1
                    parts.append(text[i])
                else:
                    parts.append(c)
            elif c in "\"'":
                quote = c
                quotes.add((c, i))
            elif c.isspace() or re.match(r"[\\^`][ \t]*\r?\n", text[i:]):
                break
            elif c == "\\" and i + 1 < len(text):
                i += 1
                parts.append(text[i])
            else:
                parts.append(c)
            i += 1
        word = "".join(parts)
        if not quotes and _OPERATOR.match(text[begin:i]):
            break
        whole = next((q for q, at in quotes if at == begin and text[i - 1] == q), "") if len(quotes) == 1 else ""
        words.append(Word(begin, i, word, whole))
    return words


def _flow(text: str, comments: bool) -> list[Word]:
    """Strings of `["--a", "1"]`."""
    body = text.index("[") + 1
    found = re.compile(r"((?<!\S)#[^\n]*|\])|\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s,\[\]\"']+)").finditer(text, body)
    words: list[Word] = []
    for m in found:
        other, double, single, bare = m.groups()
        if other == "]" and not comments:
            break
        if other is not None:
            words += [Word(m.start() + w.start(), m.start() + w.end(), w[0]) for w in re.finditer(r"[^\s\]]+", other)] if comments else []
            continue
        quote = '"' if double is not None else "'" if single is not None else ""
        words.append(Word(m.start(), m.end(), (double or "").replace('\\"', '"') if quote == '"' else single or bare or "", quote))
    return words


def _block(text: str) -> list[Word]:
    """Items of a YAML list, one a line, without their dash and a comment behind them."""
    words, at = [], 0
    for line in text.split("\n"):
        item = re.match(r"\s*-\s+(\"(?:[^\"\\]|\\.)*\"|'[^']*'|.*?)(?:\s+#.*)?\s*$", line)
        if item and item[1]:
            inner = item[1]
            quote = inner[0] if len(inner) > 1 and inner[0] in "\"'" and inner[-1] == inner[0] else ""
            bare = inner[1:-1] if quote else inner
            words.append(Word(at + item.start(1), at + item.end(1), bare.replace('\\"', '"') if quote == '"' else bare, quote))
        at += len(line) + 1
    return words


def _first_option(words: Sequence[Word], options: Options, flags: dict[str, Scalar]) -> int | None:
    """Where the words of vLLM begin: from there on they say what the launch was read to say."""
    texts = [w.text for w in words]
    for i in range(len(texts)):
        if i and texts[i - 1].startswith("-") and "=" not in texts[i - 1] and texts[i - 1] != "-m" and not texts[i].startswith("-"):
            continue  # the value of an option of docker's
        if options.parsed(texts[i:])[0] == flags:
            return i
    return None


def _says(text: str, options: Options, flags: dict[str, Scalar]) -> bool:
    words = _tokens(text)
    return words is not None and _first_option(words, options, flags) is not None


_NESTED = re.compile(r"\bvllm\s+serve\s|-m\s+vllm\.")


def _nested(text: str, words: Sequence[Word]) -> tuple[int, int, str] | None:
    """(start, end, the command) where the command is one string of its own: `bash -c "vllm serve ..."`. The command as the string gives it; None
    where there is none, or its escapes cannot be undone."""
    found = [w for w in words if w.quote and _NESTED.search(w.text)]
    if len(found) != 1:
        return None
    start, end = found[0].start + 1, found[0].end - 1
    raw = text[start:end]
    if found[0].quote == "'" or "\\" not in re.sub(r"\\[ \t]*\r?\n", "", raw):
        return start, end, raw
    try:
        return start, end, str(json.loads(f'"{raw}"'))
    except ValueError:
        return None


def _put_back(text: str, place: tuple[int, int, str], new: str) -> str | None:
    """The text with the command in the string replaced; None where its quotes cannot hold it."""
    start, end, old = place
    if text[start:end] != old:
        return text[:start] + json.dumps(new, ensure_ascii=False)[1:-1] + text[end:]
    return None if text[start - 1] in new else text[:start] + new + text[end:]


# -- edits


def _names(word: Word, option: str, options: Options) -> bool:
    """Is this word the option, under any spelling?"""
    head = re.split(r"[=\s]", word.text, maxsplit=1)[0]
    if not re.match(r"--?[A-Za-z]", head):
        return False
    return option in (options.name(head), options.name("--" + head[5:]) if head.startswith("--no-") else "")


def _value_at(words: Sequence[Word], place: int, option: str, options: Options) -> int | None:
    """The index of the option's value where that is a word of its own."""
    word = words[place].text
    if "=" in word or " " in word or place + 1 >= len(words) or re.match(r"--?[A-Za-z]", words[place + 1].text):
        return None
    if option in options.switches and words[place + 1].text.lower() not in ("true", "false"):
        return None
    return place + 1


def _replaced(text: str, words: Sequence[Word], place: int, edit: Edit, options: Options) -> str | None:
    word, value = words[place], str(edit.value)
    head = re.split(r"[=\s]", word.text, maxsplit=1)
    own = _value_at(words, place, edit.option, options)
    if own is not None:
        old = words[own]
        return text[: old.start] + _quoted(value, old.quote, text) + text[old.end :]
    if len(head) == 2:
        glue = word.text[len(head[0])]
        if _listed(text):
            return text[: word.start] + _item(head[0] + glue + value, word.quote) + text[word.end :]
        raw = text[word.start : word.end]
        inside = re.fullmatch(r"([^=]+=)([\"'])(.*)\2", raw)  # --flag="value"
        new = f"{inside[1]}{inside[2]}{value}{inside[2]}" if inside and not word.quote else word.quote + head[0] + glue + value + word.quote
        if not word.quote and not inside and shlex.quote(value) != value and glue == "=":
            new = head[0] + glue + shlex.quote(value)
        return text[: word.start] + new + text[word.end :]
    if value != "true":
        return None
    return text[: word.start] + word.quote + edit.option + word.quote + text[word.end :]  # --no-x becomes --x


def _removed(text: str, words: Sequence[Word], place: int, edit: Edit, options: Options) -> str:
    """Without the option, its value and the gap before it; at the head of a list, the gap behind."""
    own = _value_at(words, place, edit.option, options)
    last = words[own if own is not None else place]
    if place:
        return text[: words[place - 1].end] + text[last.end :]
    behind = words[own + 1 if own is not None else place + 1] if len(words) > (own or place) + 1 else None
    return text[: words[place].start] + text[(behind.start if behind else last.end) :]


def _added(text: str, words: Sequence[Word], first: int, edit: Edit) -> str:
    """The option behind the last word, with the gap and the manner (`--a=1`, `--a 1`) of the options before it."""
    last = words[-1]
    dashed = [i for i in range(first, len(words)) if words[i].text.startswith("--")]
    joined = sum("=" in words[i].text for i in dashed) > len(dashed) / 2
    value = str(edit.value)
    if _listed(text):
        gap = _between_items(text, words, dashed)
        style = max(("", '"', "'"), key=lambda q: sum(w.quote == q for w in words[first:]))
        if value == "true":
            return text[: last.end] + gap + _item(edit.option, style) + text[last.end :]
        if joined or any(" " in words[i].text for i in dashed):
            return text[: last.end] + gap + _item(f"{edit.option}{'=' if joined else ' '}{value}", style) + text[last.end :]
        between = _between_items(text, words, [i + 1 for i in dashed if i + 1 not in dashed])
        return text[: last.end] + gap + _item(edit.option, style) + between + _item(value, style or '"') + text[last.end :]
    gaps = [text[words[i - 1].end : words[i].start] for i in dashed if i]
    gap = next((g for g in reversed(gaps) if "\n" in g), gaps[-1] if gaps else " ")
    within = [text[words[i].end : words[i + 1].start] for i in dashed if i + 1 < len(words) and i + 1 not in dashed]
    if value == "true":
        return text[: last.end] + gap + edit.option + text[last.end :]
    if joined:
        return text[: last.end] + gap + f"{edit.option}={shlex.quote(value)}" + text[last.end :]
    return text[: last.end] + gap + edit.option + (within[-1] if within else " ") + shlex.quote(value) + text[last.end :]


def _between_items(text: str, words: Sequence[Word], before: Sequence[int]) -> str:
    """What a list has between its items: in a block the line break, indent and dash of its last item, in brackets a comma and the space that
    stands before the items `before` (indices), a line break first."""
    line = text.rfind("\n", 0, words[-1].start)
    dash = re.fullmatch(r"\n[ \t]*-[ \t]+", text[line : words[-1].start]) if line >= 0 else None
    if dash:
        return dash[0]
    commas = [g for i in before if 0 < i < len(words) and re.fullmatch(r"\s*,\s*", g := text[words[i - 1].end : words[i].start])]
    return next((g for g in reversed(commas) if "\n" in g), commas[-1] if commas else ", ")


def _listed(text: str) -> bool:
    """Are the arguments the items of a YAML or JSON list?"""
    key = _LIST_KEY.match(text.split("\n", 1)[0])
    return key is not None and (not key[1].strip() or key[1].strip().startswith("["))


_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z/])[\w./+=-]*(?: [\w./+=-]+)*")


def _item(value: str, quote: str) -> str:
    """A string as an item of a list, in the quotes that are wanted or, where YAML would read it as something else, in such that hold it: the
    arguments of a container must be strings, and a bare 0.9 or true is none."""
    if quote == "'" and "'" not in value:
        return f"'{value}'"
    if not quote and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _quoted(value: str, quote: str, text: str) -> str:
    """A value in the quotes of the word that it replaces or follows; in a shell quoted where that is needed."""
    if _listed(text):
        return _item(value, quote)
    if quote == '"':
        return json.dumps(value, ensure_ascii=False)
    if quote == "'":
        return shlex.quote(value) if "'" in value else f"'{value}'"
    return shlex.quote(value)


def _variable(text: str, words: Sequence[Word], first: int, edit: Edit) -> str | None:
    """A variable in front of a shell command, or with -e of a container; elsewhere it has no place in the command."""
    if edit.value is None or _listed(text):
        return None
    assigned = f"{edit.option}={shlex.quote(edit.value)}"
    for word in words[:first]:
        if word.text.startswith(edit.option + "="):
            return text[: word.start] + assigned + text[word.end :]
    run = next((i for i in range(1, first) if words[i].text in ("run", "create") and words[i - 1].text in ("docker", "podman", "nerdctl")), None)
    if run is not None:
        return text[: words[run].end] + f" -e {assigned}" + text[words[run].end :]
    if not words or re.match(r"(?:CMD|ENTRYPOINT|RUN|ExecStart=|-$|\w+:$)", text[: words[0].end].strip()) or _LIST_KEY.match(text.split("\n", 1)[0]):
        return None
    return text[: words[0].start] + assigned + " " + text[words[0].start :]
