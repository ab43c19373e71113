"""vllm-doctor: says why a vLLM server crashed, stalls, queues or is slow, from its logs and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeAlias

    from .model.report import Report
    from .sources import Source

    Input: TypeAlias = "str | os.PathLike[str] | bytes | tuple[str, str | bytes] | Source"

__all__ = ["__version__", "analyze"]
__version__ = "0.1.0"


def analyze(
    *inputs: Input,
    language: str = "en",
    rules_dir: str | None = None,
    since: str | None = None,
    until: str | None = None,
    redact: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """The report on everything that is handed over, in any mixture. A notebook shows it as a page; `report.findings[0]` is the answer.

    Each input is one of
    - a path: a file, a folder, an archive (`"server.log"`, `Path("logs/")`), or an `http(s)://host/metrics` URL, the only thing that
      opens a connection;
    - the content itself: a `str` with at least one line end, or `bytes` (a log, a scrape, a whole archive);
    - a name and its content: `("server.log", text)`;
    - a `vllm_doctor.sources.Source`.

    Content has no age of its own: where its stamps have no year it is taken to be recent, and the report says so (`year-assumed`).

    `language` is "en" or "zh". `since` and `until` are times as on the command line: ISO, "MM-DD HH:MM[:SS]", "HH:MM[:SS]", "-10m".
    `rules_dir` adds rules of your own. `redact=False` keeps keys, prompts, names and hosts, which the report then states. `progress` gets
    (name of the source, bytes read, bytes in all).

    Input that is missing, broken or empty never raises: it is an entry of `report.issues`. Raises ValueError for a time or a language that
    is none, TypeError for an input of another type, and `vllm_doctor.ruleset.errors.RulesInvalid` for rules with faults.

    >>> report = analyze("server.log", ("metrics.txt", scrape))  # doctest: +SKIP
    >>> report.verdict, report.findings[0].id  # doctest: +SKIP
    ('problem', 'kv-cache-exhaustion')
    """
    import time
    from os import PathLike, fspath

    from .language import LANGUAGES
    from .model.observations import Issue
    from .model.timebound import parse
    from .pipeline import analyze as run
    from .sources import Source, given, read

    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    sources: list[Source] = []
    issues: list[Issue] = []
    received = time.time()
    for number, item in enumerate(inputs, 1):
        if isinstance(item, Source):
            sources.append(item)
            continue
        if isinstance(item, str | PathLike) and "\n" not in (path := fspath(item)):
            found, trouble = read([path], progress=progress)
            sources += found
            issues += trouble
            continue
        name, content = item if isinstance(item, tuple) else (f"input-{number}", item)
        if isinstance(content, str):
            content = content.encode("utf-8", "replace")
        if not isinstance(content, bytes):
            raise TypeError(f"input {number} is neither a path, text, bytes, (name, content) nor a Source: {type(item).__name__}")
        sources += given(name, content, issues, received)
    bounds = [None if time is None else parse(time) for time in (since, until)]
    return run(
        sources, extra_issues=issues, language=language, rules_dir=rules_dir, since=bounds[0], until=bounds[1], redact=redact, progress=progress
    )
