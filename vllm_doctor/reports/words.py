"""The words that every report for people shares: states, weights, figures with units, effects and changes, in one language."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ..language import format_value, translator
from ..model.quantities import QUANTITIES
from ..model.report import Effect, Number, Range, RemedyReport
from .plain import clean


class Words:
    """Speaks one language. Closed sets are spelt out, so that a new member cannot be forgotten silently."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._ = translator(language)

    def severity(self, name: str) -> str:
        _ = self._
        return {"critical": _("critical"), "high": _("high"), "medium": _("medium"), "low": _("low"), "info": _("info")}[name]

    def status(self, name: str) -> str:
        _ = self._
        return {"confirmed": _("confirmed"), "likely": _("likely"), "possible": _("possible")}[name]

    def meaning(self, status: str) -> str:
        _ = self._
        return {
            "confirmed": _("confirmed: decisive evidence, and nothing strong against it"),
            "likely": _("likely: strong evidence, and nothing strong against it; not proof"),
            "possible": _("possible: some evidence points here; check before you act on it"),
        }[status]

    def weight(self, name: str) -> str:
        _ = self._
        return {"decisive": _("decisive"), "strong": _("strong"), "moderate": _("moderate"), "weak": _("weak")}[name]

    def basis(self, name: str) -> str:
        _ = self._
        return {"measured": _("measured"), "model": _("calculated"), "rule-of-thumb": _("rule of thumb")}[name]

    def end(self, end: str) -> str:
        _ = self._
        return {"running": _("still running"), "stopped": _("stopped in order"), "crashed": _("crashed"), "unknown": _("end not seen")}[end]

    def kind(self, name: str) -> str:
        _, name = self._, name.replace("_", " ").replace("-", " ")
        known = {
            "server log": _("server log"), "metrics": _("metrics"), "gpu": _("GPU dump"), "launch": _("launch settings"),
            "kernel": _("kernel log"), "sockets": _("socket table"), "prose": _("prose"), "empty": _("empty"), "binary": _("no text"),
        }  # fmt: skip
        return known.get(name.lower(), name)

    def signal(self, name: str) -> str:
        """A series' name; one that is not in the closed set speaks for itself."""
        _ = self._
        known = {
            "requests.running": _("running"), "requests.waiting": _("waiting"), "requests.swapped": _("swapped out"),
            "kv_cache.usage": _("KV cache usage"), "throughput.prompt": _("prompt"), "throughput.generation": _("generation"),
        }  # fmt: skip
        if name.startswith("gpu.memory."):
            return _("GPU {numbers}").format(numbers=name.rpartition(".")[2])
        return known.get(name, name.rpartition(".")[2] if name.startswith("latency.") else name)

    def panel(self, word: str) -> str:
        """The title of the panel for series whose names begin with `word`."""
        _ = self._
        known = {
            "requests": _("Requests"), "kv_cache": _("KV cache usage"), "throughput": _("Throughput"), "latency": _("Latency"),
            "gpu": _("GPU memory"), "memory": _("GPU memory"), "requests.running": _("Running requests"), "requests.waiting": _("Waiting requests"),
            "latency.ttft": _("Time to first token"), "latency.itl": _("Time between tokens"),
            "kv_cache.usage": _("KV cache usage"), "throughput.prompt": _("Prompt throughput"), "throughput.generation": _("Generation throughput"),
        }  # fmt: skip
        return known.get(word, word)

    def value(self, number: float | None, unit: str) -> str:
        return format_value(number, unit, self.language)

    def colon(self, label: str, text: str) -> str:
        return self._("{label}: {text}").format(label=label, text=text)

    def noted(self, text: str, note: str) -> str:
        return self._("{text} ({note})").format(text=text, note=note)

    def listed(self, items: Iterable[str]) -> str:
        return self._(", ").join(items)

    def range(self, value: Range, unit: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, list):
            return self.value(value, unit)
        low, high = (self.value(v, unit) for v in (value[0], value[-1]))
        return low if low == high else f"{low} – {high}"

    def fits(self, requests: Number) -> str:
        """Whole requests; below one, the share of one that fits."""
        return self.value(int(requests), "count") if requests >= 1 or requests <= 0 else self.value(round(requests, 2), "count")

    def quantity(self, name: str) -> str:
        """The name of what an effect is stated in."""
        known = QUANTITIES.get(name)
        return name if known is None else self._(known.text)

    def effect(self, effect: Effect) -> str:
        quantity = self.quantity(effect.quantity)
        before, after = self.range(effect.before, effect.unit), self.range(effect.after, effect.unit)
        if before and after:
            text = self.colon(quantity, f"{before} → {after}")
        elif after:
            text = self.colon(quantity, f"→ {after}")
        elif before:
            text = self.colon(quantity, self._("now {value}, after the change not known").format(value=before))
        else:
            text = quantity
        return self.noted(text, self.basis(effect.basis))

    def change(self, remedy: RemedyReport) -> str:
        """The change as it is typed; what is not to be typed stands in words around it."""
        _, change = self._, remedy.change
        if change is None:
            return ""
        value = None if change.to is None else shlex.quote(clean(change.to))
        before = "" if change.from_ is None else clean(change.from_)
        now = "   " + _("(now {value})").format(value=before) if before else ""
        if remedy.kind == "env":
            if change.action == "remove":
                return f"unset {change.flag}{now}"
            return f"export {change.flag}={value or ''}" + (now if value is not None else "   " + _("(which value is best, this input cannot tell)"))
        if change.action == "remove":
            given = f" {shlex.quote(before)}" if before and before.lower() not in ("true", "yes") else ""
            return _("remove  {option}").format(option=change.flag + given)
        if value is None:
            return _("set  {option}").format(option=change.flag) + "   " + _("(which value is best, this input cannot tell)") + now
        return _("set  {option}").format(option=change.flag if value.lower() == "true" else f"{change.flag} {value}") + now
