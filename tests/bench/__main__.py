"""`make bench`: the ratios that the design aims at, measured in one run on one machine. Reported, never asserted.

python -m tests.bench [--mib 256] [--log FILE] [--repeat 3]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from tests.bench.generate import write_log
from vllm_doctor.large import PARALLEL_FROM
from vllm_doctor.model.observations import Clock
from vllm_doctor.parsing.blocks import boundary
from vllm_doctor.parsing.formats import table
from vllm_doctor.parsing.log import ACCESS_OK, ACCESS_POST, fold
from vllm_doctor.ruleset.load import load

COMMAND = [sys.executable, "-c", "from vllm_doctor.cli import main; main()"]
ROOT = Path(__file__).resolve().parent.parent.parent


class Cost(NamedTuple):
    """Of one command: wall and CPU seconds, peak memory of its largest process in bytes."""

    wall: float
    cpu: float
    memory: int


def install(folder: Path) -> None:
    """Puts the package as users get it, with compiled rules, in front of the checkout."""
    quiet = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder), str(ROOT)]
    subprocess.run(quiet, check=True, stderr=subprocess.DEVNULL)
    os.environ["PYTHONPATH"] = str(folder)


def cost(arguments: list[str], cores: int | None = None) -> Cost:
    """Runs a command to its end, on the first `cores` allowed cores. Fails only if it could not do its work."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    started = perf_counter()
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", preexec_fn=lambda: os.sched_setaffinity(0, allowed)
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)} ended with exit code {process.returncode}")
    return Cost(perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def typical(arguments: list[str], repeat: int, cores: int | None = None) -> Cost:
    runs = [cost(arguments, cores) for _ in range(repeat)]
    return Cost(median(r.wall for r in runs), median(r.cpu for r in runs), max(r.memory for r in runs))


def ripgrep() -> str | None:
    """The path of rg, installed where this may be done."""
    if shutil.which("rg") is None and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update"], check=False, **quiet)  # type: ignore[call-overload]
        subprocess.run(["apt-get", "install", "-y", "ripgrep"], check=False, **quiet)  # type: ignore[call-overload]
    return shutil.which("rg")


def literals() -> list[str]:
    """What the product itself looks for in raw bytes."""
    found = {text for f in load().formats for text in ([f.literal] if isinstance(f.literal, str) else f.literal)}
    return sorted(found)


def row(what: str, figure: str, aim: str) -> None:
    print(f"{what:52} {figure:>34}" + (f"   aim {aim}" if aim else ""), flush=True)


def scanning(log: Path, folder: Path, repeat: int) -> None:
    size = log.stat().st_size / 2**20
    analyze = [*COMMAND, "analyze", str(log), "--format", "json"]
    one = typical(analyze, repeat, cores=1)
    row(f"analyze, one core, {size:.0f} MiB", f"{one.wall:.2f} s, {size / one.wall:.0f} MiB/s", "")
    row("  peak memory", f"{one.memory / 1e6:.0f} MB", "<= 200 MB")
    rg = ripgrep()
    if rg is None:
        row("  against rg", "not measured: rg is not installed", "<= 1.5 x")
    else:
        patterns = folder / "literals"
        patterns.write_text("\n".join(literals()) + "\n", encoding="utf-8")
        search = typical([rg, "-c", "-F", "-j", "1", "-f", str(patterns), str(log)], repeat, cores=1)
        row(f"  rg -c -F -f LITERALS ({len(literals())})", f"{search.wall:.2f} s", "")
        row("  analyze / rg, wall (CPU)", f"{one.wall / search.wall:.2f} x ({one.cpu / search.cpu:.2f} x)", "<= 1.5 x")
    shares(log, repeat)
    if len(os.sched_getaffinity(0)) < 2:
        row("  two cores against one", "not measured: there is one core", ">= 1.7 x")
        return
    two = typical(analyze, repeat, cores=2)
    gain = one.wall / two.wall
    small = "" if log.stat().st_size >= PARALLEL_FROM else f", one is used below {PARALLEL_FROM >> 20} MiB"
    row("  two cores against one", f"{gain:.2f} x{small}", ">= 1.7 x")
    row("    CPU of both", f"{two.cpu:.2f} s against {one.cpu:.2f} s", "")


def shares(log: Path, repeat: int) -> None:
    """What the time of the fold goes to: CPU seconds of its passes over the first bytes of the log, each measured alone."""
    rules, clock = load().formats, Clock(2026)
    with log.open("rb") as stream:
        data = stream.read(16 * 2**20)
    data = data[: boundary(data, len(data) - 2**20)]
    find = table(rules).find
    find(data)  # compiles

    def cpu(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(repeat):
            started = process_time()
            work()
            best = min(best, process_time() - started)
        return best

    whole = cpu(lambda: fold(data, "log", clock, rules))
    passes = {
        "literals": cpu(lambda: find(data)),
        "line ends": cpu(lambda: data.count(b"\n")),
        "access lines": cpu(lambda: (data.count(ACCESS_OK[0]), data.count(ACCESS_POST[0]))),
    }
    rest = max(whole - sum(passes.values()), 0.0)
    lines = sum(map(len, find(data)))
    said = ", ".join(f"{name} {taken / whole:.0%}" for name, taken in passes.items())
    row("  the fold alone, CPU", f"{len(data) / 2**20 / whole:.0f} MiB/s", "")
    row(f"    {said}", f"{lines} hits of literals {rest / whole:.0%}", "")


def linearity(folder: Path, repeat: int) -> None:
    times = []
    for mib in (8, 32):
        path = folder / f"{mib}.log"
        write_log(path, mib * 2**20)
        times.append(typical([*COMMAND, "analyze", str(path), "--format", "json"], repeat, cores=1).cpu)
    row("four times the log (8 -> 32 MiB), one core", f"{times[1] / times[0]:.2f} x the time", "<= 4 x: linear")


def starting(folder: Path, repeat: int) -> None:
    log = folder / "200k.log"
    write_log(log, 200_000)
    base = typical([sys.executable, "-c", "pass"], repeat).wall
    row("python -c pass", f"{base * 1000:.0f} ms", "")
    for what, arguments, aim in (
        ("--help", ["--help"], ""),
        ("analyze --format json, 200 kB", ["analyze", str(log), "--format", "json"], "<= 10 x"),
        ("analyze, text, 200 kB", ["analyze", str(log)], "<= 15 x"),
    ):
        taken = typical(COMMAND + arguments, repeat).wall
        row(f"{what} / python -c pass", f"{taken * 1000:.0f} ms, {taken / base:.1f} x", aim)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the generated log")
    parser.add_argument("--log", type=Path, help="measure on this log instead")
    parser.add_argument("--repeat", type=int, default=3, help="runs per figure; the median counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "installed")
        log = args.log.resolve() if args.log else None
        if log is None:
            log = folder / "server.log"
            write_log(log, args.mib * 2**20)
        scanning(log, folder, args.repeat)
        linearity(folder, args.repeat)
        starting(folder, max(args.repeat, 7))


if __name__ == "__main__":
    main()
