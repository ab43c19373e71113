"""A ledger as the report's own types."""

from __future__ import annotations

from collections.abc import Callable

from ..model.observations import Ref
from ..model.report import Line, MemoryReport, RequestsThatFit
from .ledger import Account, Ledger

NAMES = ("total", "outside", "budget", "weights", "activation", "non_torch", "graphs", "kv", "headroom")


def memory_reports(found: Ledger, line: Callable[[Ref], Line]) -> tuple[MemoryReport, ...]:
    """One entry per GPU, the tightest first. Figures of the whole pool (tokens, requests) are the same in each: the engine takes the
    minimum."""
    fits = {name: RequestsThatFit(_round(fit.tokens_per_request), round(fit.requests, 2), fit.basis) for name, fit in found.fits.items()}
    differences = found.differences()

    def one(account: Account, tightest: bool) -> MemoryReport:
        refs = {f"{n}_bytes": line(e.refs[0]) for n in NAMES if (e := account.entries.get(n)) and e.refs}
        refs |= {name.removeprefix("kv_cache."): line(ref) for name, ref in found.refs.items()}
        if found.observed and found.observed.refs:
            refs["requests_that_fit"] = line(found.observed.refs[0])
        return MemoryReport(
            run=found.run,
            gpu=account.gpu,
            **{f"{n}_bytes": account.get(n) for n in NAMES},
            kv_bytes_per_token=None if found.kv_bytes_per_token is None else _round(found.kv_bytes_per_token),
            kv_tokens=found.kv_tokens,
            max_concurrency=found.max_concurrency,
            requests_that_fit=fits,
            refs=refs,
            origins={f"{n}_bytes": e.origin for n, e in account.entries.items()},
            predicted={f"{n}_bytes": model for n, (_, model) in differences.items()} if tightest else {},
        )

    return tuple(one(a, i == 0) for i, a in enumerate(found.accounts))


def _round(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(value, 1)
