"""Loads `rules/`: strictly, all faults collected. An installed wheel carries `rules.json`, the same rules already checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..model.catalogue import CAUSE_IDS, SIGNALS, observation
from . import conditions
from .errors import RuleError, RulesInvalid
from .schema import (
    Accuracy,
    Architecture,
    Cause,
    EvidenceRule,
    Flag,
    FlagNote,
    Format,
    Gpu,
    Input,
    Knowledge,
    Method,
    Metric,
    Model,
    Remedy,
    RuleSet,
    Text,
)

S = TypeVar("S", bound=msgspec.Struct)

PACKAGE = Path(__file__).resolve().parent.parent
COMPILED = PACKAGE / "rules.json"
COMPILED_KNOWLEDGE = PACKAGE / "knowledge.json"
CHECKOUT = PACKAGE.parent / "rules"
MAX_REGEX = 500
_UNFILLED = re.compile(r"<FILL IN: ([^>]*)>")
"""What the templates of `rules new` leave open; a rule with such a text would speak to users."""

_LISTS: dict[str, type[msgspec.Struct]] = {"flags.yaml": Flag, "metrics.yaml": Metric, "inputs.yaml": Input, "accuracy.yaml": Accuracy}


@lru_cache(maxsize=4)
def load(extra: str | None = None) -> RuleSet:
    """The shipped rules, with those of the folder `extra` added or replacing by id. Raises RulesInvalid."""
    shipped = msgspec.json.decode(COMPILED.read_bytes(), type=RuleSet) if COMPILED.is_file() else load_folder(CHECKOUT)
    return shipped if extra is None else _overlaid(shipped, load_folder(Path(extra), partial=shipped))


@lru_cache(maxsize=4)
def load_knowledge(extra: str | None = None) -> Knowledge:
    """Models, cards and notes on options, with those of the folder `extra` added or replacing by name. Raises RulesInvalid.

    Apart from `load`: only what computes memory or explains an option needs them."""
    compiled = COMPILED_KNOWLEDGE.is_file()
    shipped = msgspec.json.decode(COMPILED_KNOWLEDGE.read_bytes(), type=Knowledge) if compiled else knowledge_folder(CHECKOUT)
    if extra is None:
        return shipped
    own = knowledge_folder(Path(extra))
    models, gpus = {m.name for m in own.models}, {g.name for g in own.gpus}
    return Knowledge([m for m in shipped.models if m.name not in models] + own.models, [g for g in shipped.gpus if g.name not in gpus] + own.gpus)


def knowledge_folder(folder: Path) -> Knowledge:
    """The same of one rules folder, checked; each file may be missing. Raises RulesInvalid."""
    errors: list[RuleError] = []
    models = _entries(folder / "knowledge" / "models.yaml", Model, errors)
    gpus = _entries(folder / "knowledge" / "gpus.yaml", Gpu, errors)
    notes = _entries(folder / "knowledge" / "flag_notes.yaml", FlagNote, errors)
    methods = _entries(folder / "knowledge" / "methods.yaml", Method, errors)
    architectures = _entries(folder / "knowledge" / "architectures.yaml", Architecture, errors)
    if errors:
        raise RulesInvalid(errors)
    return Knowledge(models, gpus, notes, methods, architectures)


def _entries(path: Path, kind: type[S], errors: list[RuleError]) -> list[S]:
    """A list with one JSON object a line is decoded as such, in a hundredth of the time that YAML takes; any other YAML serves as well."""
    if not path.is_file():
        return []
    name = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        errors.append(RuleError(name, 1, str(error), "the file must be readable UTF-8"))
        return []
    entries: list[S] = []
    places: list[tuple[str, str, int]] = []
    rows = [(number, row) for number, row in enumerate(text.splitlines(), 1) if row.strip() and not row.startswith("#")]
    if all(row.startswith('- {"') for _, row in rows):
        decoder = msgspec.json.Decoder(kind)
        for number, row in rows:
            try:
                entries.append(decoder.decode(row[2:]))
                places.append((getattr(entries[-1], "name", ""), name, number))
            except msgspec.DecodeError as error:
                errors.append(RuleError(name, number, str(error), "one JSON object a line; see `vllm-doctor rules schema`"))
    else:
        from . import strict_yaml

        try:
            document, lines = strict_yaml.load(text, name)
            for i, item in enumerate(document if isinstance(document, list) else []):
                try:
                    entries.append(msgspec.convert(item, kind))
                    places.append((str(getattr(entries[-1], "name", "") or getattr(entries[-1], "flag", "")), name, lines.get(f"$[{i}]", 1)))
                except msgspec.ValidationError as invalid:
                    errors.append(_located(str(invalid), name, lines, f"$[{i}]"))
        except RuleError as fault:
            errors.append(fault)
    errors += _duplicates(places)
    return entries


def load_folder(folder: Path, partial: RuleSet | None = None) -> RuleSet:
    """A rules folder, fully checked. With `partial`, references may point into that set. Raises RulesInvalid."""
    errors: list[RuleError] = []
    digest = hashlib.sha256()

    def read(pattern: str, kind: type[S], many: bool) -> list[tuple[S, str, dict[str, int], str]]:
        result: list[tuple[S, str, dict[str, int], str]] = []
        for path in sorted(folder.glob(pattern)):
            name = str(path.relative_to(folder.parent)) if path.is_relative_to(folder.parent) else path.name
            try:
                text = path.read_text(encoding="utf-8")
                digest.update(text.encode())
                errors.extend(_unfilled(text, name))
                from . import strict_yaml  # PyYAML is not needed where the compiled rules serve

                document, lines = strict_yaml.load(text, name)
                items = document if many else [document]
                if not isinstance(items, list):
                    raise RuleError(name, 1, "must be a list", "start each entry with `- `")
                for i, item in enumerate(items):
                    prefix = f"$[{i}]" if many else "$"
                    try:
                        result.append((msgspec.convert(item, kind), name, lines, prefix))
                    except msgspec.ValidationError as error:
                        errors.append(_located(str(error), name, lines, prefix))
            except RuleError as error:
                errors.append(error)
            except (OSError, UnicodeDecodeError) as error:
                errors.append(RuleError(name, 1, str(error), "the file must be readable UTF-8"))
        return result

    formats = read("formats/*.yaml", Format, True)
    causes = read("causes/*.yaml", Cause, False)
    remedies = read("remedies/*.yaml", Remedy, True)
    lists: dict[str, list[Any]] = {}
    for file, kind in _LISTS.items():
        entries = read(f"knowledge/{file}", kind, True)
        errors += _duplicates((_key(e), f, ls.get(p, 1)) for e, f, ls, p in entries)
        lists[file] = [e for e, *_ in entries]

    for group in (formats, causes, remedies):
        errors += _duplicates((item.id, file, lines.get(prefix, 1)) for item, file, lines, prefix in group)
    remedy_ids = {r.id for r, *_ in remedies} | {r.id for r in (partial.remedies if partial else ())}
    cause_ids = {c.id for c, *_ in causes} | {c.id for c in (partial.causes if partial else ())}
    flag_names = {f.name for f in lists["flags.yaml"]} | {f.name for f in (partial.flags if partial else ())}
    for item, file, lines, prefix in formats:
        errors += _check_format(item, file, lines, prefix)
    for cause, file, lines, _ in causes:
        errors += _check_cause(cause, file, lines, remedy_ids, cause_ids)
    for remedy, file, lines, prefix in remedies:
        errors += _check_remedy(remedy, file, lines, prefix, flag_names)
    if errors:
        raise RulesInvalid(errors)
    return RuleSet(
        version=digest.hexdigest()[:12],
        formats=[f for f, *_ in formats],
        causes=[c for c, *_ in causes],
        remedies=[r for r, *_ in remedies],
        flags=lists["flags.yaml"],
        metrics=lists["metrics.yaml"],
        inputs=lists["inputs.yaml"],
        accuracy=lists["accuracy.yaml"],
    )


def _overlaid(shipped: RuleSet, own: RuleSet) -> RuleSet:
    notes: list[str] = []

    def over(base: list[Any], extra: list[Any], key: str) -> list[Any]:
        fresh = {getattr(e, key): e for e in extra}
        notes.extend(k for k in (getattr(b, key) for b in base) if k in fresh)
        return [b for b in base if getattr(b, key) not in fresh] + extra

    return RuleSet(
        version=f"{shipped.version}+{own.version}",
        formats=over(shipped.formats, own.formats, "id"),
        causes=over(shipped.causes, own.causes, "id"),
        remedies=over(shipped.remedies, own.remedies, "id"),
        flags=over(shipped.flags, own.flags, "name"),
        metrics=over(shipped.metrics, own.metrics, "name"),
        inputs=over(shipped.inputs, own.inputs, "id"),
        accuracy=shipped.accuracy,
        extra=notes,
    )


def _located(message: str, file: str, lines: dict[str, int], prefix: str) -> RuleError:
    text, _, path = message.partition(" - at `")
    path = path.rstrip("`").replace("$", prefix, 1) if path else prefix
    while path and path not in lines:
        path = re.sub(r"(\.[^.\[]+|\[[^\]]*\])$", "", path) if re.search(r"(\.[^.\[]+|\[[^\]]*\])$", path) else ""
    return RuleError(file, lines.get(path, 1), text, "see `vllm-doctor rules schema`")


def _unfilled(text: str, file: str) -> list[RuleError]:
    open_ = [(n, found[1]) for n, row in enumerate(text.splitlines(), 1) if not row.lstrip().startswith("#") and (found := _UNFILLED.search(row))]
    return [RuleError(file, n, f"fill in {what}", "replace <FILL IN: ...> with your own text") for n, what in open_]


def _key(entry: msgspec.Struct) -> str:
    """What names an entry of a knowledge list."""
    return next(str(getattr(entry, k)) for k in ("name", "id", "status") if hasattr(entry, k))


def _duplicates(entries: Iterable[tuple[str, str, int]]) -> list[RuleError]:
    seen: dict[str, str] = {}
    errors = []
    for name, file, line in entries:
        if name in seen:
            errors.append(RuleError(file, line, f"{name!r} is also defined in {seen[name]}", "ids are unique"))
        seen[name] = f"{file}:{line}"
    return errors


def _check_format(item: Format, file: str, lines: dict[str, int], prefix: str) -> list[RuleError]:
    line = lines.get(prefix, 1)
    errors = []

    def fault(reason: str, help: str = "", path: str = "") -> None:
        errors.append(RuleError(file, lines.get(prefix + path, line), f"{item.id}: {reason}", help))

    literals = [item.literal] if isinstance(item.literal, str) else item.literal
    if not literals or any(len(text) < 4 for text in literals):
        fault("a literal needs at least 4 characters", "literals keep the scan fast", ".literal")
    if not item.samples:
        fault("has no samples", "a format without samples does not load: the samples are its tests")
    if (item.regex is None) == (item.parser is None):
        fault("needs a regex or a parser, not both")
    names = list(item.gives) if isinstance(item.gives, dict) else item.gives
    for name in names:
        if observation(name) is None and name != "engine" and not name.endswith(".*"):
            fault(f"gives {name!r}, which the catalogue does not declare", "see vllm_doctor/model/catalogue.py", ".gives")
    if item.regex is not None:
        if not isinstance(item.gives, dict):
            fault("with a regex, gives must be a mapping", path=".gives")
        else:
            groups = set(re.findall(r"\(\?P<(\w+)>", item.regex))
            for name, give in item.gives.items():
                if give.field is not None and give.field not in groups:
                    fault(f"{name} takes group {give.field!r}, which the regex does not have", path=".gives")
        if len(item.regex) > MAX_REGEX:
            fault(f"regex longer than {MAX_REGEX} characters", "use a parser", ".regex")
        if re.search(r"[+*]\)[+*{]", item.regex):
            fault("a repeat inside a repeat can take exponential time", "rewrite it", ".regex")
    return errors


def _check_cause(cause: Cause, file: str, lines: dict[str, int], remedies: set[str], causes: set[str]) -> list[RuleError]:
    errors = []

    def fault(reason: str, path: str, help: str = "") -> None:
        errors.append(RuleError(file, lines.get(path, 1), reason, help))

    used: set[str] = set()
    for direction, items in (("for", cause.for_), ("against", cause.against)):
        for i, item in enumerate(items):
            path = f"$.{direction}[{i}]"
            errors += _check_item(item, cause, file, lines, path)
            used |= set(re.findall(r"\$([a-z_]+)", str(item.when)))
    for name, threshold in cause.thresholds.items():
        if name not in used:
            fault(f"threshold {name!r} is not used", f"$.thresholds.{name}", "remove it")
        if threshold.basis != "heuristic" and not threshold.source:
            fault(f"threshold {name!r} is {threshold.basis} and names no source", f"$.thresholds.{name}", "name one, or call it heuristic")
    for name in cause.remedies:
        if name not in remedies:
            fault(f"no remedy is called {name!r}", "$.remedies")
    for name in cause.explains:
        if name not in causes and name not in CAUSE_IDS:
            fault(f"explains {name!r}, which is no cause id", "$.explains")
    if cause.id not in CAUSE_IDS:
        fault(
            f"{cause.id!r} is not a cause id of the product",
            "$.id",
            "add it to _CAUSE_IDS in model/catalogue.py first: ids are a contract",
        )
    if not cause.tests or not any(t.log or t.case for t in cause.tests):
        fault("has no tests", "$", "at least one from input text and one near miss")
    for text, path in ((cause.title, "$.title"), (cause.summary, "$.summary")):
        errors += _check_text(text, file, lines, path)
    for i, own in enumerate(cause.not_remedies):
        errors += _check_text(own.because, file, lines, f"$.not_remedies[{i}]")
        if own.when is not None:
            errors += _check_when(own.when, cause, file, lines, f"$.not_remedies[{i}].when")
    return errors


def _check_item(item: EvidenceRule, cause: Cause, file: str, lines: dict[str, int], path: str) -> list[RuleError]:
    errors = _check_when(item.when, cause, file, lines, f"{path}.when")
    errors += _check_text(item.why, file, lines, f"{path}.why")
    return errors


def _check_when(when: Any, cause: Cause, file: str, lines: dict[str, int], path: str) -> list[RuleError]:
    try:
        conditions.parse(when, cause.thresholds)
    except conditions.ConditionError as error:
        return [RuleError(file, lines.get(path, 1), str(error), "grammar: signal OP value unit")]
    return []


def _check_text(text: Text, file: str, lines: dict[str, int], path: str) -> list[RuleError]:
    errors = []
    en, zh = conditions.signals_in(text.en), conditions.signals_in(text.zh)
    for name in {*en, *zh} - set(SIGNALS):
        errors.append(RuleError(file, lines.get(path, 1), f"text inserts {name!r}, which is no signal", ""))
    if sorted(en) != sorted(zh):
        errors.append(RuleError(file, lines.get(path, 1), "the two languages insert different signals", "each text must state the same figures"))
    return errors


def _check_remedy(remedy: Remedy, file: str, lines: dict[str, int], prefix: str, flags: set[str]) -> list[RuleError]:
    errors = []

    def fault(reason: str, help: str = "") -> None:
        errors.append(RuleError(file, lines.get(prefix, 1), f"{remedy.id}: {reason}", help))

    change = remedy.change
    if change is not None:
        if (change.flag is None) == (change.env is None):
            fault("change needs either flag or env")
        name = change.flag or change.env
        if name not in flags:
            fault(f"{name!r} is not in knowledge/flags.yaml", "version bounds live there")
        if change.action == "remove" and (change.to is not None or remedy.solve):
            fault("a removal has no value")
    if remedy.when is not None:
        try:
            conditions.parse(remedy.when, {})
        except conditions.ConditionError as error:
            fault(str(error))
    for text in (remedy.title, remedy.risk, remedy.verify):
        errors += _check_text(text, file, lines, prefix)
    return errors
