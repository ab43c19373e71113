#!/usr/bin/env python3
"""Cuts recorded vLLM servers down to the fixtures of this repository.

    tools/trim_capture.py CAPTURES [--into fixtures] [--only NAME ...]

CAPTURES is a folder `<version>/<scenario>/` holding `server.log`, `metrics/NNNN_<unixtime>.txt`, perhaps `dmesg.txt`, and the
label `case.yaml`. What each fixture is made of stands in RECIPES, so that running this twice gives the same bytes.

What goes, and why it may:
- scrapes between those kept: every n-th stays, the first and the last, the extremes of the gauges, and those beside a change
  in preemptions, so that deltas and peaks are those of the whole capture;
- metric families that speak about Python, HTTP sizes or features nobody used, `_created` samples, and HELP lines after the
  first scrape;
- histogram boundaries inside a stretch of buckets that stayed empty to the end: quantiles and deltas come out the same;
- log noise: leak lists at exit, the list of routes after two of them, debug lines of every step but each tenth;
- prompts: their text and token ids are cut short; the shape of the line stays.
Nothing is invented and no number is changed. Home folders become /srv/vllm.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

UNUSED = re.compile(
    r"python_|http_request_duration_|http_request_size_|http_response_size_"
    r"|vllm:(?:estimated_|mm_cache_|external_prefix_cache_|prompt_tokens_cached_by_source|engine_sleep_state|kv_offload"
    r"|request_params_n|request_max_num_generation_tokens|request_params_best_of"
    r"|request_time_per_output_token|request_prefill_kv_computed_tokens)"
)
CREATED = re.compile(r"^(?:# (?:HELP|TYPE) )?[\w:]+_created\b")
LEAK = re.compile(r"^nanobind: |^ - leaked |^ - \.\.\. skipped|^See https://nanobind")
ROUTE = re.compile(r"Route: /\S*, Methods: ")
STEP = re.compile(r" DEBUG .*(?:ubatch_slices|Running batch with|Poller received)")
PROMPT = re.compile(r"""(Received request \S+: prompt: )(['"])(.*)\2(, params: .*)""")
TOKEN_IDS = re.compile(r"(prompt_token_ids: \[(?:\d+, ){3}\d+)[^\]]*\]")
HOME = re.compile(r"/(?:home/[^/\s'\"]+|root)(?=/)")
BUCKET = re.compile(r'^(\w[\w:]*_bucket\{.*)le="([^"]+)"(.*\}) (\S+)$')
ACCESS = re.compile(r'"[A-Z]+ \S+ HTTP/[\d.]+" (\d+)')


@dataclass(frozen=True)
class Recipe:
    """How one capture becomes one fixture. `every`: keep each n-th scrape. `access_run`: longest run of equal access lines."""

    source: str
    every: int = 1
    access_run: int | None = None
    label: dict[str, object] = field(default_factory=dict)
    """Overrides of what the capture's own label says."""


RECIPES = {
    "kv-exhaustion-0.32": Recipe("0.32.0/kv_exhaustion", every=3),
    "slow-clients-kv-0.32": Recipe("0.32.0/slow_clients", every=3),
    "kv-exhaustion-0.8.5": Recipe("0.8.5/slow_clients", every=3),
    "max-num-seqs-queue-0.32": Recipe("0.32.0/max_num_seqs_queue", every=2),
    "idle-then-burst-0.32": Recipe("0.32.0/idle_then_burst", every=4),
    "prefill-spike-big-0.32": Recipe("0.32.0/prefill_spike_big_budget", every=2),
    "prefill-spike-small-0.32": Recipe("0.32.0/prefill_spike_small_budget", every=3),
    "prefill-spike-big-0.10.2": Recipe("0.10.2/prefill_spike_big_budget", every=3),
    "client-aborts-0.32": Recipe("0.32.0/client_aborts", every=2),
    "too-long-400-flood-0.32": Recipe("0.32.0/too_long_400_flood", every=2),
    "engine-kill9-0.32": Recipe("0.32.0/engine_kill9"),
    "engine-kill9-0.10.2": Recipe("0.10.2/engine_kill9"),
    "native-crash-0.10.2": Recipe("0.10.2/kv_exhaustion_then_native_crash", access_run=40),
    "engine-dies-in-step-0.10.2": Recipe("0.10.2/engine_dies_in_step"),
    "request-never-fits-0.10.2": Recipe("0.10.2/request_never_fits", every=3),
    "sigterm-under-load-0.32": Recipe("0.32.0/sigterm_under_load"),
    "sigterm-under-load-0.8.5": Recipe("0.8.5/sigterm_under_load"),
    "startup-kv-too-few-blocks-0.32": Recipe("0.32.0/fail_kv_too_few_blocks"),
    "startup-kv-too-small-0.32": Recipe("0.32.0/fail_maxlen_vs_kv"),
    "startup-kv-too-small-0.8.5": Recipe("0.8.5/fail_maxlen_vs_kv"),
    "startup-no-kv-memory-0.32": Recipe("0.32.0/fail_kv_no_memory"),
    "max-model-len-exceeds-model-0.32": Recipe("0.32.0/fail_maxlen_vs_model"),
    "max-model-len-exceeds-model-0.10.2": Recipe("0.10.2/fail_maxlen_vs_model"),
    "model-not-found-0.32": Recipe("0.32.0/fail_no_model"),
    "no-weights-0.32": Recipe("0.32.0/fail_no_weights"),
    "port-in-use-0.32": Recipe("0.32.0/fail_port_in_use"),
    "port-in-use-0.10.2": Recipe("0.10.2/fail_port_in_use"),
    "port-in-use-0.8.5": Recipe("0.8.5/fail_port_in_use"),
    "bad-flag-0.32": Recipe("0.32.0/fail_bad_flag"),
    "bad-value-0.32": Recipe("0.32.0/fail_bad_value"),
    "tp-too-big-0.32": Recipe("0.32.0/fail_tp_too_big"),
    "log-disable-stats-0.32": Recipe("0.32.0/log_disable_stats", every=3),
    "healthy-0.32": Recipe("0.32.0/healthy", every=3),
    "healthy-0.8.5": Recipe("0.8.5/healthy", every=3),
    "healthy-compiled-0.32": Recipe("0.32.0/healthy_compiled"),
    "prefix-hits-0.32": Recipe("0.32.0/prefix_hits", every=2),
    "prefix-hits-0.10.2": Recipe("0.10.2/prefix_hits", every=2),
    "bench-serve-0.32": Recipe("0.32.0/bench_serve", every=2),
    "log-json-0.32": Recipe("0.32.0/log_json", every=2),
    "log-debug-0.32": Recipe("0.32.0/log_debug", every=2),
    "log-requests-0.32": Recipe("0.32.0/log_enable_requests"),
    "log-no-access-log-0.32": Recipe("0.32.0/log_no_access_log", every=2),
    "slow-clients-long-0.32": Recipe("0.32.0/slow_clients_long", every=3),
}


def trim_log(text: str, access_run: int | None) -> str:
    """A server log without noise; every line that stays keeps its wording, but for shortened prompts and home folders."""
    kept: list[str] = []
    leaks = routes = steps = run = 0
    last_access = ""
    for line in text.split("\n"):
        if LEAK.search(line):
            leaks += 1
            if leaks > 3:
                continue
        elif ROUTE.search(line):
            routes += 1
            if routes > 2:
                continue
        elif STEP.search(line):
            steps += 1
            if steps % 20 not in (0, 1):
                continue
        if access_run is not None:
            access = ACCESS.search(line)
            run = run + 1 if access and access.group() == last_access else 0
            last_access = access.group() if access else ""
            if run >= access_run:
                continue
        kept.append(shorten(line))
    return "\n".join(kept)


def shorten(line: str) -> str:
    """One line with its prompt cut to a few words and its home folder named neutrally."""
    line = PROMPT.sub(lambda m: f"{m[1]}{m[2]}{prompt_head(m[3])}{m[2]}{m[4]}", line)
    return HOME.sub("/srv/vllm", TOKEN_IDS.sub(r"\1]", line))


def prompt_head(text: str) -> str:
    """The first characters of a quoted prompt, never ending inside an escape."""
    return text[:24].rstrip("\\")


def empty_boundaries(last: str) -> set[tuple[str, str, str]]:
    """(start of line, le, rest) of buckets with nothing in them nor in the next one, judged by the last and so fullest scrape."""
    series: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for line in last.splitlines():
        if found := BUCKET.match(line):
            start, le, rest, count = found.groups()
            series.setdefault((start, rest), []).append((le, float(count)))
    empty = set()
    for (start, rest), buckets in series.items():
        counts = [0.0] + [count for _, count in buckets]
        for i, (le, count) in enumerate(buckets[:-1]):
            if counts[i] == count == counts[i + 2]:
                empty.add((start, le, rest))
    return empty


def trim_scrape(text: str, first: bool, empty: set[tuple[str, str, str]]) -> str:
    """A scrape without families nobody needs (each goes or stays as a whole) and without boundaries between empty buckets."""
    kept = []
    for line in text.splitlines():
        name = line.split(" ", 3)[2] if line.startswith("# ") else line
        if UNUSED.match(name) or CREATED.match(line) or (line.startswith("# HELP") and not first):
            continue
        bucket = BUCKET.match(line)
        if bucket and bucket.group(1, 2, 3) in empty:
            continue
        kept.append(line)
    return "\n".join(kept) + "\n"


def gauge(text: str, name: str) -> float | None:
    values = [float(m[1]) for m in re.finditer(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)]
    return sum(values) if values else None


def scrapes_to_keep(texts: list[str], every: int) -> set[int]:
    """Indices of the scrapes that carry the story: each n-th, both ends, extremes, and both sides of a change in preemptions."""
    if not texts:
        return set()
    keep = set(range(0, len(texts), every)) | {0, len(texts) - 1}
    for name in GAUGES:
        values = [(v, -i) for i, text in enumerate(texts) if (v := gauge(text, name)) is not None]
        if values:
            keep.add(-max(values)[1])
    preemptions = [gauge(text, "vllm:num_preemptions_total") for text in texts]
    changes = [i for i in range(1, len(texts)) if preemptions[i] != preemptions[i - 1]]
    for i in changes[:1] + changes[-1:]:
        keep |= {i - 1, i}
    return keep


def label(source: Path, overrides: dict[str, object]) -> str:
    """The fixture's case.yaml, from the capture's."""
    import yaml

    own = yaml.safe_load((source / "case.yaml").read_text(encoding="utf-8"))
    case = {
        "vllm_version": str(own["vllm_version"]),
        "expect": own["expect"],
        "accept": own.get("accept") or [],
        "also": own.get("also") or [],
        "healthy": own["expect"] == "healthy",
        "confidence": own.get("confidence", 1),
        "input": "own capture of a real server, trimmed",
        **overrides,
    }
    return yaml.safe_dump({k: v for k, v in case.items() if k != "healthy" or v}, sort_keys=False)


def write(path: Path, text: str) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8")
    path.write_bytes(data)
    return len(data)


def trim(source: Path, into: Path, recipe: Recipe) -> int:
    """Writes one fixture; returns its size in bytes."""
    log = (source / "server.log").read_bytes().decode("utf-8")
    size = write(into / "server.log", trim_log(log, recipe.access_run))
    if (source / "dmesg.txt").is_file():
        size += write(into / "dmesg.txt", (source / "dmesg.txt").read_text(encoding="utf-8"))
    paths = sorted((source / "metrics").glob("*.txt"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    empty = empty_boundaries(texts[-1]) if texts else set()
    for i in sorted(scrapes_to_keep(texts, recipe.every)):
        size += write(into / "metrics" / paths[i].name, trim_scrape(texts[i], i == 0, empty))
    return size + write(into / "case.yaml", label(source, recipe.label))


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path)
    parser.add_argument("--into", type=Path, default=Path(__file__).resolve().parent.parent / "fixtures")
    parser.add_argument("--only", nargs="*", default=None, help="names of fixtures; default all")
    args = parser.parse_args(None if arguments is None else list(arguments))
    total = 0
    for name in args.only or RECIPES:
        folder = args.into / name
        for old in [*folder.glob("metrics/*.txt"), *folder.glob("*.log")]:
            old.unlink()
        size = trim(args.captures / RECIPES[name].source, folder, RECIPES[name])
        total += size
        print(f"{size / 1024:8.0f} KiB  {name}")
    print(f"{total / 2**20:8.2f} MiB in {len(args.only or RECIPES)} fixtures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
