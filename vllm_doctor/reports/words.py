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

    def lacking(self, name: str) -> str:
        """What a signal that the input does not show would tell; empty where only what to attach says it in words of the reader."""
        _ = self._
        known = {
            "vllm.version": _("vLLM's version"),
            "scheduler.preemptions.delta": _("how often requests were preempted"),
            "scheduler.preempted.count": _("preemption warnings"),
            "scheduler.slots.used_ratio": _("how many of the max-num-seqs slots were in use"),
            "scheduler.slots.full_share": _("how long all max-num-seqs slots were in use"),
            "scheduler.plateau_share": _("whether the number of running requests stood at a limit"),
            "requests.waiting.share_above_zero": _("how long requests waited"),
            "requests.waiting.max": _("the longest queue"),
            "requests.running.max_while_waiting": _("how many requests ran while others waited"),
            "requests.unfinished.share": _("the share of answers that were not finished"),
            "requests.unfinished.delta": _("how many answers were not finished"),
            "requests.rejected.delta": _("how many requests were turned away"),
            "kv_cache.usage.max": _("the highest KV cache usage"),
            "kv_cache.usage.while_waiting": _("KV cache usage while requests waited"),
            "kv_cache.usage.max_while_waiting": _("the highest KV cache usage while requests waited"),
            "kv_cache.usage.min_while_waiting": _("the lowest KV cache usage while requests waited"),
            "kv_cache.free_prompts": _("whether the longest prompt fitted in the free KV cache"),
            "kv_cache.max_concurrency": _("how many requests of the full length fit in the KV cache"),
            "startup.kv.rest": _("what weights, activations and other memory took of the budget"),
            "startup.kv.shortfall": _("how much KV cache one request of the full length needs"),
            "startup.served": _("whether the server began to serve"),
            "memory.weights": _("the memory that the weights take"),
            "memory.non_torch": _("the memory that NCCL and the like take"),
            "gpu.foreign": _("the memory that other processes hold on the GPU"),
            "gpu.failing": _("whether a GPU shows errors or is lost"),
            "gpu.fault.count": _("failures that the GPU itself reports"),
            "kernel.gpu_fault.count": _("GPU failures in the kernel log"),
            "kernel.oom_kill.count": _("kills by the kernel's out-of-memory killer"),
            "host.oom_kills": _("processes that were killed for lack of host memory"),
            "sockets.send_queue.max": _("whether clients read their answers too slowly"),
            "engine.stall.span": _("how long the engine stood still"),
            "latency.queue.mean": _("how long requests waited on average"),
            "latency.itl.p99": _("the time between two tokens"),
            "latency.itl.stalled_share": _("how much of the time between tokens was spent in long gaps"),
            "prefix_cache.hit_rate.max": _("the prefix cache's hit rate"),
            "spec_decode.acceptance": _("the share of draft tokens that were accepted"),
            "errors.share": _("the share of requests that ended in an error"),
        }
        return known.get(name, "")

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
        return self.noted(text, self.basis(effect.basis)) if after else text

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
