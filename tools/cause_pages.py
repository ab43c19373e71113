#!/usr/bin/env python3
"""Writes docs/causes/<id>.en.md and .zh.md, and the index, from the rules. `make docs` runs it; a test keeps the pages current.

tools/cause_pages.py [--into docs/causes]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from vllm_doctor.ruleset.conditions import signals_in  # noqa: E402  the checkout's own package, installed or not
from vllm_doctor.ruleset.load import load_folder  # noqa: E402
from vllm_doctor.ruleset.schema import Applies, Cause, EvidenceRule, Remedy, RuleSet, Text  # noqa: E402

WORDS = {
    "en": {
        "generated": "Generated from {file} by `make docs`; edit that file instead.",
        "facts": "| id | severity | maturity | applies to |",
        "every version": "every version",
        "for": "What shows it",
        "against": "What speaks against it",
        "thresholds": "Thresholds",
        "threshold row": "| name | value | basis | reason | source |",
        "remedies": "What to do",
        "not": "What does not help",
        "explains": "It explains",
        "false": "False alarms it is tested against",
        "sources": "Sources",
        "risk": "Risk",
        "verify": "Verify",
        "remove": "remove",
        "computed": "value computed from the case",
        "index": "Causes",
        "decisive": "decisive",
        "strong": "strong",
        "moderate": "moderate",
        "weak": "weak",
        "colon": ": ",
    },
    "zh": {
        "generated": "由 `make docs` 根据 {file} 生成，请改那个文件。",
        "facts": "| id | 严重度 | 成熟度 | 适用范围 |",
        "every version": "所有版本",
        "for": "支持的证据",
        "against": "反面的证据",
        "thresholds": "阈值",
        "threshold row": "| 名称 | 取值 | 依据 | 理由 | 来源 |",
        "remedies": "怎么办",
        "not": "哪些做法没有用",
        "explains": "它能解释",
        "false": "已防范的误报",
        "sources": "来源",
        "risk": "风险",
        "verify": "验证",
        "remove": "去掉",
        "computed": "取值按具体情况计算",
        "index": "原因一览",
        "decisive": "决定性",
        "strong": "强",
        "moderate": "中等",
        "weak": "弱",
        "colon": "：",
    },
}


def sentence(text: Text, language: str) -> str:
    """A rule's text, with the names of figures in place of the figures."""
    words = text.in_language(language)
    for name in signals_in(words):
        words = words.replace("{" + name + "}", f"‹{name}›")
    return words


def condition(when: Any) -> str:
    if isinstance(when, dict):
        return " or ".join(condition(w) for w in when["any"])
    return " and ".join(condition(w) for w in when) if isinstance(when, list) else f"`{when}`"


def scope(applies: Applies | None, words: dict[str, str]) -> str:
    parts = [p for p in ((applies.version, applies.engine_generation) if applies else ()) if p]
    return ", ".join(f"`{p}`" for p in parts) or words["every version"]


def evidence(items: list[EvidenceRule], language: str) -> list[str]:
    lines = []
    for item in items:
        notes = [WORDS[language][item.weight], *([f"`{item.variant}`"] if item.variant else [])]
        if item.applies:
            notes.append(scope(item.applies, WORDS[language]))
        lines += [f"- {sentence(item.why, language)} ({', '.join(notes)})  ", f"  {condition(item.when)}"]
    return lines


def remedy(item: Remedy, language: str) -> list[str]:
    words = WORDS[language]
    lines = [f"1. **{sentence(item.title, language)}**"]
    change = item.change
    if change:
        name = change.flag or change.env
        what = f"{words['remove']} `{name}`" if change.action == "remove" else f"`{name}`" if change.to is None else f"`{name} {change.to}`"
        lines[0] += f" — {what}" + (f" ({words['computed']})" if item.solve else "")
    for label, text in (("risk", item.risk), ("verify", item.verify)):
        lines.append(f"   - {words[label]}{words['colon']}{sentence(text, language)}")
    return lines


def page(cause: Cause, rules: RuleSet, language: str) -> str:
    """One cause in one language, as Markdown."""
    words = WORDS[language]
    lines = [
        f"<!-- {words['generated'].format(file=f'rules/causes/{cause.id}.yaml')} -->",
        "",
        f"# {sentence(cause.title, language)}",
        "",
        words["facts"],
        "|---|---|---|---|",
        f"| `{cause.id}` | {cause.severity} | {cause.maturity} | {scope(cause.applies, words)} |",
        "",
        sentence(cause.summary, language),
    ]

    def section(title: str, body: list[str]) -> None:
        if body:
            lines.extend(["", f"## {words[title]}", "", *body])

    section("for", evidence(cause.for_, language))
    section("against", evidence(cause.against, language))
    rows = [f"| `{n}` | {t.value} | {t.basis} | {t.reason} | {t.source or ''} |" for n, t in cause.thresholds.items()]
    section("thresholds", [words["threshold row"], "|---|---|---|---|---|", *rows] if rows else [])
    known = {r.id: r for r in rules.remedies}
    section("remedies", [line for name in cause.remedies for line in remedy(known[name], language)])
    section("not", [f"- `{n.flag}`{words['colon']}{sentence(n.because, language)}" for n in cause.not_remedies])
    section("explains", [f"- [{name}]({name}.{language}.md)" for name in cause.explains if name in {c.id for c in rules.causes}])
    section("false", [f"- {text}" for text in cause.false_positives])
    section("sources", [f"- {text}" for text in cause.sources])
    return "\n".join(lines) + "\n"


def index(rules: RuleSet) -> str:
    rows = [f"| [{c.id}]({c.id}.en.md) | {c.title.en} | [{c.title.zh}]({c.id}.zh.md) |" for c in rules.causes]
    head = [f"<!-- {WORDS['en']['generated'].format(file='rules/causes/')} -->", "", f"# {WORDS['en']['index']} · {WORDS['zh']['index']}", ""]
    return "\n".join([*head, "| id | | |", "|---|---|---|", *rows]) + "\n"


def pages(rules: RuleSet) -> dict[str, str]:
    """File name -> content, of all pages."""
    written = {f"{cause.id}.{language}.md": page(cause, rules, language) for cause in rules.causes for language in WORDS}
    return {"README.md": index(rules), **written}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "causes")
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    current = pages(load_folder(ROOT / "rules"))
    for old in into.glob("*.md"):
        if old.name not in current:
            old.unlink()
    for name, text in current.items():
        (into / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
