"""Worker processes: started when needed, killed when late, replaced after a while."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress

from .limits import Limits
from .messages import HEAD, Done, Failed, Job, Progress, decode_answer, frame


class Busy(Exception):
    """As many analyses wait as may."""


class Late(Exception):
    """The analysis took too long; its worker is gone."""


Watch = Callable[[Progress], None]


class Pool:
    """Runs jobs, `limits.workers` at a time, and one small one besides: who pastes a few lines does not queue behind whole days of logs."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting = 0
        self.killed = 0
        self._turns = asyncio.Semaphore(limits.workers)
        self._quick = asyncio.Semaphore(1)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def run(self, job: Job, watch: Watch | None = None) -> Done | Failed:
        """The answer of a worker. Raises Busy and Late; a cancelled job ends its worker."""
        if self.waiting >= self.limits.waiting:
            raise Busy
        turns = self._quick if len(job.body) <= self.limits.small else self._turns
        self.waiting += 1
        try:
            await turns.acquire()
        finally:
            self.waiting -= 1
        worker: _Worker | None = None
        try:
            worker = self._idle.pop() if self._idle else await self._start()
            answer = await asyncio.wait_for(worker.ask(job, watch), self.limits.analysis_seconds)
        except asyncio.TimeoutError:
            raise Late from None
        except (EOFError, OSError):  # it died: out of memory, or a crash of a library
            return Failed("worker-died")
        else:
            if worker.jobs < self.limits.jobs_per_worker:
                self._idle.append(worker)
                worker = None
            return answer
        finally:
            try:
                if worker is not None:
                    await asyncio.shield(self._end(worker))
            finally:
                turns.release()

    async def close(self) -> None:
        """Ends all workers, at work or not."""
        self._idle.clear()
        for worker in list(self._all):
            await self._end(worker)

    async def _start(self) -> _Worker:
        worker = _Worker(await start_worker(self.limits.worker_memory))
        self._all.add(worker)
        return worker

    async def _end(self, worker: _Worker) -> None:
        self.killed += 1
        self._all.discard(worker)
        with suppress(ProcessLookupError):
            worker.process.kill()
        if worker.process.stdin is not None:
            worker.process.stdin.close()
        await worker.process.wait()


class _Worker:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.jobs = 0

    async def ask(self, job: Job, watch: Watch | None) -> Done | Failed:
        """Sends a job and waits for its answer. Raises EOFError where the process ends instead."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        self.jobs += 1
        stdin.write(frame(job))
        await stdin.drain()
        while True:
            size = HEAD.unpack(await stdout.readexactly(HEAD.size))[0]  # IncompleteReadError is an EOFError
            answer = decode_answer(await stdout.readexactly(size))
            if not isinstance(answer, Progress):
                return answer
            if watch:
                watch(answer)


async def start_worker(memory: int) -> Process:
    """A Python of its own with the same code, and no more of the environment than it needs."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "SYSTEMROOT", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONDONTWRITEBYTECODE": "1"}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vllm_doctor.web.worker", str(memory)),
        stdin=PIPE,
        stdout=PIPE,
        cwd=os.path.abspath(os.sep),
        env=environment,
        limit=1 << 20,
    )
