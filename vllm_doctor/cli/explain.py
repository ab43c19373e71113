"""`vllm-doctor explain`: what the rules know about a cause or a launch option, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..language import LANGUAGES
from .common import Misuse, colored, emit, language_of, load_rules, rule_faults, width

if TYPE_CHECKING:
    from ..reports.page import Page
    from ..ruleset.schema import Applies, Cause, ChangeRule, EvidenceRule, Flag, FlagNote, Remedy, RuleSet


@click.command("explain", short_help="Explain a cause or a launch option, offline.", context_settings={"ignore_unknown_options": True})
@click.argument("id_", metavar="ID")
@click.option("--lang", type=click.Choice(LANGUAGES), help="Language (default: from the environment).")
@click.option("--rules", "rules_dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Add the rules in DIR, or replace by id.")
def command(id_: str, lang: str | None, rules_dir: str | None) -> None:
    """Explains a cause (kv-cache-exhaustion) or a launch option (--max-num-seqs): what it is, what shows it, what speaks against it, and
    what to change."""
    import sys

    from ..reports.page import Page

    language = language_of(lang)
    rules = load_rules(rules_dir)
    page = Page(width())
    cause = next((c for c in rules.causes if c.id == id_), None)
    flag = None if cause else find_flag(rules, id_)
    if cause:
        explain_cause(page, cause, rules, language)
    elif flag:
        explain_flag(page, flag, language, note_of(flag, rules_dir))
    else:
        raise Misuse(unknown(rules, id_, language))
    emit(page.render(colored(sys.stdout)))


def find_flag(rules: RuleSet, name: str) -> Flag | None:
    """The option or environment variable called `name`, also without its dashes, with underscores, or by an alias."""
    wanted = name.lstrip("-").replace("_", "-").lower()
    for flag in rules.flags:
        if any(wanted == n.lstrip("-").replace("_", "-").lower() for n in (flag.name, *flag.aliases)):
            return flag
    return None


def unknown(rules: RuleSet, name: str, language: str) -> str:
    """What to say about a name that the rules do not hold."""
    import difflib

    from ..language import translator
    from ..model.catalogue import CAUSE_IDS
    from ..reports.plain import clean

    _ = translator(language)
    if name in CAUSE_IDS:
        return _("{name} is a cause of the product, but no rule for it is installed").format(name=name)
    names = {n.lstrip("-"): n for n in (*(c.id for c in rules.causes), *(f.name for f in rules.flags))}
    close = [names[n] for n in difflib.get_close_matches(name.lstrip("-"), names, n=3)]
    text = _("{name} is neither a cause nor a launch option that the rules know").format(name=clean(name))
    return text + (_("; did you mean: {names}?").format(names=", ".join(close)) if close else _("; see `vllm-doctor rules list`"))


def explain_cause(page: Page, cause: Cause, rules: RuleSet, language: str) -> None:
    """A cause as its file states it."""
    from ..language import translator
    from ..ruleset.conditions import signals_in

    _ = translator(language)

    def sentence(text: str) -> str:
        for name in signals_in(text):
            text = text.replace("{" + name + "}", f"‹{name}›")  # no case here, so no value: the figure's name stands for it
        return text

    def colon(label: str, text: str) -> str:
        return _("{label}: {text}").format(label=label, text=text)

    def evidence(items: list[EvidenceRule], mark: str) -> None:
        for item in items:
            note = ", ".join(filter(None, [item.weight, item.variant or "", applies(item.applies)]))
            page.text(f"{sentence(item.why.in_language(language))} ({note})", lead=f"{mark} ")
            page.text(when_text(item.when), indent=6, style="dim")

    page.text(sentence(cause.title.in_language(language)), indent=0, style="bold")
    page.text(" · ".join(filter(None, [cause.id, cause.severity, cause.maturity, applies(cause.applies)])), indent=0, style="dim")
    page.blank()
    page.text(sentence(cause.summary.in_language(language)), indent=0)
    page.heading(_("WHAT SHOWS IT"))
    evidence(cause.for_, "+")
    if cause.against:
        page.heading(_("WHAT SPEAKS AGAINST IT"))
        evidence(cause.against, "-")
    if cause.thresholds:
        page.heading(_("THRESHOLDS"))
    for name, threshold in cause.thresholds.items():
        note = f"{threshold.basis}, {threshold.source}" if threshold.source else threshold.basis
        page.text(f"{threshold.reason} ({note})", lead=f"${name} = {threshold.value}  ", hang=4)
    known: dict[str, Remedy] = {r.id: r for r in rules.remedies}
    if cause.remedies:
        page.heading(_("WHAT TO DO"))
    for number, remedy in enumerate((known[r] for r in cause.remedies if r in known), 1):
        page.text(sentence(remedy.title.in_language(language)), lead=f"{number}. ", style="bold")
        if remedy.change:
            page.raw(change_text(remedy.change), 7, "green")
        page.text(colon(_("risk"), sentence(remedy.risk.in_language(language))), indent=5)
        page.text(colon(_("check"), sentence(remedy.verify.in_language(language))), indent=5)
    for other in cause.not_remedies:
        page.text(colon(other.flag, sentence(other.because.in_language(language))), lead=_("not") + " ", lead_style="bold yellow")
    for title, items in ((_("EXPLAINS"), cause.explains), (_("FALSE ALARMS"), cause.false_positives), (_("SOURCES"), cause.sources)):
        if items:
            page.heading(title)
        for item in items:
            page.text(item, lead="- ")


def note_of(flag: Flag, rules_dir: str | None) -> FlagNote | None:
    """What is known of an option's effects, and the myths about it."""
    from ..ruleset.errors import RulesInvalid
    from ..ruleset.load import load_knowledge

    try:
        return next((n for n in load_knowledge(rules_dir).notes if n.flag == flag.name), None)
    except RulesInvalid as invalid:
        raise rule_faults(invalid) from None


def explain_flag(page: Page, flag: Flag, language: str, note: FlagNote | None = None) -> None:
    """A launch option as `knowledge/flags.yaml` states it, its effect on memory and latency, and what is wrongly said of it."""
    from ..language import translator

    _ = translator(language)
    told = flag.words(language)
    rows = [
        (_("what it does"), told.effect),
        (_("in memory"), note.memory.in_language(language) if note else ""),
        (_("in latency"), note.latency.in_language(language) if note else ""),
        (_("default"), told.default),
        (_("versions"), versions_of(flag, language)),
        (_("also called"), ", ".join(flag.aliases)),
        (_("not with"), ", ".join(flag.conflicts)),
        (_("notes"), told.notes),
    ]
    from ..reports.plain import cells

    kind = _("environment variable") if flag.env else _("launch option")
    page.text(f"{flag.name}  ({kind})", indent=0, style="bold")
    wide = max(cells(label) for label, text in rows if text) + 2
    for label, text in rows:
        if text:
            page.text(text, lead=label, hang=wide, lead_style="dim")
    if note and note.myths:
        page.heading(_("WHAT IS SAID OF IT, AND WHAT HOLDS"))
        for myth in note.myths:
            page.text(myth.truth.in_language(language), lead=f"- {myth.claim.in_language(language)} ", hang=2, lead_style="bold")


def versions_of(flag: Flag, language: str) -> str:
    """The releases that have the option. Those at the ends of what was read may not be the first and the last."""
    from packaging.version import InvalidVersion, Version

    from ..language import translator
    from ..versions import NEWEST, OLDEST

    _ = translator(language)
    try:
        first, last = Version(flag.first_version), NEWEST if flag.last_version == "open" else Version(flag.last_version)
    except InvalidVersion:
        return _("{first} to {last}").format(first=flag.first_version, last=flag.last_version)
    if last >= NEWEST:
        return (
            _("all that were read ({first} to {last})").format(first=OLDEST, last=NEWEST)
            if first <= OLDEST
            else _("from {first}").format(first=first)
        )
    return _("{first} to {last}").format(first=first, last=last)


def change_text(change: ChangeRule) -> str:
    """The lever, with its value where it is always the same."""
    name = change.flag or change.env or ""
    if change.action == "remove":
        return f"unset {name}" if change.env else f"- {name}"
    value = "..." if change.to is None else str(change.to)
    return f"export {name}={value}" if change.env else f"{name} {value}"


def applies(bounds: Applies | None) -> str:
    """Where a rule holds, in short: `vLLM >=0.8, V1`."""
    if bounds is None:
        return ""
    return ", ".join(filter(None, [f"vLLM {bounds.version}" if bounds.version else "", bounds.engine_generation or ""]))


def when_text(when: object) -> str:
    """A condition in one line."""
    if isinstance(when, dict):
        return " or ".join(f"({when_text(item)})" if isinstance(item, list) else when_text(item) for item in when.get("any", []))
    if isinstance(when, list):
        return " and ".join(f"({when_text(item)})" if isinstance(item, dict) else when_text(item) for item in when)
    return str(when)
