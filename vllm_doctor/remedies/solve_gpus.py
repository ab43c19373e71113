"""Values that spread a server over more GPUs: ranks that the model can be divided by, as many as are there or as the start needs."""

from __future__ import annotations

from ..capacity.refusals import refusals
from ..capacity.size import size
from ..model.case import Case, Known, Run, Unknown
from ..model.figures import figure
from ..model.judgement import Judgement
from ..signals.evaluate import Evaluator
from ..versions import satisfies
from .figures import Figures, look
from .moves import Move, Solved
from .outcome import FAILED_START, first_that_starts
from .servers import Server, after

RANKS = (2, 4, 8, 16)
"""Sizes of a tensor parallel group that people have."""


def splits(server: Server) -> bool:
    """Can the model be divided like this? Heads, layers and widths; memory has no part in it."""
    told = {"heads-split", "kv-heads-split", "mlp-split", "stages", "context-parallel"}
    return not told & {code for code, _ in refusals(server.setup, size(server.setup))}


def _spread(f: Figures, lever: str, to: int) -> tuple[Server, ...]:
    return tuple(after(s, (Move(lever, to),)) for s in f.servers)


def all_gpus(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The most ranks that the GPUs that were seen allow and the model's heads divide by. Without a GPU dump, where the start failed: the fewest
    ranks with which the memory model says that it starts."""
    f = look(case, run, finding, evaluator)
    fits = [n for n in RANKS if n > f.ranks and all(splits(s) for s in _spread(f, "--tensor-parallel-size", n))]
    if case.gpus:
        seen = [n for n in fits if n <= len(case.gpus)]
        return Known(float(seen[-1])) if seen else None if f.servers and not fits else Unknown("nvidia-smi")
    if finding.cause not in FAILED_START or not f.servers:
        return None if f.servers and not fits else Unknown("nvidia-smi")
    enough = first_that_starts(f, "--tensor-parallel-size", fits)
    return None if enough is None else Known(float(enough))


def stages(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Pipeline stages, where tensor parallelism cannot use the GPUs: the heads do not divide by their number. All GPUs that were seen; without a
    dump the fewest with which the start succeeds. None where the model is not known: then nothing says that its heads do not divide."""
    f = look(case, run, finding, evaluator)
    if not f.servers or all_gpus(case, run, finding, evaluator) is not None:
        return None
    now = max(s.setup.pipeline_parallel_size for s in f.servers)
    tensor = max(s.setup.tensor_parallel_size for s in f.servers)
    fits = [n for n in range(now + 1, 17) if all(splits(s) for s in _spread(f, "--pipeline-parallel-size", n))]
    if case.gpus:
        seen = [n for n in fits if n * tensor <= len(case.gpus)]
        return Known(float(seen[-1])) if seen else None
    enough = first_that_starts(f, "--pipeline-parallel-size", fits) if finding.cause in FAILED_START else None
    return None if enough is None else Known(float(enough))


def copies(f: Figures) -> int:
    """How many GPUs of a tensor parallel group hold the same KV cache: all with latent attention, else as many as there are GPUs for each KV
    head. 1 where none does, or where the model is not known."""
    found = {_copies(s) for s in f.servers}
    return min(found, default=1)


def _copies(server: Server) -> int:
    model, ranks = server.setup.model, server.setup.tensor_parallel_size
    heads = 1 if model.kv_lora_rank else model.num_key_value_heads or ranks
    return max(1, ranks // heads) // server.setup.decode_context_parallel_size


def context_parallel(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """As many as hold the same KV cache, so that each holds other tokens of it. Latent attention since 0.10.2 (vLLM pull request 23734), grouped
    heads since 0.11.1 (24864); not where layers keep a window or a state."""
    f = look(case, run, finding, evaluator)
    models = [s.setup.model for s in f.servers]
    if not models or any(m.attn_layers_sliding or m.sliding_window or m.linear_layers for m in models):
        return None
    if any(not m.kv_lora_rank for m in models) and satisfies(run.version, ">=0.11.1") is not True:
        return None
    now = max(s.setup.decode_context_parallel_size for s in f.servers)
    to = copies(f) * now
    return Known(float(to)) if to > now and all(splits(s) for s in _spread(f, "--decode-context-parallel-size", to)) else None


def ranks_that_are_there(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """The most ranks that the refusal, or a dump, has GPUs for."""
    f = look(case, run, finding, evaluator)
    stated = [v for e in run.events_of("startup.too_few_gpus") if (v := figure(e.values.get("startup.too_few_gpus.available"))) is not None]
    there = int(min(stated)) if stated else len(case.gpus)
    fits = [n for n in (1, *RANKS) if n <= there and all(splits(s) for s in _spread(f, "--tensor-parallel-size", n))]
    return Known(float(fits[-1])) if fits else Unknown("nvidia-smi")


def replicas_on_gpus(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """As many replicas as the GPUs that were seen have room for."""
    f = look(case, run, finding, evaluator)
    count = int(len(case.gpus) // f.ranks)
    return Known(float(count)) if count > 1 else None


def one_more_replica(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> Solved:
    """Two in place of one server."""
    return Known(2.0)
