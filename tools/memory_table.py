"""The memory model against measured starts, as Markdown: `make memory-table` writes it into docs/memory-model.md, a test keeps it current.

tests/capacity/starts.csv    starts of real servers from public issues and reports: the rows to be met (`role` given: those that the constants
                             were first held against; later: found afterwards)
tests/capacity/peaks.csv     peak activation and non-torch memory of other starts: what the constants of `capacity/estimates.py` were read from
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from statistics import median

from msgspec import Struct

from vllm_doctor.capacity.kv import groups_of
from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.setup import GIB, Budget, Part, Setup
from vllm_doctor.capacity.size import size
from vllm_doctor.ruleset.load import load_knowledge
from vllm_doctor.ruleset.schema import Knowledge

ROOT = Path(__file__).resolve().parent.parent
STARTS, PEAKS, PAGE = (ROOT / p for p in ("tests/capacity/starts.csv", "tests/capacity/peaks.csv", "docs/memory-model.md"))
BEGIN, END = "<!-- written by make memory-table -->", "<!-- end of what make memory-table writes -->"
COLUMNS: tuple[tuple[Part, str], ...] = (("weights", "weights_gib"), ("activation", "activation_peak_gib"), ("non_torch", "non_torch_gib"))
GOAL_TOKENS, GOAL_KV = 0.01, 0.12


class Start(Struct, frozen=True):
    """One measured start with the model's answers: with its parts where all are known, and from model, card and options alone."""

    row: dict[str, str]
    setup: Setup
    kv_gib: float | None
    tokens: int | None
    with_parts: Budget | None
    alone: Budget
    utilization_stated: bool

    @property
    def kv_error(self) -> float | None:
        """Relative error of the KV bytes from model, card and options alone."""
        return None if self.kv_gib is None else self.alone.kv.bytes / GIB / self.kv_gib - 1 if self.kv_gib > 0 else None

    @property
    def token_error(self) -> float | None:
        """Relative error of the printed tokens (of the KV bytes where no tokens are printed) with the parts known."""
        if self.with_parts is None:
            return None
        if self.tokens:
            return self.with_parts.kv_tokens / self.tokens - 1
        return self.with_parts.kv.bytes / GIB / self.kv_gib - 1 if self.kv_gib else None

    @property
    def per_token(self) -> tuple[float, float, float] | None:
        """KiB per token: the model's, and the range that the printed figures leave (0.01 GiB, whole blocks)."""
        stated = number(self.row.get("kv_cache_gib"))
        if not stated or not self.tokens:
            return None
        low, high = ((stated + d) * 2**20 / t for d, t in ((-0.0051, self.tokens + 16), (0.0051, self.tokens)))
        return self.alone.kv_bytes_per_token / 1024, low, high


def number(text: str | None) -> float | None:
    return float(text) if text else None


def whole(text: str | None) -> int | None:
    """The count that a cell begins with; None where it holds none ("None (default)")."""
    stated = re.match(r"\d+", text or "")
    return int(stated[0]) if stated else None


def setup_of(row: dict[str, str], knowledge: Knowledge) -> Setup | None:
    """The set-up of a row, or None where its model or the size of its card is not known."""
    model = find_model(row["model"], knowledge)
    card = find_gpu(row["gpu"], knowledge) if row["gpu"] else None
    stated = row["total_gib"]
    total = float(stated) if re.fullmatch(r"[\d.]+", stated) else card.total_gib if card else None
    if model.model is None or total is None:
        return None
    length, seqs, batch = (whole(row[k]) for k in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"))
    quant = row.get("quant") or None
    return Setup(
        model=model.model,
        gpu=card.gpu if card else None,
        device="rocm" if card and card.gpu and card.gpu.vendor == "AMD" else "cuda",
        total_bytes=round(total * GIB),
        version=row["version"] or None,
        gpu_memory_utilization=number(row["gpu_mem_util"]),
        tensor_parallel_size=whole(row["tp"]) or 1,
        pipeline_parallel_size=whole(row["pp"]) or 1,
        dtype=row.get("dtype") or "auto",
        quantization=model.quantization or (quant if quant != "None" else None),
        kv_cache_dtype=row.get("kv_cache_dtype") or "auto",
        enforce_eager=row.get("enforce_eager") == "True",
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batch,
        engine_generation="V0" if row.get("engine") == "V0" else "V1" if row.get("engine") == "V1" else None,
        offline=row.get("server_or_offline") == "offline",
        enable_chunked_prefill=True if batch and length and batch < length else {"True": True, "False": False}.get(row.get("chunked") or ""),
    )


def starts(knowledge: Knowledge, rows: Path = STARTS) -> tuple[list[Start], list[dict[str, str]]]:
    """Rows that can be calculated, and those that state too little."""
    from msgspec import structs

    found, left = [], []
    with rows.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            setup = setup_of(row, knowledge)
            tokens = int(row["kv_tokens"]) if row["kv_tokens"] else None
            kv = number(row["kv_cache_gib"])
            if setup is None or (kv is None and tokens is None):
                left.append(row)
                continue
            known: dict[Part, int] = {p: round(float(row[c]) * GIB) for p, c in COLUMNS if row[c]}
            alone = size(setup)
            # where graphs are in the budget, what was charged for them must be known too
            complete = len(known) == len(COLUMNS) and bool(row["gpu_mem_util"]) and not alone.graphs_in_budget
            if kv is None and tokens is not None and len(groups_of(setup)) == 1:
                kv = tokens * alone.kv_bytes_per_token / GIB
            elif kv is None and tokens is not None and alone.kv_tokens > 0:
                kv = alone.kv.bytes / GIB * tokens / alone.kv_tokens  # tokens of several groups do not give bytes: compared as they are
            parts = size(structs.replace(setup, known=known)) if complete else None
            found.append(Start(row, setup, kv, tokens, parts, alone, bool(row["gpu_mem_util"])))
    return found, left


def peaks(knowledge: Knowledge) -> list[tuple[dict[str, str], float, float]]:
    """(row, activation error in GiB, non-torch error in GiB) of the starts behind the constants."""
    result = []
    with PEAKS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            setup = setup_of(row, knowledge)
            if setup is not None:
                budget = size(setup)
                activation = budget.activation.bytes / GIB - float(row["activation_peak_gib"])
                result.append((row, activation, budget.non_torch.bytes / GIB - float(row["non_torch_gib"])))
    return result


def uniform(start: Start) -> bool:
    """Does the model keep the same KV in every layer? Else tokens share blocks with states and windows, and bytes per token vary."""
    return len(groups_of(start.setup)) == 1


def guessed(start: Start) -> bool:
    """Rows whose model was itself concluded from its sizes."""
    return " class" in start.row["model"]


def share(values: list[float], limit: float) -> str:
    within = sum(abs(v) <= limit for v in values)
    return f"{within} of {len(values)}"


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(abs(v) for v in values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}".replace("%", " %")


def table(rows_file: Path = STARTS) -> str:
    """The Markdown between the markers, for the starts of a file with the columns of `tests/capacity/starts.csv` (more or fewer)."""
    knowledge = load_knowledge()
    found, left = starts(knowledge, rows_file)
    parts = [s for s in found if s.token_error is not None]
    usable = [s for s in found if s.kv_error is not None and s.utilization_stated and not guessed(s)]
    given, later = ([s for s in usable if (s.row.get("role") or "later") == role] for role in ("given", "later"))
    rated = [s for s in found if s.per_token and uniform(s)]
    exact = [s for s in rated if (p := s.per_token) and p[1] <= p[0] <= p[2]]
    lines = [BEGIN, "", "| what | result | n |", "|---|---|---|"]
    token_errors = [s.token_error for s in parts if s.token_error is not None]
    lines.append(f"| parts known: KV tokens (bytes where no tokens are printed) within 1 % | {share(token_errors, GOAL_TOKENS)} | {len(parts)} |")
    lines.append(f"| KiB per token as in the log, within its rounding (same KV in every layer) | {len(exact)} of {len(rated)} | {len(rated)} |")
    for label, rows in (
        ("model, card and options only, rows as given that state no parts", [s for s in given if s.with_parts is None]),
        ("the same, rows as given, parts hidden where they state them", given),
        ("the same, rows found later, parts hidden", later),
        ("all of them", usable),
    ):
        errors = [s.kv_error for s in rows if s.kv_error is not None]
        if not errors:
            continue
        lines.append(f"| {label}: KV GiB, median error | {median(map(abs, errors)):.1%} | {len(errors)} |".replace("%", " %"))
        lines.append(f"| {label}: within 5 % / within 12 % | {share(errors, 0.05)} / {share(errors, GOAL_KV)} | {len(errors)} |")
    held = [s for s in usable if s.alone.kv.span[0] / GIB <= (s.kv_gib or 0) <= s.alone.kv.span[1] / GIB]
    lines.append(f"| the log's KV GiB lies in the range that `plan` states | {len(held)} of {len(usable)} | {len(usable)} |")
    peak = peaks(knowledge)
    activation = [a / float(r["activation_peak_gib"]) for r, a, _ in peak]
    middle = f"{median(map(abs, activation)):.1%}".replace("%", " %")
    lines.append(f"| the starts behind the constants: median error of the peak activation | {middle} | {len(peak)} |")
    lines.append(f"| the same: non-torch memory within 0.2 GiB | {share([n for _, _, n in peak], 0.2)} | {len(peak)} |")
    lines += ["", "Rows with their parts known:", "", "| version | model | card | formula | KV GiB: log | model | tokens: log | model | error |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for s in parts:
        b = s.with_parts
        assert b is not None
        lines.append(
            f"| {s.row['version']} | {s.row['model']} | {s.row['gpu'] or s.row['total_gib']} | {b.generation} "
            f"| {s.kv_gib or 0:.2f} | {b.kv.bytes / GIB:.2f} | {s.tokens or ''} | {b.kv_tokens if s.tokens else ''} | {percent(s.token_error)} |"
        )
    lines += ["", "From model, card and options alone (parts hidden where they are known; `*`: the utilisation is not stated):", ""]
    lines += ["| version | model | card | formula | KV GiB: log | model | range | error |", "|---|---|---|---|---|---|---|---|"]
    for s in (s for s in found if not guessed(s)):
        low, high = (v / GIB for v in s.alone.kv.span)
        star = "" if s.utilization_stated else "*"
        lines.append(
            f"| {s.row['version']} | {s.row['model']}{star} | {s.row['gpu'] or s.row['total_gib']} | {s.alone.generation} | {s.kv_gib or 0:.2f} "
            f"| {s.alone.kv.bytes / GIB:.2f} | {low:.2f} – {high:.2f} | {percent(s.kv_error)} |"
        )
    lines += ["", "Every row that misses (1 % with its parts, 12 % without), and why:", ""]
    off = {id(s) for s in rated} - {id(s) for s in exact}
    for s in found:
        if id(s) in off and s.per_token:
            own, low, high = s.per_token
            lines.append(
                f"* {s.row['version']}, {s.row['model']}, {own:.1f} KiB per token for {low:.1f} – {high:.1f}: {s.row.get('why') or 'not explained'}"
            )
        missed = [e for e in (s.token_error if abs(s.token_error or 0) > GOAL_TOKENS else None, s.kv_error) if e is not None and abs(e) > GOAL_TOKENS]
        if abs(s.token_error or 0) > GOAL_TOKENS or (abs(s.kv_error or 0) > GOAL_KV and not guessed(s)):  # as in the tests
            reason = s.row.get("why") or "not explained"
            lines.append(f"* {s.row['version'] or 'version not stated'}, {s.row['model']}, {percent(max(missed, key=abs))}: {reason}")
    lines += ["", f"Rows that state too little to be calculated: {len(left)} ({', '.join(sorted(why_left(r) for r in left))}).", "", END]
    return "\n".join(lines)


def why_left(row: dict[str, str]) -> str:
    """The row, and which of model and card it does not tell."""
    no_card = bool(row["model"]) and not row["gpu"] and not row["total_gib"]
    return f"{row['version'] or 'no version'} {row['model'] or 'no model'}: no {'card' if no_card else 'known model or card'}"


def page_with(content: str) -> str:
    """The page with the part between the markers replaced."""
    text = PAGE.read_text(encoding="utf-8")
    return text[: text.index(BEGIN)] + content + text[text.index(END) + len(END) :]


if __name__ == "__main__":
    given_file = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    written = table(Path(given_file) if given_file else STARTS)
    print(written)
    if "--write" in sys.argv and not given_file:
        PAGE.write_text(page_with(written), encoding="utf-8")
