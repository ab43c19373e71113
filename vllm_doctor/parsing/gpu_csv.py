"""nvidia-smi's CSV (`--query-gpu`, `--query-compute-apps`) and its long form (`-q`) -> `Gpu`s."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from msgspec import structs

from ..model.observations import Gpu, GpuProcess, Issue, Ref

MIB = 2**20
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
READINGS_KEPT = 8
"""First and last readings kept of one device: enough to show a state and its end."""
Numbered = Sequence[tuple[int, str]]

_KNOWN = {"index", "name", "gpu_name", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "timestamp", "memory.total", "memory.used", "memory.free",
          "utilization.gpu", "pid", "process_name", "used_gpu_memory", "used_memory", "driver_version", "power.draw", "temperature.gpu",
          "pstate", "count", "serial"}  # fmt: skip
_FIELD = re.compile(r"[a-z][a-z0-9_.]*(?: \[[^\]]*\])?")
_COMMAND = re.compile(r"--query-(gpu|compute-apps)=([\w.,]+)")
_DATA = re.compile(r", ?\d+(?:\.\d+)? (?:MiB|%|W)(?:,|$)")


class _Table(NamedTuple):
    columns: tuple[str, ...]
    apps: bool


def mebibytes(text: str) -> int | None:
    """`71022MiB` or `71022` -> bytes; None for N/A, errors and anything else."""
    found = re.fullmatch(r"\s*(\d{1,12})(?:\.\d+)?\s*(?:MiB)?\s*", text)
    return int(found[1]) * MIB if found else None


def parse(lines: Numbered, source: str, gpus: list[Gpu]) -> tuple[list[Gpu], list[Issue]]:
    """`gpus` with the rows of every CSV table in `lines` added: devices as they come, processes to their devices."""
    result = list(gpus)
    issues: list[Issue] = []
    identity: dict[str, int] = {}
    orphans: list[GpuProcess] = []
    table: _Table | None = None
    listed = False
    rows = 0
    for number, line in lines:
        text = line.strip()
        command = _COMMAND.search(text)
        if command:
            table = _Table(tuple(command[2].split(",")), command[1] == "compute-apps")
            rows = 0
            continue
        header = _header(text)
        if header is not None:
            table, rows = header, 0
            listed = listed or header.apps
            continue
        if table is None:
            if _DATA.search(text) and "|" not in text:
                message = "CSV without a header: which column is which? Add the header, or the command"
                issues.append(Issue("gpu.csv_noheader", message, {}, Ref(source, number, text[:400])))
                table = _Table((), False)
            continue
        if not table.columns or "," not in text:
            continue
        row = _row(table, text)
        if row is None:
            issues.append(Issue("gpu.csv_row", "this row does not fit its header", {}, Ref(source, number, text[:400])))
            continue
        ref = Ref(source, number, text[:400])
        if table.apps:
            listed = True
            process = _process(row, ref)
            key = row.get("gpu_uuid") or row.get("gpu_bus_id") or ""
            _attach(result, orphans, identity.get(key), process)
        else:
            gpu = _gpu(row, rows, ref)
            result.append(gpu)
            for name in ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"):
                if row.get(name):
                    identity[row[name]] = gpu.index
        rows += 1
    indices = {gpu.index for gpu in result}
    if orphans and len(indices) == 1:
        last = max(i for i, _ in enumerate(result))
        result[last] = structs.replace(result[last], processes=(*result[last].processes, *orphans))
    elif orphans:
        result.append(Gpu(-1, None, orphans[0].ref, processes=tuple(orphans)))
    if listed:
        result = [structs.replace(gpu, processes_listed=True) for gpu in result]
    return result, issues


def _header(text: str) -> _Table | None:
    cells = [cell.strip() for cell in text.split(",")]
    if not all(_FIELD.fullmatch(cell) for cell in cells):
        return None
    columns = tuple(cell.partition(" [")[0] for cell in cells)
    if columns[0] not in _KNOWN or (len(columns) == 1 and "." not in columns[0]):
        return None
    return _Table(columns, "pid" in columns)


def _row(table: _Table, text: str) -> dict[str, str] | None:
    """Cells by column. A process name may hold commas, so it takes what the columns on both sides of it leave."""
    cells = [cell.strip() for cell in text.split(",")]
    extra = len(cells) - len(table.columns)
    names = [i for i, column in enumerate(table.columns) if column in ("process_name", "name")]
    if extra > 0 and table.apps and names:
        at = names[0]
        cells[at : at + extra + 1] = [", ".join(cells[at : at + extra + 1])]
        extra = 0
    return dict(zip(table.columns, cells, strict=True)) if extra == 0 else None


def _gpu(row: dict[str, str], position: int, ref: Ref) -> Gpu:
    index = row.get("index", "")
    busy = re.match(r"(\d{1,4})", row.get("utilization.gpu", ""))
    name = row.get("name") or row.get("gpu_name") or ""
    return Gpu(
        index=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else position,
        name=None if not name or name.startswith("[") else name,
        ref=ref,
        total_bytes=mebibytes(row.get("memory.total", "")),
        used_bytes=mebibytes(row.get("memory.used", "")),
        utilization=int(busy[1]) / 100 if busy else None,
        time=_stamp(row.get("timestamp", "")),
    )


def _process(row: dict[str, str], ref: Ref) -> GpuProcess:
    pid = row.get("pid", "")
    used = mebibytes(row.get("used_gpu_memory", row.get("used_memory", "")))
    return GpuProcess(
        int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 12 else None, row.get("process_name", row.get("name", "")), used, ref
    )


def _attach(gpus: list[Gpu], orphans: list[GpuProcess], index: int | None, process: GpuProcess) -> None:
    for i in range(len(gpus) - 1, -1, -1):
        if index is not None and gpus[i].index == index:
            gpus[i] = structs.replace(gpus[i], processes=(*gpus[i].processes, process))
            return
    orphans.append(process)


def _stamp(text: str) -> float | None:
    found = re.match(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(\.\d+)?", text)
    if not found:
        return None
    try:
        return datetime(*(int(found[i]) for i in range(1, 7)), tzinfo=timezone.utc).timestamp() + float(found[7] or 0)  # type: ignore[arg-type,misc]
    except ValueError:
        return None


def long_form(lines: Numbered, source: str) -> tuple[Gpu, ...]:
    """`nvidia-smi -q`, or the list of `-L`: devices in the order printed. Keys nest by four blanks; the colon's column varies."""
    result: list[Gpu] = []
    section = ""
    time: float | None = None
    pid: int | None = None
    name = ""
    for number, line in lines:
        text = line.strip()
        key, colon, value = (part.strip() for part in text.partition(" : "))
        depth = len(line) - len(line.lstrip())
        ref = Ref(source, number, text[:400])
        if key == "Timestamp" and (found := re.match(r"\w{3} (\w{3}) +(\d{1,2}) ([\d:]{8}) (\d{4})$", value)) and found[1] in MONTHS:
            time = _stamp(f"{found[4]}/{MONTHS.index(found[1]) + 1:02}/{int(found[2]):02} {found[3]}")
        elif named := re.match(r"GPU (\d{1,4}): (.+?) \(UUID: ", line):
            result.append(Gpu(int(named[1]), named[2], ref))
            section = ""
        elif re.match(r"GPU [0-9A-Fa-f]{4,8}:", text) and depth == 0:
            result.append(Gpu(len(result), None, ref, time=time))
            section = ""
        if not result:
            continue
        gpu = result[-1]
        if not colon:
            section = text if depth == 4 else section
            if section == "Processes" and depth == 4:
                result[-1] = structs.replace(gpu, processes_listed=True)
        elif key == "Product Name":
            result[-1] = structs.replace(gpu, name=value)
        elif section == "FB Memory Usage" and key in ("Total", "Used"):
            field = "total_bytes" if key == "Total" else "used_bytes"
            result[-1] = structs.replace(gpu, ref=ref, **{field: mebibytes(value)})
        elif section == "Utilization" and key.lower() == "gpu" and (busy := re.match(r"(\d{1,4}) %", value)):
            result[-1] = structs.replace(gpu, utilization=int(busy[1]) / 100)
        elif key == "Processes":
            result[-1] = structs.replace(gpu, processes_listed=True)
        elif section == "Processes":
            if key == "Process ID":
                pid, name = int(value) if value.isascii() and value.isdigit() and len(value) < 12 else None, ""
            elif key == "Name":
                name = value
            elif key == "Used GPU Memory":
                process = GpuProcess(pid, name, mebibytes(value), ref)
                result[-1] = structs.replace(gpu, processes=(*gpu.processes, process), processes_listed=True)
    return tuple(result)
