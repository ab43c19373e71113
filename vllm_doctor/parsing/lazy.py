"""Regular expressions that are compiled when they are first used: most inputs need few of them, and a start of the program pays for all."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Lazy:
    """Stands for a compiled pattern. Its methods become its own attributes with the first use, so that later ones cost nothing."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        for method in ("match", "search", "fullmatch", "findall", "finditer", "split", "sub"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """The pattern of `re.compile(text, flags)`, compiled later. For module constants that are not used by every run."""
    return cast("re.Pattern[AnyStr]", _Lazy(text, flags))
