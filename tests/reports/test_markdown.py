"""The report as Markdown: golden files, and that no text from an input becomes markup."""

from __future__ import annotations

import re
import unicodedata

import pytest

from tests.reports import hostile, samples
from tests.reports.test_text import SAMPLES, same_as_golden
from vllm_doctor.model.report import Report
from vllm_doctor.reports.markdown import block, code, prose, render


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_issue_reads_as_recorded(name: str, language: str) -> None:
    same_as_golden(f"report-{name}.{language}.md", render(SAMPLES[name](language)))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_chat_message_reads_as_recorded(language: str) -> None:
    same_as_golden(f"report-kv-exhaustion.quiet.{language}.md", render(samples.kv_exhaustion(language), detail=-1))


def test_a_hostile_issue_reads_as_recorded() -> None:
    same_as_golden("report-hostile.en.md", render(samples.hostile()))


def test_a_chat_message_has_no_html_and_fits_a_screen() -> None:
    text = render(samples.kv_exhaustion(), detail=-1)
    assert ("<" in text, len(text.splitlines()) < 20) == (False, True)


@pytest.mark.parametrize("detail", [-1, 0, 1])
@pytest.mark.parametrize("report", [samples.hostile(), *(hostile.poisoned(p, times=True) for p in hostile.PAYLOADS[25:28])], ids=range(4))
def test_no_output_holds_characters_that_steer(report: Report, detail: int) -> None:
    text = render(report, detail=detail)
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} == {"\n"}


def outside_code(markdown: str) -> str:
    """What a renderer would read as markup: no fenced blocks, no code spans, no escaped characters."""
    rows: list[str] = []
    fence = ""
    for row in markdown.splitlines():
        opened = re.match(r"\s*(`{3,})(\w*)$", row)
        if fence:
            if opened and not opened[2] and len(opened[1]) >= len(fence):
                fence = ""
            continue
        if opened:
            fence = opened[1]
            continue
        row = re.sub(r"(?<![\\`])(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", row)
        rows.append(re.sub(r"\\[!-/:-@\[-`{-~]", "", row))
    assert not fence
    return "\n".join(rows)


@pytest.mark.parametrize("detail", [-1, 0, 1])
@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=range(len(hostile.PAYLOADS)))
def test_hostile_text_is_text(payload: str, detail: int) -> None:
    bare = outside_code(render(hostile.poisoned(payload, times=True), detail=detail))
    own = re.sub(r"</?(?:details|summary)>", "", bare)
    assert re.findall(r"[<>\[\]|~$`]", own) == []
    assert re.findall(r"@\w|#\d|\bGH-\d|https?:|javascript:|www\.", own) == []
    assert bare.count("<details>") == bare.count("</details>")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain words, max_num_seqs and --flag (x): 97 %", "plain words, max_num_seqs and --flag (x): 97 %"),
        ("# no heading", "\\# no heading"),
        ("- no item", "\\- no item"),
        ("---", "\\---"),
        ("1. no list", "1\\. no list"),
        ("13:48 is a time", "13:48 is a time"),
        ("*a* _b_ ~c~ <d> [e](f) | `g", "\\*a\\* \\_b\\_ \\~c\\~ \\<d\\> \\[e\\](f) \\| \\`g"),
        ("ask @user or @org/team, see #12 and a/b#3", "ask `@user` or `@org/team`, see `#12` and `a/b#3`"),
        ("see https://example.org/a_b. :smile:", "see `https://example.org/a_b.` `:smile:`"),
        ("__init__ and _x_ and a_b_c", "\\_\\_init\\_\\_ and \\_x\\_ and a_b_c"),
        ("run `ss -tn` there", "run `ss -tn` there"),
        ("缓存 `a` 已满", "缓存 `a` 已满"),
        ("a\nb", "a b"),
    ],
)
def test_prose_shows_what_was_written(text: str, escaped: str) -> None:
    assert prose(text) == escaped


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("", ""), ("a``b`c", "```a``b`c```")])
def test_code_keeps_its_backticks(text: str, span: str) -> None:
    assert code(text) == span


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert block(["a ```` b", "```"]) == ["`````", "a ```` b", "```", "`````"]
