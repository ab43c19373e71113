"""`vllm-doctor rules`: look at the rules, check them, and start new ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..language import LANGUAGES
from .common import Misuse, emit, language_of, load_rules, rule_faults, warn, write_file
from .templates import TEMPLATES

if TYPE_CHECKING:
    from ..ruleset.schema import RuleSet

rules_option = click.option(
    "--rules", "rules_dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Your own rules, on top of the shipped ones."
)


@click.group("rules", short_help="List, check, test and start rules.")
def command() -> None:
    """The rules are data: formats of log lines, causes, remedies and what is known of vLLM's options."""


@command.command("list", short_help="A table of the rules.")
@click.argument("kind", type=click.Choice(["causes", "formats", "remedies", "flags"]), default="causes")
@click.option("--lang", type=click.Choice(LANGUAGES), help="Language (default: from the environment).")
@rules_option
def list_(kind: str, lang: str | None, rules_dir: str | None) -> None:
    """A table of the rules of one KIND: causes (default), formats, remedies or flags."""
    language, rules = language_of(lang), load_rules(rules_dir)
    emit(table(rows(rules, kind, language)))


def rows(rules: RuleSet, kind: str, language: str) -> list[tuple[str, ...]]:
    """Heading and one row per rule."""
    from ..language import translator

    _ = translator(language)
    head: tuple[str, ...]
    if kind == "formats":
        head = ("id", _("versions"), _("samples"), _("gives"))
        return [head, *((f.id, f"{f.since or ''}-{f.until or ''}", str(len(f.samples)), " ".join(f.gives)) for f in sorted(rules.formats, key=_id))]
    if kind == "remedies":
        head = ("id", _("kind"), _("changes"), _("title"))
        changed = {r.id: (r.change.flag or r.change.env or "") if r.change else "" for r in rules.remedies}
        return [head, *((r.id, r.kind, changed[r.id], r.title.in_language(language)) for r in sorted(rules.remedies, key=_id))]
    if kind == "flags":
        head = (_("name"), _("versions"), _("default"))
        return [head, *((f.name, f"{f.first_version}-{f.last_version}", f.default) for f in sorted(rules.flags, key=lambda f: f.name))]
    head = ("id", _("severity"), _("maturity"), _("title"))
    return [head, *((c.id, c.severity, c.maturity, c.title.in_language(language)) for c in sorted(rules.causes, key=_id))]


def _id(rule: Any) -> str:
    return str(rule.id)


def table(content: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell; the last one runs free."""
    from ..reports.plain import cells, clean

    clean_rows = [[clean(cell) for cell in row] for row in content]
    wide = [max(cells(row[i]) for row in clean_rows) for i in range(len(clean_rows[0]) - 1)]
    return "".join("  ".join([*(c + " " * (w - cells(c)) for c, w in zip(row, wide, strict=False)), row[-1]]).rstrip() + "\n" for row in clean_rows)


@command.command(short_help="Check all rules; show faults with file and line.")
@rules_option
def lint(rules_dir: str | None) -> int:
    """Loads all rules strictly and shows every fault with file and line. Exit code 1 if there is one."""
    from ..language import translator
    from ..ruleset.errors import RulesInvalid
    from ..ruleset.load import CHECKOUT, load, load_folder, load_knowledge

    language = language_of(None)
    _ = translator(language)
    try:
        rules = load_folder(CHECKOUT) if rules_dir is None and CHECKOUT.is_dir() else load(rules_dir)
        knowledge = load_knowledge(rules_dir)
    except RulesInvalid as invalid:
        warn(rule_faults(invalid).in_language(language))
        return 1
    counted: dict[str, list[Any]] = {"formats": rules.formats, "causes": rules.causes, "remedies": rules.remedies, "flags": rules.flags}
    counted |= {"models": knowledge.models, "cards": knowledge.gpus}
    text = _("ok: {formats} formats, {causes} causes, {remedies} remedies, {flags} flags, {models} models, {cards} cards")
    emit(text.format(**{kind: len(items) for kind, items in counted.items()}) + "\n")
    for replaced in rules.extra:
        emit(_("note: {rule} replaces the shipped rule of that name").format(rule=replaced) + "\n")
    return 0


@command.command("test", short_help="Run the tests inside the rules.")
@rules_option
def test_(rules_dir: str | None) -> int:
    """Runs the samples of all formats and the tests of all causes; with --rules only yours, fixtures counted from the folder above DIR.

    Exit code 1 if one of those that ran fails.
    """
    from ..language import translator
    from ..parsing import formats
    from ..ruleset.load import CHECKOUT, load_folder
    from ..selftest import check_causes, count_tests

    _ = translator(language_of(None))
    rules = load_rules(rules_dir)
    tested, only = rules.formats, None
    root = CHECKOUT.parent
    if rules_dir is not None:
        own = load_folder(Path(rules_dir), partial=load_rules(None))
        tested, only = own.formats, {c.id for c in own.causes}
        root = Path(rules_dir).absolute().parent
    # samples of shipped formats are read again: what goes wrong with them is a line that a rule of the user takes away
    failures = [*formats.check(rules.formats), *check_causes(rules, root, only)]
    for failure in failures:
        warn(str(failure))
    ran, left_out = count_tests(rules, root, only)
    if left_out:
        emit(_("NOT RUN: {n} tests need fixtures that this installation does not have").format(n=left_out) + "\n")
    verdict = _("failed: {n}").format(n=len(failures)) if failures else "ok"
    text = _("{verdict}: {samples} samples of formats, {tests} tests of causes")
    emit(text.format(verdict=verdict, samples=sum(len(f.samples) for f in tested), tests=ran) + "\n")
    if rules_dir is not None:
        emit(_("note: the rules in {folder} were tested; for the shipped ones leave --rules out").format(folder=rules_dir) + "\n")
    return int(bool(failures))


@command.command(short_help="Start a format or a cause from a template.")
@click.argument("kind", type=click.Choice(list(TEMPLATES)))
@click.argument("id_", metavar="ID")
@click.option("--rules", "rules_dir", type=click.Path(file_okay=False), metavar="DIR", help="Where to write (default: ./rules, if it exists).")
def new(kind: str, id_: str, rules_dir: str | None) -> None:
    """Writes a commented template for a `format` or a `cause` called ID. It does not load before it is filled in."""

    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id_):
        raise Misuse("{id} is not an id: lower-case words joined by -, such as kv-cache-exhaustion", id=repr(id_))
    folder, template = TEMPLATES[kind]
    home = Path(rules_dir or "rules")
    if rules_dir is None and not home.is_dir():
        raise Misuse("there is no folder rules/ here: say where to write with --rules DIR")
    path = home / folder / f"{id_}.yaml"
    if path.exists():
        raise Misuse("{path} exists already", path=path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse("cannot write {path}: {reason}", path=path, reason=error.strerror or error) from None
    write_file(str(path), template.replace("@ID@", id_))
    emit(f"{path}\n")


@command.command(short_help="Print the JSON Schema of the rule files.")
def schema() -> None:
    """Prints the JSON Schema of the YAML files, for editors: a file under causes/ is one Cause, every other one a list of its kind."""
    import msgspec

    emit(msgspec.json.format(msgspec.json.encode(rules_schema()), indent=2).decode() + "\n")


def rules_schema() -> dict[str, Any]:
    """One schema that fits every file under rules/."""
    import msgspec

    from ..ruleset.schema import Cause, Flag, FlagNote, Format, Gpu, Input, Metric, Model, Remedy

    (cause, *entries), definitions = msgspec.json.schema_components(
        [Cause, Format, Remedy, Flag, Metric, Input, Model, Gpu, FlagNote], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rules of vllm-doctor",
        "anyOf": [cause, *({"type": "array", "items": entry} for entry in entries)],
        "$defs": definitions,
    }
