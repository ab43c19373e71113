"""GPU tools' output -> `Gpu`s: nvidia-smi's table (drivers 418 to 610), its long form and its CSV, and the texts of its failures.

nvidia-smi's memory figures are MiB. Widths changed with the drivers, so rows are split on `|`, never by offset. A driver in
trouble prints `ERR!` or `N/A` in any cell: that is unknown, not 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import datetime, timezone

from msgspec import Struct, structs

from ..model.observations import Gpu, GpuProcess, Issue, Ref, Scalar
from . import gpu_csv
from .gpu_csv import MIB, MONTHS, READINGS_KEPT, mebibytes

__all__ = ["MIB", "is_vllm_process", "mebibytes", "parse"]

LINE_CHARACTERS = 2000
"""No GPU tool prints a longer line."""

_FAILURES = (
    ("couldn't communicate with the NVIDIA driver", "gpu.driver_unreachable", "nvidia-smi cannot reach the driver: its kernel module is not loaded"),
    ("Driver/library version mismatch", "gpu.driver_mismatch", "the NVIDIA libraries are newer than the loaded driver: reboot or reload the module"),
    ("Failed to initialize NVML: Unknown Error", "gpu.devices_lost", "the container has lost its GPU devices: create it anew"),
    ("Failed to initialize NVML: Insufficient Permissions", "gpu.no_permission", "no permission to use the GPU"),
    ("GPU access blocked by the operating system", "gpu.no_permission", "the operating system blocks access to the GPU"),
    ("GPU is lost", "gpu.lost", "a GPU has fallen off the bus: look for Xid 79 in the kernel log"),
    ("GPU requires reset", "gpu.lost", "a GPU needs a reset: look for Xid messages in the kernel log"),
    (
        "Unable to determine the device handle",
        "gpu.lost",
        "a GPU does not answer, and may hide the healthy ones: look for Xid 79 or 119 in the kernel log",
    ),
    ("No devices were found", "gpu.none", "the driver runs but shows no GPU: lost, or none passed in"),
    ("No devices found", "gpu.none", "the driver runs but shows no GPU: lost, or none passed in"),
    ("is not a valid field to query", "gpu.bad_query", "nvidia-smi refused the query: this driver does not know the field"),
)
_OTHER_TOOLS = (
    (re.compile(r"ROCm System Management Interface|End of ROCm SMI Log|Concise Info"), "rocm-smi"),
    (re.compile(r"\bAMD-SMI\b|GPU-Name \| Mem-Uti"), "amd-smi"),
    (re.compile(r"\bnpu-smi\b|Hugepages-Usage"), "npu-smi"),
    (re.compile(r"HL-SMI Version"), "hl-smi"),
    (re.compile(r"GPU Memory Used \(MiB\)"), "xpu-smi"),
    (re.compile(r"\bNVITOP\b"), "nvitop"),
    (re.compile(r"<!DOCTYPE nvidia_smi_log"), "nvidia-smi -q -x"),
    (re.compile(r"^# gpu +(?:pwr|pid|sm)\b"), "nvidia-smi dmon or pmon"),
    (re.compile(r"^\[\d+\] .+\| *\d+.C, +"), "gpustat"),
    (re.compile(r"\bGR3D_FREQ\b"), "tegrastats"),
)

_DEVICE = re.compile(r"\s*(\d{1,6})\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM|Enabled|Disabled|ERR!)\s*$")
_BUS = re.compile(r"\s*(?:[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|N/A|ERR!)\s")
_MEMORY = re.compile(r"(\d{1,12})\s*MiB\s*/\s*(\d{1,12})\s*MiB")
_PERCENT = re.compile(r"\s*(\d{1,4})\s*%")
_PROCESS = re.compile(r"\s*(\d{1,6})\s+(?:(N/A|\d+)\s+(N/A|\d+)\s+)?(\d{1,12}|N/A|-)\s+(C\+G|M\+C|C|G)\s(.*?)\s+(\d+\s*MiB|N/A)\s*$")
_MIG = re.compile(r"\s*(\d{1,6})\s+(\d+|N/A)\s+(\d+|N/A)\s+(\d+)\s*$")
_DATE = re.compile(r"\s*(?:\w{3} )?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\b")


class _Line(Struct, frozen=True):
    number: int
    text: str


def parse(text: str, source: str, first_line: int) -> tuple[tuple[Gpu, ...], list[Issue]]:
    """The devices of one or several dumps in order, and what was wrong with them. Never raises.

    `time` is the dump's own date, read as if it were UTC. A device index of -1 stands for processes whose device is not stated.
    Of many readings of one device the first and last are kept.
    """
    lines = [_Line(first_line + i, line.rstrip("\r")[:LINE_CHARACTERS]) for i, line in enumerate(text.split("\n"))]
    issues = _failures(lines, source)
    gpus: list[Gpu] = []
    for dump in _dumps(lines):
        found, trouble = _table(dump, source)
        gpus += found
        issues += trouble
    numbered = [(line.number, line.text) for line in lines]
    if not gpus:
        gpus = list(gpu_csv.long_form(numbered, source))
    rows, trouble = gpu_csv.parse(numbered, source, gpus)
    issues += trouble
    kept = _bounded(rows)
    if len(kept) < len(rows):
        values: dict[str, Scalar] = {"count": len(rows), "kept": READINGS_KEPT}
        issues.append(Issue("gpu.many_readings", "{count} GPU readings; the first and last {kept} of each device are used", values, kept[0].ref))
    if not kept and not issues:
        issues += _unread(lines, source)
    return tuple(kept), issues


def is_vllm_process(name: str, pid: int | None, log_pids: Collection[int] = (), identified: bool = False) -> bool | None:
    """Whether a GPU process is this vLLM's. None: cannot tell.

    `log_pids` are the process ids in the server log; they decide only where both live in one PID namespace, so an id that is
    missing there proves nothing. `identified` says that another listed process is known to be vLLM's, by title or id: vLLM names
    all of its processes alike, so a bare `python` beside them is another program's.
    """
    if name.startswith("VLLM::") or (pid is not None and pid in log_pids):
        return True
    program = re.split(r"[/\\]", name.strip())[-1]
    if program == "vllm":
        return True
    if not program or program in ("N/A", "-") or name.strip().startswith("["):
        return None
    if re.match(r"(python[\d.]*(\.exe)?|pt_main_thread)$", program):
        return False if identified else None
    if program.startswith("ray::"):
        return None  # one Ray cluster serves vLLM and other jobs under the same titles
    return False


# --- the table -------------------------------------------------------------------------------------------------------------------


def _dumps(lines: list[_Line]) -> Iterator[list[_Line]]:
    """Each print of the table, from its banner (or the date above it) on."""
    starts = []
    for i, line in enumerate(lines):
        if "NVIDIA-SMI " in line.text and "|" in line.text:
            dated = next((j for j in range(i - 1, max(-1, i - 4), -1) if _DATE.match(lines[j].text)), i)
            starts.append(dated)
    if not starts or any("|" in line.text for line in lines[: starts[0]]):
        starts.insert(0, 0)
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start:end]


def _table(lines: list[_Line], source: str) -> tuple[list[Gpu], list[Issue]]:
    gpus: dict[int, Gpu] = {}
    order: list[int] = []
    issues: list[Issue] = []
    processes: list[tuple[int, GpuProcess]] = []
    instances: dict[int, dict[str, tuple[int, int]]] = {}
    mig_ref: Ref | None = None
    box = "devices"
    listed = False
    time: float | None = None
    device: tuple[int, str | None, _Line] | None = None
    for line in lines:
        text = line.text
        if time is None and (dated := _DATE.match(text)):
            time = _date(dated)
        if "|" not in text:
            continue
        inner = text[text.index("|") + 1 : text.rindex("|")]
        if not inner.strip(" =+-|") or text.lstrip().startswith(("+", "|=", "|-")):
            continue
        if inner.lstrip().startswith("Processes:"):
            box, listed = "processes", True
        elif inner.lstrip().startswith("MIG devices"):
            box = "mig"
        elif box == "processes":
            process = _process(inner, line, source)
            if process is not None:
                processes.append(process)
        elif box == "mig":
            cells = inner.split("|")
            if (row := _MIG.match(cells[0])) and len(cells) > 1 and (memory := _MEMORY.search(cells[1])):
                instances.setdefault(int(row[1]), {})[row[2]] = (int(memory[1]), int(memory[2]))
                mig_ref = mig_ref or _ref(source, line)
        else:
            cells = inner.split("|")
            if len(cells) < 3:
                continue
            if (row := _DEVICE.match(cells[0])) and _BUS.match(cells[1]):
                device = (int(row[1]), None if row[2] == "ERR!" else row[2], line)
            elif device is not None:
                index, name, head = device
                device = None
                memory, busy = _MEMORY.search(cells[1]), _PERCENT.match(cells[2])
                ref = Ref(source, line.number, text.strip(), (head.text.strip(),))
                gpus[index] = Gpu(
                    index=index,
                    name=name,
                    ref=ref,
                    total_bytes=int(memory[2]) * MIB if memory else None,
                    used_bytes=int(memory[1]) * MIB if memory else None,
                    utilization=int(busy[1]) / 100 if busy else None,
                    time=time,
                )
                order.append(index)
                if cells[0].count("ERR!") > 2 or "ERR!" in cells[2]:  # in the power cell alone it is a passing fault
                    message = "GPU {index} answers ERR!: lost or wedged, look for Xid messages in the kernel log"
                    issues.append(Issue("gpu.error_cells", message, {"index": index}, ref))
    if mig_ref is not None:
        message = "MIG instances are in use: vLLM's memory is its instance's, not the card's"
        issues.append(Issue("gpu.mig", message, {}, mig_ref))
    result = []
    for index in dict.fromkeys(order):
        gpu = gpus[index]
        if index in instances:
            only = next(iter(instances[index].values())) if len(instances[index]) == 1 else None
            used, total = (only[0] * MIB, only[1] * MIB) if only else (None, None)
            gpu = structs.replace(gpu, used_bytes=used, total_bytes=total)
        result.append(structs.replace(gpu, processes=tuple(p for i, p in processes if i == index), processes_listed=listed))
    return result, issues


def _process(inner: str, line: _Line, source: str) -> tuple[int, GpuProcess] | None:
    row = _PROCESS.match(inner)
    if not row:
        return None
    used = mebibytes(row[7])
    return int(row[1]), GpuProcess(int(row[4]) if row[4].isdigit() else None, row[6].strip(), used, _ref(source, line))


def _date(found: re.Match[str]) -> float | None:
    if found[1] not in MONTHS:
        return None
    try:
        day, hour, minute, second, year = (int(found[i]) for i in (2, 3, 4, 5, 6))
        return datetime(year, MONTHS.index(found[1]) + 1, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


# --- what is not a table ---------------------------------------------------------------------------------------------------------


def _failures(lines: list[_Line], source: str) -> list[Issue]:
    found: dict[str, Issue] = {}
    for line in lines:
        for literal, code, message in _FAILURES:
            if literal in line.text:
                found.setdefault(code, Issue(code, message, {}, _ref(source, line)))
                break
    return list(found.values())


def _unread(lines: list[_Line], source: str) -> list[Issue]:
    for line in lines:
        for pattern, tool in _OTHER_TOOLS:
            if pattern.search(line.text):
                return [Issue("gpu.tool_unread", "this GPU tool's output is not read yet: {tool}", {"tool": tool}, _ref(source, line))]
    first = next((line for line in lines if line.text.strip()), None)
    return [Issue("gpu.unreadable", "no GPU is described here", {}, _ref(source, first))] if first else []


def _bounded(gpus: list[Gpu]) -> list[Gpu]:
    seen: dict[int, int] = {}
    total = {index: sum(g.index == index for g in gpus) for index in {g.index for g in gpus}} if len(gpus) > 2 * READINGS_KEPT else {}
    kept = []
    for gpu in gpus:
        position = seen[gpu.index] = seen.get(gpu.index, 0) + 1
        if not total or position <= READINGS_KEPT or position > total[gpu.index] - READINGS_KEPT:
            kept.append(gpu)
    return kept


def _ref(source: str, line: _Line) -> Ref:
    return Ref(source, line.number, line.text.strip()[:400])
