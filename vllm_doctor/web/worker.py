"""A worker process: takes bodies apart, analyses and renders. It holds nothing back and cannot write a file."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import IO

from ..language import filled, translator
from ..model.observations import Issue
from .messages import Answer, Done, Failed, Job, Progress, decode_job, frame, read_frame

PROGRESS_SECONDS = 0.2


def main(memory: int) -> None:
    """Answers jobs from stdin until it closes. `memory` is the most address space in bytes."""
    confine(memory)
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a stray print must not break the frames
    warm()
    while (data := read_frame(stdin)) is not None:
        say(stdout, answer(decode_job(data), stdout))


def confine(memory: int) -> None:
    """No files, no core dumps, bounded memory, and a lower priority than the server that must stay responsive."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with suppress(AttributeError, OSError):
        os.nice(5)


def warm() -> None:
    """Loads what the first job would load."""
    import vllm_doctor

    vllm_doctor.analyze("INFO 01-01 00:00:00 [core.py:1] warm\n")


def say(stream: IO[bytes], message: Answer) -> None:
    stream.write(frame(message))
    stream.flush()


def answer(job: Job, stream: IO[bytes]) -> Done | Failed:
    """The answer to one job. Whatever its body does becomes a Failed that says nothing of the body."""
    try:
        return _analysed(job, stream)
    except MemoryError:
        return Failed("too-large")
    except Exception as error:
        frames = []
        at = error.__traceback__
        while at is not None:
            frames.append(f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}")
            at = at.tb_next
        print(f"vllm-doctor worker: {type(error).__name__} at {' '.join(frames[-3:])}", file=sys.stderr, flush=True)  # never its text
        return Failed("internal")


def _analysed(job: Job, stream: IO[bytes]) -> Done | Failed:
    from ..pipeline import analyze
    from ..redact import clean
    from ..reports import RENDERERS, Style
    from ..sources import given
    from .forms import Unreadable, inputs

    try:
        named = inputs(job.content_type, job.body)
    except Unreadable:
        return Failed("bad-form")
    job.body = b""
    issues: list[Issue] = []
    received = time.time()
    sources = [s for name, content in named for s in given(name, content, issues, received)]
    if not sources:
        return Failed("nothing-readable" if issues else "nothing-sent", tuple(clean(text) for text in told(issues, job.language))[:20])
    last = 0.0

    def progress(name: str, done: int, total: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last > PROGRESS_SECONDS:
            last = now
            say(stream, Progress(clean(name), done, total))

    report = analyze(sources, extra_issues=issues, language=job.language, progress=progress)
    return Done({name: RENDERERS[name](report, Style(detail=1 if name == "markdown" else 0)) for name in job.outputs})


def told(issues: list[Issue], language: str) -> list[str]:
    """What could not be read and why, one sentence each."""
    _ = translator(language)
    lines = []
    for issue in issues:
        text = filled(issue.message, issue.values, language)
        lines.append(_("{label}: {text}").format(label=issue.ref.source if issue.ref else "", text=text))
    return lines


if __name__ == "__main__":
    main(int(sys.argv[1]))
