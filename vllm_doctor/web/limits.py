"""What one instance takes, in one place."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20


class Limits(NamedTuple):
    """Sizes in bytes, times in seconds."""

    body: int = 64 * MIB
    """Largest request. A day of an unwrapped server log is about 20 MiB."""
    buffered: int = 256 * MIB
    """Most bytes of all requests together that wait in memory."""
    header_seconds: float = 10.0
    """A request's head must be complete by then."""
    idle_seconds: float = 10.0
    """Longest pause in a body."""
    body_seconds: float = 120.0
    """Longest time for a whole body."""
    analysis_seconds: float = 60.0
    """A worker that takes longer is killed."""
    workers: int = 2
    """Analyses at the same time, not counting one that is small."""
    small: int = MIB // 4
    """Bodies up to this size have a worker to themselves."""
    waiting: int = 100
    """Analyses that may wait for a worker; more are turned away."""
    worker_memory: int = 2048 * MIB
    """Address space of a worker. What unpacks to more fails there, not on the machine."""
    connections: int = 300
    jobs_per_worker: int = 50
    """A worker is replaced after so many analyses, so that no leak lasts."""
