"""Texts of failed memory allocations: PyTorch's caching allocator in all its generations, drivers, libraries, the host.

Sizes in these texts are 1024-based with two decimals; results are bytes.
"""

from __future__ import annotations

import re

from ..model.observations import Scalar
from .lazy import lazy

_SIZE = r"([\d.]+) ?(bytes|KiB|MiB|GiB|TiB)"
_FACTOR = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_TRIED = lazy(rf"(CUDA|HIP|XPU|MPS|NPU) out of memory\.(?: Tried to allocate {_SIZE})?")
_G1 = lazy(
    rf"\(GPU (\d+); {_SIZE} total capac\w+; {_SIZE} already allocated; {_SIZE} free; (?:{_SIZE} allowed; )?{_SIZE} reserved in total by PyTorch\)"
)
_CAPACITY = lazy(rf"GPU (\d+) has a total capac\w+ of {_SIZE} of which {_SIZE} is free")
_PROCESS = lazy(rf"Process \d+ has {_SIZE} memory in use")
_THIS = lazy(rf"this process has {_SIZE} memory in use")
_ALLOCATED = lazy(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_POOLS = lazy(rf"with {_SIZE} allocated in private pools")
_RESERVED = lazy(rf"{_SIZE} is reserved by PyTorch but unallocated")
ROUNDING = 0.02
"""GiB by which a sum of printed sizes may be off: each is rounded to two decimals."""

_DRIVER = (
    (re.compile(r"HIP error: out of memory|hipErrorOutOfMemory"), "HIP"),
    (
        re.compile(
            r"CUDA (?:driver )?error: out of memory|CUDA Error: out of memory at|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
            r"|Cuda failure (?:2 )?'out of memory'|Failed to CUDA calloc \d+ bytes",
            re.IGNORECASE,
        ),
        "CUDA",
    ),
)
_CPU = lazy(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes|not enough memory: you tried to allocate (\d+) bytes")
_ERRNO = lazy(r"\[Errno 12\] Cannot allocate memory|cudaHostAlloc")


def _bytes(number: str, unit: str) -> int:
    try:
        return round(float(number) * _FACTOR[unit])
    except (ValueError, OverflowError):
        return 0


def allocator(text: str) -> dict[str, Scalar] | None:
    """What PyTorch's allocator says when it gives up, keyed by catalogue name; None if the text is something else."""
    tried = _TRIED.search(text)
    if tried is None:
        return None
    values: dict[str, Scalar] = {"oom.source": "allocator", "oom.device": tried[1]}
    if tried[2]:
        values["oom.requested"] = _bytes(tried[2], tried[3])
    old = _G1.search(text)
    if old is not None:
        gpu, sizes = old[1], old.groups()[1:]
        total, allocated, free, _, reserved = (_bytes(sizes[i], sizes[i + 1]) if sizes[i] else 0 for i in range(0, 10, 2))
        values |= {"oom.gpu": int(gpu[:6]), "oom.total": total, "oom.free": free, "oom.allocated": allocated}
        values["oom.reserved_unallocated"] = max(reserved - allocated, 0)
        return values
    capacity = _CAPACITY.search(text)
    if capacity is not None:
        values |= {"oom.gpu": int(capacity[1][:6]), "oom.total": _bytes(capacity[2], capacity[3]), "oom.free": _bytes(capacity[4], capacity[5])}
    for name, pattern in (
        ("oom.this_process", _THIS),
        ("oom.allocated", _ALLOCATED),
        ("oom.private_pools", _POOLS),
        ("oom.reserved_unallocated", _RESERVED),
    ):
        found = pattern.search(text)
        if found is not None:
            values[name] = _bytes(found[1], found[2])
    others = _others([_bytes(m[1], m[2]) for m in _PROCESS.finditer(text)], values)
    if others is not None:
        values["oom.other_processes"] = others
    return values


def _others(named: list[int], values: dict[str, Scalar]) -> int | None:
    """Memory of the named processes that are not this one.

    PyTorch compares process ids to tell its own; in a container the driver's ids are the host's, so its own process may be named
    like a stranger. Where the message has the sentence on this process, the named ones are others. Else a named process with
    less memory than PyTorch alone holds here cannot be this one.
    """
    if not named:
        return None
    if "oom.this_process" in values:
        return sum(named)
    if "oom.allocated" not in values or "oom.reserved_unallocated" not in values:
        return None
    held = int(values["oom.allocated"]) + int(values["oom.reserved_unallocated"]) - round(ROUNDING * 2**30)
    possible = [size for size in named if size >= held]
    if not possible:
        return sum(named)
    return sum(named) - possible[0] if len(possible) == 1 and len(named) > 1 else None


def other(text: str) -> dict[str, Scalar] | None:
    """Failed allocations outside PyTorch's allocator, which carry no sizes, and those of host memory."""
    for pattern, device in _DRIVER:
        if pattern.search(text):
            return {"oom.source": "driver", "oom.device": device}
    cpu = _CPU.search(text)
    if cpu is not None:
        return {"oom.source": "host", "oom.device": "CPU", "oom.requested": _bytes(cpu[1] or cpu[2], "bytes")}
    return {"oom.source": "host", "oom.device": "CPU"} if _ERRNO.search(text) else None
