"""Each cause has its page in both languages, and the pages say what the rules say."""

from __future__ import annotations

import importlib.util

import pytest

from tests.judging import ROOT
from vllm_doctor.ruleset.load import load_folder

SPEC = importlib.util.spec_from_file_location("cause_pages", ROOT / "tools" / "cause_pages.py")
assert SPEC is not None
assert SPEC.loader is not None
cause_pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(cause_pages)

RULES = load_folder(ROOT / "rules")
FOLDER = ROOT / "docs" / "causes"


def test_there_is_a_page_for_each_cause_and_none_besides() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(cause_pages.pages(RULES))


@pytest.mark.parametrize("name", cause_pages.pages(RULES))
def test_a_page_is_current(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == cause_pages.pages(RULES)[name], "run `make docs`"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("cause", RULES.causes, ids=lambda c: c.id)
def test_a_page_states_every_piece_of_evidence_threshold_and_remedy(cause: object, language: str) -> None:
    text = cause_pages.page(cause, RULES, language)
    wanted = [cause_pages.sentence(item.why, language) for item in (*cause.for_, *cause.against)]  # type: ignore[attr-defined]
    wanted += [f"`{name}` | {t.value}" for name, t in cause.thresholds.items()]  # type: ignore[attr-defined]
    wanted += [cause_pages.sentence(r.title, language) for r in RULES.remedies if r.id in cause.remedies]  # type: ignore[attr-defined]
    assert [w for w in wanted if w not in text] == []
