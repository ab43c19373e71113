"""`vllm-doctor plan` as text (one card in detail, several side by side) and as JSON (DESIGN section 5)."""

from __future__ import annotations

from typing import Any

import msgspec

from ..capacity.command import command_of
from ..capacity.plan import Plan
from ..capacity.refusals import REFUSALS
from ..capacity.setup import Amount
from ..capacity.solving import Wish
from ..capacity.ways import Way
from ..model.report import SCHEMA_VERSION
from .ledger import FILLS, Row, draw, part_name
from .page import Page
from .plain import cells, clean
from .plan_notes import about, sentence
from .words import Words

TYPICAL = {"starts": 121, "median_error": 0.02, "within_12_percent": 0.86}
"""How well KV bytes were met over measured starts from model, card and options alone (docs/memory-model.md; a test keeps them equal)."""


def checked(plan: Plan) -> bool:
    """Is the device of a kind that measured starts are known of?"""
    return plan.setup.device in ("cuda", "rocm")


def refused(plan: Plan) -> bool:
    """Does vLLM refuse the set-up whatever its KV cache would hold? Then nothing fits in it."""
    return any(code in REFUSALS for code, _values in plan.notes)


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
        "other_options": list(plan.others),
        "per_gpu": per_gpu,
        "kv_bytes_per_token": _number(budget.kv_bytes_per_token),
        "kv_blocks": budget.blocks,
        "block_size": budget.block_size,
        "kv_tokens": budget.kv_tokens,
        "max_concurrency": round(budget.max_concurrency, 2),
        "starts": plan.starts,
        "certainty": plan.certainty,
        "command": command_of(setup, _named(model, plan), plan.flags, plan.others) if plan.command_starts else None,
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
        "solved": plan.solved and {"quantity": plan.solved[0], "value": plan.solved[1] or None, "middle": plan.solved_middle or None},
        "wish": {"concurrency": wish.concurrency, "input": wish.input, "output": wish.output},
        "ways": [
            {
                "kind": w.kind, "flags": w.flags, "checkpoint": w.checkpoint or None, "requests": round(w.requests, 2),
                "tokens_per_request": w.tokens_per_request, "kv_tokens": w.kv_tokens,
            }
            for w in plan.ways
        ],
        "notes": [{"code": code, **values} for code, values in plan.notes],
        "error_band": {
            "kv_bytes": [low, high], "kv_tokens": list(budget.tokens_range), "parts": {n: list(a.span) for n, a in budget.parts.items()},
            "typical": TYPICAL if plan.basis == "model" and checked(plan) else None,
        },
        "part_basis": {n: a.basis for n, a in budget.parts.items()},
        "basis": plan.basis,
    }  # fmt: skip


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(value, 2)


def as_text(plans: list[tuple[str, Plan]], model: str, wish: Wish, *, language: str = "en", width: int = 100, color: bool = False) -> str:
    """One card: the answer, bar, table, what fits, what binds, what to change and what to write. Several: the figures in columns first."""
    page, words = Page(width), Words(language)
    if len(plans) == 1:
        _card(page, words, plans[0][0], plans[0][1], model, wish)
    else:
        _columns(page, words, plans, model)
        for label, plan in plans:
            page.heading(clean(label))
            page.text(_verdict(words, plan), style="bold")
            _answer(page, words, plan, model)
    _band(page, words, plans)
    return page.render(color)


def _title(words: Words, plan: Plan) -> list[str]:
    _, setup = words._, plan.setup
    head = _("vLLM {version} ({generation})") if setup.version else _("vLLM (newest known, {generation})")
    parts = [head.format(version=setup.version, generation=plan.budget.generation)]
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
    page.text(_verdict(words, plan), indent=0, style="bold")
    page.blank()
    page.text(" · ".join([_("{model} on {gpu}").format(model=clean(_shown(model, plan)), gpu=label), *_title(words, plan)]), indent=0)
    _entries(page, words, plan)
    page.blank()
    head = _("{total} in all, of which vLLM may use {budget}")
    page.text(head.format(total=words.value(budget.total, "bytes"), budget=words.value(budget.budget, "bytes")), indent=2)
    draw(page, words, [_row(words, n, a) for n, a in amounts(plan).items()], budget.total)
    page.blank()
    _answer(page, words, plan, model)


def _row(words: Words, part: str, amount: Amount) -> Row:
    if part == "kv" and amount.bytes < 0:
        return Row(part, amount.bytes, words._("{missing} are missing").format(missing=about(words, -amount.bytes, False)), words.value(0, "bytes"))
    return Row(part, amount.bytes, _note(words, amount, part), about(words, amount.bytes, amount.basis == "measured"))


def _verdict(words: Words, plan: Plan) -> str:
    """The answer in a sentence."""
    if plan.solved is not None:
        return _short(words, plan) if plan.solved_short else _solved(words, *plan.solved, plan.solved_middle)
    for code, values in plan.notes:
        if code in VERDICTS or code in REFUSALS:
            return sentence(words, code, values)
    _, fit = words._, plan.fits.get("wanted", plan.fits["max_model_len"])
    one, many = (
        _("It starts: {n} request of {tokens} fits at once ({low} – {high})."),
        _("It starts: {n} requests of {tokens} fit at once ({low} – {high})."),
    )
    if fit.low == fit.high:
        one, many = _("It starts: {n} request of {tokens} fits at once."), _("It starts: {n} requests of {tokens} fit at once.")
    text = one if words.fits(fit.requests) == "1" else many
    figures = {"low": words.fits(fit.low), "high": words.fits(fit.high), "tokens": words.value(fit.tokens_per_request, "tokens")}
    return text.format(n=words.fits(fit.requests), **figures)


VERDICTS = frozenset((
    "compressed-cache", "no-cache", "no-kv", "below-max-len", "may-not-start", "graphs-outside", "queue", "edge", "room", "room-in-kv",
    "wish-above-limit", "wish-above-length", "free-near-budget",
))  # fmt: skip
"""Codes of notes that answer the question, besides those that say it does not start."""


def _named(model: str, plan: Plan) -> str:
    """The model for a command: a config.json stands for its folder, a pasted one for a model that has to be named, a name that is spoken or a
    tag of Ollama for the model it was taken for."""
    if "{" in model:
        return "MODEL"
    if "/" not in model and "\\" not in model and (not model.isascii() or " " in model or ":" in model):
        return "MODEL" if plan.setup.quantization else plan.setup.model.name
    folder, _slash, file = model.rpartition("/")
    return model if not file.endswith(".json") else folder or "."


def _shown(model: str, plan: Plan) -> str:
    """The model for a reader: as it was typed."""
    return _named(model, plan) if "{" in model or model.endswith(".json") else model


def _entries(page: Page, words: Words, *plans: Plan) -> None:
    """Which entries the names were taken for."""
    cards = words.listed(p.setup.gpu.name if p.setup.gpu else words.value(p.budget.total, "bytes") for p in plans)
    text = words._("calculated for model {model}, card {card}")
    page.text(text.format(model=clean(plans[0].setup.model.name), card=cards), indent=2, style="dim")


def _note(words: Words, amount: Amount, name: str) -> str:
    if name == "headroom":
        return ""
    low, high = amount.span
    basis = words.basis(amount.basis)
    return basis if low == high else words.noted(basis, f"{about(words, low, False)} – {about(words, high, False)}")


def _answer(page: Page, words: Words, plan: Plan, model: str) -> None:
    _, budget = words._, plan.budget
    each, measured = words.value(budget.kv_bytes_per_token, "bytes"), budget.kv.basis == "measured"
    if budget.cacheless:
        page.text(_("no KV cache: an encoder reads a text once and keeps nothing of it"))
    elif budget.kv_tokens > 0 and not refused(plan):
        low, high = (about(words, n, measured, "count") for n in budget.tokens_range)
        text = (
            _("{bytes} of KV cache per token: room for {tokens}")
            if low == high
            else _("{bytes} of KV cache per token: room for {tokens} ({low} – {high})")
        )
        page.text(text.format(bytes=each, tokens=about(words, budget.kv_tokens, measured, "tokens"), low=low, high=high))
        _fits(page, words, plan)
    else:
        page.text(_("{bytes} of KV cache per token").format(bytes=each))
    said = _verdict(words, plan)
    for code, values in plan.notes:
        text = sentence(words, code, values)
        if text != said:
            page.text(text, lead="- ")
    if plan.ways:
        page.blank()
        page.text(_("What would do it, each alone:") if len(plan.ways) > 1 else _("What would do it:"))
        for way in plan.ways:
            page.text(_way(words, plan, way), indent=4, lead="- ")
    if not plan.command_starts:
        return
    head = _("start it with:") if plan.certainty == "surely" and not plan.solved_short else _("this surely starts:")
    page.text(head if plan.command_sure else _("this may start:"))
    page.raw(clean(command_of(plan.setup, clean(_named(model, plan)), plan.flags, plan.others)), 4, "green")


def _fits(page: Page, words: Words, plan: Plan) -> None:
    _ = words._
    above = next((values for code, values in plan.notes if code.startswith("wish-above-")), None)
    untold = None  # the length that the command replaces by a longer one, or that nothing admits
    if above is not None:
        untold = "max_model_len" if above.get("command") else "wanted"
    for name, fit in plan.fits.items():
        if name == untold:
            continue
        which, count = _("of the wanted length") if name == "wanted" else _("of the longest allowed length"), words.fits(fit.requests)
        one, many = (
            _("{n} request {which} at once ({tokens} each; {low} – {high})"),
            _("{n} requests {which} at once ({tokens} each; {low} – {high})"),
        )
        if fit.low == fit.high:
            one, many = _("{n} request {which} at once ({tokens} each)"), _("{n} requests {which} at once ({tokens} each)")
        tokens = words.value(fit.tokens_per_request, "tokens")
        text = one if count == "1" else many
        page.text(text.format(n=count, which=which, tokens=tokens, low=words.fits(fit.low), high=words.fits(fit.high)))
    first = plan.limits[0]
    names = {"kv_cache": _("the KV cache"), "max_num_seqs": "--max-num-seqs", "max_model_len": "--max-model-len"}
    count = words.fits(first.requests)
    text = _("{limit}, at {n} request") if count == "1" else _("{limit}, at {n} requests")
    page.text(words.colon(_("binds first"), text.format(limit=names[first.name], n=count)))


def _change(words: Words, plan: Plan, way: Way) -> str:
    """A change that helps."""
    _ = words._
    flags = " ".join(f"{name} {value}" for name, value in way.flags.items())
    kind = {"fp8": "FP8", "awq": _("4 bits (AWQ)"), "gptq": _("4 bits (GPTQ)")}.get(way.checkpoint, way.checkpoint)
    if way.checkpoint and flags:
        what = _("a checkpoint in {kind}, with {flags}").format(kind=kind, flags=flags)
    elif way.checkpoint:
        what = _("a checkpoint in {kind}").format(kind=kind)
    else:
        what = flags
    gpus = way.flags.get("--tensor-parallel-size")
    if gpus:
        count = int(gpus) * plan.setup.pipeline_parallel_size
        what = words.noted(what, (_("{n} such GPU") if count == 1 else _("{n} such GPUs")).format(n=count))
    return what


def _way(words: Words, plan: Plan, way: Way) -> str:
    """A change that helps, and what fits then."""
    _, what = words._, _change(words, plan, way)
    fits = max(int(way.requests), 1)  # a block short of one whole request: it starts
    text = _("{n} request of {tokens} fits at once") if fits == 1 else _("{n} requests of {tokens} fit at once")
    return words.colon(what, text.format(n=words.value(fits, "count"), tokens=words.value(way.tokens_per_request, "tokens")))


def _short(words: Words, plan: Plan) -> str:
    """A length that surely fits and is too short to be of use: what else there is comes first."""
    _, value = words._, plan.solved[1] if plan.solved else ""
    lengths = {"middle": words.value(int(plan.solved_middle or value), "tokens"), "value": words.value(int(value), "tokens")}
    if not plan.ways:
        return _("By the middle estimate {middle} fit, but surely no more than {value}: too short to be of use, and no other way was found.").format(
            **lengths
        )
    first = _change(words, plan, plan.ways[0])
    return _(
        "Better another way, such as {way}. By the middle estimate {middle} fit on the card as it is, but surely no more than {value}: too short to "
        "be of use."
    ).format(way=first, **lengths)


def _solved(words: Words, quantity: str, value: str, middle: str) -> str:
    _ = words._
    name = "tensor-parallel-size" if quantity == "tp" else quantity
    if not value and not middle:
        return _("No value of --{quantity} does it.").format(quantity=name)
    if not value:
        text = _("No value of --{quantity} surely does it; by the middle estimate {middle} does.")
    elif value == middle or not middle:
        text = _("Use --{quantity} {value}.")
    else:
        text = _("Use --{quantity} {value}: it holds at the cautious end of the estimates (middle estimate: {middle}).")
    return text.format(quantity=name, value=value, middle=middle)


_NOTHING = "-"


def _columns(page: Page, words: Words, plans: list[tuple[str, Plan]], model: str) -> None:
    _ = words._
    page.text(" · ".join([clean(_shown(model, plans[0][1])), *_title(words, plans[0][1])[:1]]), indent=0, style="bold")
    _entries(page, words, *(p for _l, p in plans))
    page.blank()
    rows: list[tuple[str, list[str]]] = [("", [clean(label) for label, _plan in plans])]
    for part in FILLS:
        rows.append((part_name(words, part), [about(words, a.bytes, a.basis == "measured") for _l, p in plans for a in [amounts(p)[part]]]))
    rows.append((_("in all"), [words.value(p.budget.total, "bytes") for _l, p in plans]))
    rows.append((_("KV cache per token"), [words.value(p.budget.kv_bytes_per_token, "bytes") for _l, p in plans]))
    room = [_NOTHING if refused(p) else about(words, p.budget.kv_tokens, p.budget.kv.basis == "measured", "tokens") for _l, p in plans]
    rows.append((_("room for"), room))
    for name in plans[0][1].fits:
        tokens = words.value(plans[0][1].fits[name].tokens_per_request, "tokens")
        rows.append(
            (
                _("requests at once, {tokens} each").format(tokens=tokens),
                [_NOTHING if refused(p) else words.fits(p.fits[name].requests) for _l, p in plans],
            )
        )
    if plans[0][1].solved:
        rows.append((f"--solve {plans[0][1].solved[0]}", [(p.solved[1] if p.solved else "") or _NOTHING for _l, p in plans]))
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
        together = any(p.budget.activation.basis != "measured" for _l, p in plans)
        page.text(
            _("Basis: measured. The KV cache is that of a real start; its peak and what lies outside PyTorch are known together only.")
            if together
            else _("Basis: measured. The parts are those of a real start; the KV cache follows exactly."),
            indent=0,
            style="dim",
        )
        return
    if not any(checked(p) for _l, p in plans):
        page.text(_("Basis: calculated, by what was measured on GPUs with CUDA."), indent=0, style="dim")
        return
    text = _("Basis: calculated. Over {n} measured starts, half of the KV sizes were met within {median}, and {share} of them within {limit}.")
    figures = {k: words.value(v, "ratio") for k, v in (("median", TYPICAL["median_error"]), ("share", TYPICAL["within_12_percent"]), ("limit", 0.12))}
    page.text(text.format(n=words.value(TYPICAL["starts"], "count"), **figures), indent=0, style="dim")
    page.text(_("For exact figures hand over the start-up log of such a server: --log FILE."), indent=0, style="dim")
