"""`vllm-doctor plan` as text (one card in detail, several side by side) and as JSON (DESIGN section 5)."""

from __future__ import annotations

from typing import Any

import msgspec

from ..capacity.plan import Plan, Wish
from ..capacity.setup import Amount
from ..model.report import SCHEMA_VERSION
from .ledger import FILLS, Row, draw, part_name
from .page import Page
from .plain import cells, clean
from .words import Words

TYPICAL = {"starts": 27, "median_error": 0.02, "within_12_percent": 0.85}
"""How well KV bytes were met over measured starts from model, card and options alone (docs/memory-model.md; a test keeps them equal)."""


def amounts(plan: Plan) -> dict[str, Amount]:
    """Every part, the room left over included."""
    budget = plan.budget
    parts: dict[str, Amount] = {str(name): amount for name, amount in budget.parts.items()}
    return {"outside": budget.outside, **parts, "kv": budget.kv, "headroom": Amount(budget.headroom, budget.kv.basis)}


def as_json(plans: list[tuple[str, Plan]], model: str, wish: Wish) -> str:
    """One document. `plan` is the first card's; all of them are in `plans` where there are several."""
    documents = [_document(label, plan, model, wish) for label, plan in plans]
    result: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "plan": documents[0]}
    if len(documents) > 1:
        result["plans"] = documents
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def _document(label: str, plan: Plan, model: str, wish: Wish) -> dict[str, Any]:
    budget, setup = plan.budget, plan.setup
    per_gpu: dict[str, Any] = {"total_bytes": budget.total, "budget_bytes": budget.budget}
    per_gpu |= {f"{name}_bytes": amount.bytes for name, amount in amounts(plan).items()}
    low, high = budget.kv.span
    return {
        "model": model,
        "model_entry": setup.model.name,
        "gpu": label,
        "vllm_version": setup.version,
        "engine_generation": budget.generation,
        "tensor_parallel_size": setup.tensor_parallel_size,
        "flags": plan.flags,
        "per_gpu": per_gpu,
        "kv_bytes_per_token": _number(budget.kv_bytes_per_token),
        "kv_blocks": budget.blocks,
        "block_size": budget.block_size,
        "kv_tokens": budget.kv_tokens,
        "max_concurrency": round(budget.max_concurrency, 2),
        "starts": budget.starts,
        "requests_that_fit": {
            name: {
                "tokens_per_request": f.tokens_per_request, "requests": round(f.requests, 2), "range": [round(f.low, 2), round(f.high, 2)],
                "basis": f.basis,
            }
            for name, f in plan.fits.items()
        },
        "limits": [{"name": b.name, "requests": round(b.requests, 2), "tokens_per_request": b.tokens_per_request} for b in plan.limits],
        "settings": {
            "gpu_memory_utilization": budget.utilization, "max_model_len": budget.max_model_len, "max_num_seqs": budget.max_num_seqs,
            "max_num_batched_tokens": budget.max_num_batched_tokens,
        },
        "solved": None if plan.solved is None else {"quantity": plan.solved[0], "value": plan.solved[1] or None},
        "wish": {"concurrency": wish.concurrency, "input": wish.input, "output": wish.output},
        "notes": [{"code": code, **values} for code, values in plan.notes],
        "error_band": {
            "kv_bytes": [low, high], "kv_tokens": list(budget.tokens_range), "parts": {n: list(a.span) for n, a in budget.parts.items()},
            "typical": TYPICAL if plan.basis == "model" else None,
        },
        "part_basis": {n: a.basis for n, a in budget.parts.items()},
        "basis": plan.basis,
    }  # fmt: skip


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(value, 2)


def as_text(plans: list[tuple[str, Plan]], model: str, wish: Wish, *, language: str = "en", width: int = 100, color: bool = False) -> str:
    """One card: bar, table, what fits, what binds, what to write. Several: the same figures in columns."""
    page, words = Page(width), Words(language)
    if len(plans) == 1:
        _card(page, words, plans[0][0], plans[0][1], model, wish)
    else:
        _columns(page, words, plans, model)
        for label, plan in plans:
            page.heading(clean(label))
            _answer(page, words, plan, model)
    _band(page, words, plans)
    return page.render(color)


def _title(words: Words, plan: Plan) -> list[str]:
    _, setup = words._, plan.setup
    parts = [_("vLLM {version}").format(version=setup.version or _("(newest known)")) + f" ({plan.budget.generation})"]
    if setup.tensor_parallel_size > 1:
        parts.append(_("tensor parallel {n}").format(n=setup.tensor_parallel_size))
    if setup.pipeline_parallel_size > 1:
        parts.append(_("pipeline parallel {n}").format(n=setup.pipeline_parallel_size))
    if setup.quantization:
        parts.append(setup.quantization)
    parts.append(_("utilization {value}").format(value=f"{plan.budget.utilization:g}"))
    return parts


def _card(page: Page, words: Words, label: str, plan: Plan, model: str, wish: Wish) -> None:
    _, budget = words._, plan.budget
    page.text(" · ".join([_("{model} on {gpu}").format(model=model, gpu=label), *_title(words, plan)]), indent=0, style="bold")
    page.blank()
    head = _("{total} in all, of which vLLM may use {budget}")
    page.text(head.format(total=words.value(budget.total, "bytes"), budget=words.value(budget.budget, "bytes")), indent=2)
    draw(page, words, [Row(n, a.bytes, _note(words, a, n)) for n, a in amounts(plan).items()], budget.total)
    page.blank()
    _answer(page, words, plan, model)


def _note(words: Words, amount: Amount, name: str) -> str:
    if name == "headroom":
        return ""
    low, high = amount.span
    basis = words.basis(amount.basis)
    return basis if low == high else words.noted(basis, f"{words.value(low, 'bytes')} – {words.value(high, 'bytes')}")


def _answer(page: Page, words: Words, plan: Plan, model: str) -> None:
    _, budget = words._, plan.budget
    each, tokens = words.value(budget.kv_bytes_per_token, "bytes"), words.value(budget.kv_tokens, "tokens")
    page.text(_("{bytes} of KV cache per token: room for {tokens} ({low} – {high})").format(
        bytes=each, tokens=tokens, low=words.value(budget.tokens_range[0], "count"), high=words.value(budget.tokens_range[1], "count"),
    ))  # fmt: skip
    for name, fit in plan.fits.items():
        which = _("of the wanted length") if name == "wanted" else _("of the longest allowed length")
        text = _("{n} requests {which} at once ({tokens} each; {low} – {high})")
        tokens = words.value(fit.tokens_per_request, "tokens")
        page.text(text.format(n=words.fits(fit.requests), which=which, tokens=tokens, low=words.fits(fit.low), high=words.fits(fit.high)))
    first = plan.limits[0]
    names = {"kv_cache": _("the KV cache"), "max_num_seqs": "--max-num-seqs", "max_model_len": "--max-model-len"}
    page.text(words.colon(_("binds first"), _("{limit}, at {n} requests").format(limit=names[first.name], n=words.fits(first.requests))))
    if plan.solved is not None:
        quantity, value = plan.solved
        found = _("--{quantity} {value} is the answer to --solve {quantity}") if value else _("no value of --{quantity} does it")
        page.text(found.format(quantity="tensor-parallel-size" if quantity == "tp" and value else quantity, value=value), style="bold")
    for code, values in plan.notes:
        page.text(sentence(words, code, values), lead="- ")
    command = " ".join(["vllm serve", clean(model), *(k if v == "true" else f"{k} {v}" for k, v in plan.flags.items())])
    page.text(_("start it with:"))
    page.raw(command, 4, "green")


_UNITS = {"missing": "bytes", "headroom": "bytes", "graphs": "bytes", "tokens": "tokens", "length": "tokens", "longest": "tokens"}


def sentence(words: Words, code: str, values: dict[str, float | str]) -> str:
    """A note in words."""
    _ = words._
    text = {
        "no-kv": _(
            "It does not start: weights and peak exceed the budget by {missing}. More GPUs, a smaller or quantised model, or a higher utilization."
        ),
        "below-max-len": _("It does not start with a length of {length}: at most {longest} fit."),
        "queue": _(
            "Of {wanted} requests at once, {fits} fit at {tokens} each; others wait or are preempted. A full KV cache gives no CUDA out of memory."
        ),
        "room": _(
            "{wanted} requests at once cannot fill the KV cache: {fits} fit at {tokens} each. An out-of-memory error at this load has another cause."
        ),
        "seqs": _("--max-num-seqs allows {limit} of the {wanted} wanted requests to run."),
        "tight-headroom": _(
            "Only {headroom} are left over, while this version captures CUDA graphs of about {graphs} outside the budget: lower the utilization."
        ),
        "no-bf16": _("{card} has no bfloat16: vLLM needs --dtype float16 there."),
        "no-fp8": _("{card} has no FP8 arithmetic: check that an attention backend of this version can store FP8 there."),
        "replicated-heads": _("The model has {heads} KV heads: with {tp} GPUs they are replicated, and the KV cache per GPU stops shrinking."),
        "no-effect": _("{flag} does not change what fits."),
        "wide-band": _("For models of this kind the estimate of the peak is loose: encoder, states and workspaces differ by version."),
    }[code]
    return text.format(**{k: v if isinstance(v, str) else words.value(v, _UNITS.get(k, "count")) for k, v in values.items()})


def _columns(page: Page, words: Words, plans: list[tuple[str, Plan]], model: str) -> None:
    _ = words._
    page.text(" · ".join([clean(model), *_title(words, plans[0][1])[:1]]), indent=0, style="bold")
    page.blank()
    rows: list[tuple[str, list[str]]] = [("", [clean(label) for label, _plan in plans])]
    for part in FILLS:
        rows.append((part_name(words, part), [words.value(amounts(p)[part].bytes, "bytes") for _l, p in plans]))
    rows.append((_("in all"), [words.value(p.budget.total, "bytes") for _l, p in plans]))
    rows.append((_("KV cache per token"), [words.value(p.budget.kv_bytes_per_token, "bytes") for _l, p in plans]))
    rows.append((_("room for"), [words.value(p.budget.kv_tokens, "tokens") for _l, p in plans]))
    for name in plans[0][1].fits:
        tokens = words.value(plans[0][1].fits[name].tokens_per_request, "tokens")
        rows.append((_("requests at once, {tokens} each").format(tokens=tokens), [words.fits(p.fits[name].requests) for _l, p in plans]))
    if plans[0][1].solved:
        rows.append((f"--solve {plans[0][1].solved[0]}", [(p.solved[1] if p.solved else "") or "-" for _l, p in plans]))
    wide = max(cells(head) for head, _cells in rows)
    widths = [max(cells(values[i]) for _head, values in rows) for i in range(len(plans))]
    for head, values in rows:
        line = head + " " * (wide - cells(head))
        for value, size in zip(values, widths, strict=True):
            line += "  " + " " * (size - cells(value)) + value
        page.raw(line, 2)


def _band(page: Page, words: Words, plans: list[tuple[str, Plan]]) -> None:
    _ = words._
    page.blank()
    if all(p.basis == "measured" for _l, p in plans):
        page.text(_("Basis: measured. The parts are those of a real start; the KV cache follows exactly."), indent=0, style="dim")
        return
    text = _("Basis: calculated. Over {n} measured starts, half of the KV sizes were met within {median}, and {share} of them within {limit}.")
    figures = {k: words.value(v, "ratio") for k, v in (("median", TYPICAL["median_error"]), ("share", TYPICAL["within_12_percent"]), ("limit", 0.12))}
    page.text(text.format(n=words.value(TYPICAL["starts"], "count"), **figures), indent=0, style="dim")
    page.text(_("For exact figures hand over the start-up log of such a server: --log FILE."), indent=0, style="dim")
