"""Languages: which one to speak, the texts of the program in it, and figures with their units.

English text is the key, as in gettext. The Chinese catalogue is a `.po` file that is read as it is, and only when Chinese is asked
for: the part of the format that it uses is a few lines to read, costs about a millisecond, and needs neither a compiled copy in the
repository nor a build step that could lag behind. A test reads the same file with Babel and compares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
CATALOGUE = Path(__file__).resolve().parent / "locale" / "zh" / "LC_MESSAGES" / "vllm_doctor.po"


def detect(environ: Mapping[str, str]) -> Language:
    """The user's language: the first of VLLM_DOCTOR_LANG, LC_ALL, LC_MESSAGES and LANG that is set decides; English unless it is Chinese."""
    for name in ("VLLM_DOCTOR_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = environ.get(name, "").strip().lower()
        if value:
            return "zh" if value.startswith("zh") else "en"
    return "en"


def translator(language: str) -> Callable[[str], str]:
    """A function from an English text of the program to the same text in `language`; a text that has no translation stays English."""
    if language != "zh":
        return str
    texts = _catalogue()
    return lambda text: texts.get(text) or text


def filled(message: str, values: Mapping[str, object], language: str) -> str:
    """A message in a language with its `{names}` filled; a value that is a text of the program is translated as well."""
    _ = translator(language)
    text = _(message)
    for name, value in values.items():
        text = text.replace("{" + name + "}", _(value) if isinstance(value, str) else str(value))
    return text


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, str]:
    return read_po(CATALOGUE.read_text(encoding="utf-8"))


def read_po(text: str) -> dict[str, str]:
    """Translations of a PO file without plurals and contexts: `msgid` and `msgstr`, each one or more quoted strings.

    PO's escapes are a part of JSON's, so a quoted string is a JSON string. Raises ValueError for anything else.
    """
    result: dict[str, str] = {}
    parts: dict[str, str] = {}
    field = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not stripped.startswith('"'):
            field, _, stripped = stripped.partition(" ")
            if field not in ("msgid", "msgstr"):
                raise ValueError(f"line {number}: {field!r} is not msgid or msgstr")
            if field == "msgid":
                parts = {}
            parts[field] = ""
        parts[field] += json.loads(stripped)
        if field == "msgstr" and parts["msgid"]:
            result[parts["msgid"]] = parts["msgstr"]
    return result


_ZH_UNITS = {"tokens": "个 token", "tokens/s": "token/s"}


def format_value(value: float | str | bool | None, unit: str, language: str = "en") -> str:
    """A value in a catalogue unit as a reader wants it, in one place for all outputs.

    9.87 GiB, 97 %, 5,120 tokens, 1 min 45 s, 4.2/min. A share is never rounded to 0 % or 100 % that is not exactly so. None, and what
    is not a number, is "unknown". An undeclared unit is put after the number.
    """
    zh = language == "zh"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "未知" if zh else "unknown"
    if isinstance(value, bool):
        return ("是" if value else "否") if zh else ("yes" if value else "no")
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return ("无上限" if zh else "unlimited") if value > 0 else str(value)
    if unit == "bytes":
        return _bytes(value)
    if unit == "ratio":
        text = _percent(value)
        return text.replace(" %", "%") if zh else text
    if unit == "s":
        return _duration(value, zh)
    if unit in ("per_second", "per_minute"):
        per = {"per_second": ("/s", "/秒"), "per_minute": ("/min", "/分钟")}[unit][zh]
        return _number(value) + per
    if unit == "times":
        return _number(value) + "x"
    if unit in ("count", "text", "flag", ""):
        return _number(value)
    return f"{_number(value)} {_ZH_UNITS.get(unit, unit) if zh else unit}"


def _number(value: float) -> str:
    """Three significant digits at least, thousands grouped, no trailing zeros."""
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 2 - math.floor(math.log10(size))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _bytes(value: float) -> str:
    size = abs(value)
    for name, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{value / scale:,.{2 if scale >= 2**30 else 1}f} {name}"
    return f"{value:,.0f} B"


def _percent(value: float) -> str:
    percent = value * 100
    whole = round(percent)
    if abs(percent - whole) < 1e-9 or whole not in (0, 100):
        return f"{whole:,} %"
    if abs(percent) < 0.05:
        return "< 0.1 %" if percent > 0 else "> -0.1 %"
    if 99.95 <= percent < 100:
        return "> 99.9 %"
    if 100 < percent < 100.05:
        return "> 100 %"
    return f"{percent:.1f} %"


def _duration(value: float, zh: bool) -> str:
    units = ("毫秒", "秒", "分", "小时", "天") if zh else ("ms", "s", "min", "h", "d")
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size < 0.9995:
        return f"{sign}{_number(round(size * 1000, 2))} {units[0]}" if size else f"0 {units[1]}"
    if size < 59.95:
        return f"{sign}{_number(round(size, 2 if size < 10 else 1))} {units[1]}"
    whole = round(size)
    for i, scale in ((4, 86400), (3, 3600), (2, 60)):
        if whole >= scale:
            below = (1, 60, 3600)[i - 2]
            rest = whole % scale // below
            return f"{sign}{whole // scale} {units[i]}" + (f" {rest:02d} {units[i - 1]}" if rest else "")
    return f"{sign}{whole} {units[1]}"
