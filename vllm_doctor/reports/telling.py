"""What a report for people says, whatever its form: which finding leads, what was read, and the short sentences that are made of
several fields. Texts here are not yet cleaned or escaped; each output does that once, for everything it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.report import EvidenceReport, Finding, MemoryReport, Report, RunReport
from .plain import day_of, source_name, span, zone_of
from .words import Words

WEIGHTS = ("decisive", "strong", "moderate", "weak")


def ranked(evidence: Iterable[EvidenceReport]) -> list[EvidenceReport]:
    """Evidence in the order of its weight, what speaks against it last."""
    return sorted(evidence, key=lambda e: (e.direction == "against", WEIGHTS.index(e.weight)))


class Telling(Words):
    """One report in its language. `lead` is the finding to explain in full, None where there is no answer to give; `run` the server
    life that the report is about; `day` its date, so that times on that day can go without it."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.language)
        self.report = report
        first = report.findings[0] if report.findings else None
        lead = first if first and (report.verdict == "problem" or (report.verdict == "inconclusive" and first.severity != "info")) else None
        self.lead: Finding | None = lead
        run_id = lead.run if lead else None
        self.run: RunReport | None = next((r for r in report.runs if r.id == run_id), report.runs[-1] if report.runs else None)
        starts = [t for t in (self.run.started if self.run else None, *(s.first_time for s in report.sources)) if t]
        self.day = day_of(starts[0]) if starts else ""

    def about(self) -> list[str]:
        """The server in short: version, model, GPUs, time, end."""
        _, run = self._, self.run
        if not run and any(i.code in ("empty-window", "reversed-window") for i in self.report.issues):
            return [_("nothing in the window of time")]
        if not run:
            return [_("no vLLM server was seen in the input")]
        version = _("vLLM {version}").format(version=run.vllm_version) if run.vllm_version else _("vLLM, version not seen")
        parts = [version + (f" ({run.engine_generation})" if run.engine_generation else "")]
        parts += [run.model] if run.model else []
        parts += [self.gpus(run.gpus)] if run.gpus else []
        when = span(run.started, run.ended)
        zone = zone_of(run.started or run.ended)
        parts += [f"{when} {zone}".strip()] if when else []
        parts.append(self.end(run.end))
        return parts

    def lives(self) -> str:
        """How many server lives the input holds, where it is more than one."""
        if len(self.report.runs) < 2 or not self.run:
            return ""
        ends = self.listed(self.end(r.end) for r in self.report.runs[:8]) + ("…" if len(self.report.runs) > 8 else "")
        text = self._("server lives in the input: {n} ({ends}); this is {id}")
        return text.format(n=len(self.report.runs), ends=ends, id=self.run.id)

    def gpus(self, names: Sequence[str]) -> str:
        counted = {name: names.count(name) for name in names}
        return self.listed(f"{n} × {name}" if n > 1 else name for name, n in counted.items())

    def sources(self) -> list[str]:
        """Sources by name; many files of one folder and kind are one entry."""
        _ = self._
        groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for i, source in enumerate(self.report.sources):
            groups.setdefault((source.name.rpartition("/")[0], source.kinds), []).append(i)
        result = []
        for (folder, kinds), members in groups.items():
            what = self.listed(map(self.kind, kinds)) or _("nothing recognised")
            if len(members) > 3:
                result.append(_("{folder}/ ({kinds}, files: {n})").format(folder=source_name(folder, 40), kinds=what, n=f"{len(members):,}"))
                continue
            for i in members:
                source = self.report.sources[i]
                name = source_name(source.name, 48)
                result.append(_("{name} ({kinds}, lines: {n})").format(name=name, kinds=what, n=f"{source.lines:,}"))
        return result

    def where(self, found: Finding) -> list[str]:
        _ = self._
        parts = [found.id + (f" / {found.variant}" if found.variant else "")]
        if found.engine is not None and len({f.engine for f in self.report.findings if f.engine is not None}) > 1:
            parts.append(_("engine {n}").format(n=found.engine))
        when = span(found.first_time, found.last_time, self.day)
        parts += [when] if when else []
        if found.ongoing is not None:
            parts.append(_("still going on when the input ends") if found.ongoing else _("over before the input ends"))
        return parts

    def memory_lines(self, m: MemoryReport) -> list[str]:
        _ = self._
        lines = []
        parts = [
            (_("weights"), m.weights_bytes), (_("activations"), m.activation_bytes), (_("outside PyTorch"), m.non_torch_bytes),
            (_("CUDA graphs"), m.graphs_bytes), (_("KV cache"), m.kv_bytes),
        ]  # fmt: skip
        known = self.listed(f"{name} {self.value(value, 'bytes')}" for name, value in parts if value is not None)
        if m.total_bytes is not None and m.budget_bytes is not None:
            head = _("{total} in all, of which vLLM may use {budget}")
            head = head.format(total=self.value(m.total_bytes, "bytes"), budget=self.value(m.budget_bytes, "bytes"))
            lines.append(self.colon(head, known) if known else head)
        elif known:
            lines.append(known)
        names = {"p50": _("of the usual length"), "p95": _("of the length only 5 % exceed"), "max_model_len": _("of the longest allowed length")}
        fits = []
        for key in ("p50", "p95", "max_model_len"):
            if key in m.requests_that_fit:
                fit = m.requests_that_fit[key]
                text = _("{n} {which} ({tokens})")
                fits.append(text.format(n=self.fits(fit.requests), which=names[key], tokens=self.value(fit.tokens_per_request, "tokens")))
        if fits:
            lines.append(self.colon(_("requests that fit in the KV cache at once"), self.listed(fits)))
        elif m.kv_tokens is not None:
            lines.append(self.colon(_("room in the KV cache"), self.value(m.kv_tokens, "tokens")))
        return lines
