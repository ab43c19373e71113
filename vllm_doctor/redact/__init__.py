"""Takes secrets, prompts, outputs and identities out of a Report before it leaves `analyze`.

It works on every string of the Report, so a new field cannot be forgotten; only names and times that this program itself gives are left
alone. Lines of evidence keep their numbers and what vLLM wrote in them. Hosts, addresses, users and e-mails get one mask each in a whole
report (`host-1`, `ip-2`), so that one can still follow who did what. The patterns run on hostile text: `re` with bounded repeats that begin
at word boundaries, and scanners that only move forward, so the work is linear in the text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..model.report import Report
from ..model.secrecy import is_secret_name
from .identities import Masks
from .prompts import without_prompts
from .secrets import harmless, without_secrets
from .spans import MASK, words

__all__ = ["MASK", "clean", "redact"]

_OURS = words(
    "schema_version verdict language tool redacted id variant run engine severity status role direction weight signal unit kind code "
    "quantity basis action first_time last_time time started ended end engine_generation vllm_version explained_by not_indicated series"
)
"""Fields whose text comes from the rules or from this program. `vllm_version` is what a version pattern matched."""
_LIMIT = 1 << 20


def clean(text: str, masks: Masks | None = None) -> str:
    """One text without secrets, prompts and identities. Line ends stay where they are. With `masks`, identities are named as before."""
    own = Masks() if masks is None else masks
    text = own.apply(without_secrets(without_prompts(text)))
    return own.known(text) if masks is None else text


def redact(report: Report) -> Report:
    """The same report with every string cleaned, and marked so."""
    cleaner = _Cleaner()
    plain = msgspec.to_builtins(report)
    first = cleaner.walk(plain, cleaner.text)
    known = cleaner.masks.known
    return msgspec.convert({**cleaner.walk(first, lambda text: known(text)), "redacted": True}, Report)


class _Cleaner:
    def __init__(self) -> None:
        self.masks = Masks()
        self.seen: dict[str, str] = {}

    def text(self, text: str) -> str:
        if len(text) < 4:
            return text
        if text not in self.seen:
            self.seen[text] = clean(text, self.masks)
        return self.seen[text]

    def walk(self, value: Any, each: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return each(value)
        if isinstance(value, list | tuple):
            return [self.walk(v, each) for v in value]
        if not isinstance(value, dict):
            return value
        if key == "flags":
            return {each(k): self.setting(k, v, each) for k, v in value.items()}
        if "text" in value and "before" in value and each == self.text:
            value = self.quoted(value)
        done = {k: v if k in _OURS else self.walk(v, each, k) for k, v in value.items()}
        if isinstance(value.get("flag"), str) and is_secret_name(value["flag"]):
            done |= {k: MASK for k in ("from", "to") if done.get(k) and not harmless(str(done[k]), value["flag"])}
        return done

    def setting(self, name: str, value: Any, each: Any) -> Any:
        """The value of an option: masked whole where its name says that it is a secret."""
        if is_secret_name(name):
            return value if value is None or isinstance(value, bool) or harmless(str(value), name) else MASK
        if isinstance(value, str) and ("host" in name or name.endswith(("addr", "address", "ip"))) and value:
            return self.masks.host(value)
        if isinstance(value, dict):
            return {k: self.setting(k, v, each) for k, v in value.items()}
        return [self.setting(name, v, each) for v in value] if isinstance(value, list) else self.walk(value, each)

    def quoted(self, line: dict[str, Any]) -> dict[str, Any]:
        """A quoted line is cleaned together with its neighbours: a key or a prompt may reach over several lines."""
        parts = [*line["before"], line["text"], *line["after"]]
        whole = "\n".join(parts)
        cleaned = self.text(whole).split("\n")
        if len(cleaned) != whole.count("\n") + 1:
            return line
        texts = []
        for part in parts:
            count = part.count("\n") + 1
            texts.append("\n".join(cleaned[:count]))
            del cleaned[:count]
        before = len(line["before"])
        return {**line, "before": texts[:before], "text": texts[before], "after": texts[before + 1 :]}
