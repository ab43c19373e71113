"""A large server log with the mix of the recorded ones, the same bytes every time.

Start-up and crash blocks are those of two fixtures (vLLM 0.32.0) with moving clocks and fresh pids; between them run lines of the
same release's shapes: 70 % access lines, 8 % request logging, 8 % traceback, 13 % other, 1 % statistics.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
STAMP = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
PID = re.compile(r"(?<=pid[=:])\d+")
SECONDS_PER_STATS_LINE = 10
LINES_PER_RUN = 40_000

PARAMS = (
    "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, temperature=0.7, top_p=0.95, top_k=0, min_p=0.0, "
    "seed=None, stop=[], stop_token_ids=[], bad_words=[], include_stop_str_in_output=False, ignore_eos=False, max_tokens=512, min_tokens=0, "
    "logprobs=None, prompt_logprobs=None, skip_special_tokens=True, spaces_between_special_tokens=True, structured_outputs=None, extra_args=None)"
)
TRACEBACK = (
    "Error in completion stream generator.",
    "Traceback (most recent call last):",
    '  File "/srv/vllm/lib/python3.11/site-packages/vllm/entrypoints/openai/completion/serving.py", line 402, in completion_stream_generator',
    "    async for prompt_idx, res in result_generator:",
    '  File "/srv/vllm/lib/python3.11/site-packages/vllm/utils/async_utils.py", line 275, in merge_async_iterators',
    "    async for item in iterator:  # type: ignore[union-attr]",
    '  File "/srv/vllm/lib/python3.11/site-packages/vllm/v1/engine/async_llm.py", line 688, in generate',
    "    out = q.get_nowait() or await q.get()",
    "ValueError: please provide at least one prompt",
)


def block(name: str, first: str, last: str) -> list[str]:
    """The lines of a fixture's log from the first that holds `first` to the first after it that holds `last`."""
    lines = (FIXTURES / name / "server.log").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    stop = next(i for i, line in enumerate(lines) if i >= start and last in line)
    return lines[start : stop + 1]


def moved(lines: list[str], pid: int, now: datetime) -> Iterator[str]:
    """The same lines from another process at another time."""
    return (PID.sub(str(pid), STAMP.sub(f"{now:%m-%d %H:%M:%S}", line)) for line in lines)


def lines_of_a_log(seed: int = 0) -> Iterator[str]:
    """Endless lines, without line ends."""
    dice = random.Random(seed)
    startup = block("healthy-0.32", "version 0.32.0", "Application startup complete")
    crash = block("engine-kill9-0.32", "MPClient: engine core exited", "Finished server process")
    now = datetime(2026, 3, 1)
    while True:
        pid = dice.randint(1000, 60000)
        yield from moved(startup, pid, now)
        now += timedelta(seconds=40)
        for _ in range(LINES_PER_RUN):
            tag, stamp = f"(APIServer pid={pid})", f"{now:%m-%d %H:%M:%S}"
            kind = dice.random()
            if kind < 0.7875:  # a traceback is nine lines: these shares of records give the shares of lines above
                status = dice.choices(("200 OK", "400 Bad Request", "500 Internal Server Error"), (97, 2.5, 0.5))[0]
                path = dice.choices(("POST /v1/chat/completions", "POST /v1/completions", "GET /metrics", "GET /health"), (60, 30, 6, 4))[0]
                yield f'INFO:     127.0.0.1:{dice.randint(32768, 60999)} - "{path} HTTP/1.1" {status}'
            elif kind < 0.8325:
                request = f"cmpl-{dice.getrandbits(64):016x}"
                yield f"{tag} INFO {stamp} [request_logger.py:65] Received request {request}-0: params: {PARAMS}, lora_request: None."
                yield f"{tag} INFO {stamp} [async_llm.py:578] Added request {request}-0-{dice.getrandbits(32):08x}."
            elif kind < 0.8425:
                yield from (f"{tag} ERROR {stamp} [serving.py:417] {line}" for line in TRACEBACK)
            elif kind < 0.98875:
                yield f"{tag} WARNING {stamp} [protocol.py:117] The following fields were present in the request but ignored: {{'user_tag'}}"
            else:
                now += timedelta(seconds=SECONDS_PER_STATS_LINE)
                usage, running = dice.uniform(20, 70), dice.randint(8, 48)
                yield (
                    f"{tag} INFO {now:%m-%d %H:%M:%S} [loggers.py:335] Engine 000: Avg prompt throughput: {dice.uniform(200, 4000):.1f} tokens/s, "
                    f"Avg generation throughput: {dice.uniform(300, 1200):.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
                    f"GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: {dice.uniform(10, 40):.1f}%"
                )
        yield from moved(crash, pid, now)
        now += timedelta(seconds=20)


def write_log(path: Path, size: int, seed: int = 0) -> None:
    """Writes at least `size` bytes of whole lines."""
    written = 0
    with path.open("wb") as out:
        for line in lines_of_a_log(seed):
            written += out.write(line.encode("utf-8") + b"\n")
            if written >= size:
                return
