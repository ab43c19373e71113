"""Words of a command line -> options in vLLM's long spelling."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..model.observations import Scalar
from ..model.secrecy import is_secret
from ..ruleset.schema import Flag

MASK = "***"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

_SEVERAL = {"--served-model-name", "--lora-modules", "--cudagraph-capture-sizes", "--cuda-graph-sizes", "--api-key", "--allowed-origins",
            "--middleware", "--prompt-adapters", "--compile-sizes"}  # fmt: skip
"""Options that take several words."""
_SWITCH = re.compile(r"--(?:enable|disable|no|skip|use|return|trust-remote|enforce|async-scheduling|headless|kv-cache-metrics$|calculate-kv)")
"""Options that take no word unless it is true or false. Those of the knowledge table are known; these are by their names."""
_OPERATOR = re.compile(r"(?:\d?>>?|<|&>|\|{1,2}$|&{1,2}$|;$|#)")


def split_words(text: str) -> list[str]:
    """Words of a shell command up to a redirection, pipe, comment or separator. A quote without its end is taken literally."""
    try:
        words = shlex.split(text, posix=True)
    except ValueError:
        words = [word.strip("\"'") for word in text.split()]
    result: list[str] = []
    for word in words:
        if _OPERATOR.match(word):
            break
        if word.endswith(";") and not word.endswith("};"):
            result.append(word[:-1])
            break
        result.append(word)
    return result


def arguments(text: str) -> str:
    """The text of a command without what follows it: redirections, pipes, comments. Quotes stay as given."""
    cut = re.search(r"\s(?:\d?>>?|&>|\|{1,2}|&{1,2}|;|#)(?:\s|$|&|[\w./])", text)
    return " ".join((text[: cut.start()] if cut else text).split()) if "'" not in text and '"' not in text else (text if not cut else _outside(text))


def _outside(text: str) -> str:
    """As `arguments`, where quotes may hide an operator."""
    quote = ""
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character.isspace() and re.match(r"(?:\d?>>?|&>|\|{1,2}|&{1,2}|;|#)", text[i + 1 :]):
            return text[:i].strip()
    return text.strip()


def mask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret(name, value) else value for name, value in environment.items()}


class Options(Struct, frozen=True):
    """What the knowledge table says about spelling: old and short names -> long ones, and which options are switches."""

    aliases: dict[str, str]
    switches: frozenset[str]

    @staticmethod
    def of(flags: Iterable[Flag]) -> Options:
        aliases: dict[str, str] = {}
        switches = set()
        for flag in flags:
            if flag.env:
                continue
            aliases |= {alias.replace("_", "-"): flag.name for alias in flag.aliases}
            if any(isinstance(value, bool) for default in flag.defaults for value in default.values):
                switches.add(flag.name)
        return Options(aliases, frozenset(switches))

    def name(self, word: str) -> str:
        """The long spelling. Underscores are dashes to vLLM; a dash that a word processor doubled is no matter."""
        stem, dot, path = word.partition(".")
        plain = stem.replace("_", "-")
        single = plain[1:] if plain.startswith("--") else plain
        return self.aliases.get(plain, self.aliases.get(single, plain)) + dot + path

    def parsed(self, words: list[str]) -> tuple[dict[str, Scalar], str | None, int]:
        """Options and the model of a command's words, and how many words belong to neither: prose has many."""
        strays = 0
        settings: dict[str, Scalar] = {}
        model: str | None = None
        i = 0
        while i < len(words):
            word = words[i]
            i += 1
            if not re.match(r"--?[A-Za-z]", word):
                if word in ("--", "-", "\\"):
                    continue
                strays += model is not None
                model = model or word
                continue
            if " " in word and "=" not in word.partition(" ")[0]:  # one item of a list that holds option and value
                word, _, value = word.partition(" ")
                settings |= self.normalised({word: value.strip()})
                continue
            head, equals, value = word.partition("=")
            compact = re.match(r"-O(\d|\.)", head)
            if compact and not equals:
                settings["-O"] = _scalar(head[2:])
                continue
            if equals:
                settings |= self.normalised({head: value})
                continue
            name = self.name(head)
            values: list[str] = []
            while i < len(words) and not re.match(r"--?[A-Za-z]", words[i]) and (not values or name in _SEVERAL):
                values.append(words[i])
                i += 1
            if values and self._is_switch(name) and values[0].lower() not in ("true", "false"):
                i -= len(values)
                values = []
            settings |= self.normalised({head: " ".join(values)} if values else {head: True})
        given = settings.get("--model", settings.get("--model-tag"))
        return settings, model if given is None or isinstance(given, bool) else str(given), strays

    def normalised(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Long names, `--no-x` as x = false, secrets masked, plain numbers as numbers."""
        result: dict[str, Scalar] = {}
        for raw, value in values.items():
            name = self.name(raw)
            shown: Scalar = _scalar(_default(value)) if isinstance(value, str) else value
            if name.startswith("--no-") and shown is True:
                name, shown = self.name("--" + name[5:]), False
            result[name] = MASK if is_secret(name, shown) else shown
        return result

    def _is_switch(self, name: str) -> bool:
        return name in self.switches or bool(_SWITCH.match(name))


def _default(text: str) -> str:
    """What `${UTIL:-0.9}` stands for where nothing sets the variable."""
    found = re.fullmatch(r"\$\{\w+:?-([^{}$]*)\}", text)
    return found[1] if found else text


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?\d{0,9}\.\d{1,12}", text):
        return float(text)
    return text
