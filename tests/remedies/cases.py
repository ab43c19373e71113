"""Servers made by hand for the tests of advice: what a log would have stated, without a log."""

from __future__ import annotations

from vllm_doctor.model.case import Case, Run, Window
from vllm_doctor.model.judgement import Judgement
from vllm_doctor.model.observations import Bounded, Event, Fact, Gpu, Launch, Ref, Scalar
from vllm_doctor.ruleset.load import load
from vllm_doctor.signals.evaluate import Evaluator

RULES = load()
FLAGS = {f.name: f for f in RULES.flags}
REF = Ref("server.log", 1, "a line")
WHOLE = Window(-1, 0.0, 0.0, whole=True)
GIB = 2**30

CARD: dict[str, Scalar] = {
    "device.type": "cuda",
    "memory.total": 24 * GIB,
    "memory.utilization": 0.9,
    "memory.budget": int(21.6 * GIB),
    "memory.weights": 14 * GIB,
    "memory.activation": 2 * GIB,
    "memory.non_torch": int(0.1 * GIB),
    "memory.kv_cache": int(5.5 * GIB),
    "kv_cache.tokens": 102_976,
    "config.max-model-len": 8192,
}
"""A 7B model on 24 GB: 56 KiB per token."""


def server(
    version: str | None = "0.10.2",
    facts: dict[str, Scalar] | None = None,
    flags: dict[str, Scalar] | None = None,
    events: dict[str, dict[str, Scalar]] | None = None,
    launch: Launch | None = None,
    generation: str | None = "V1",
    argument_line: str = "non-default args: {}",
) -> Run:
    """One run. `events` maps a kind to the figures of its one event, by their last word."""
    stated = dict(facts or {})
    if version:
        stated["vllm.version"] = version
    if generation:
        stated["engine.generation"] = generation
    own = [Fact(name, value, REF) for name, value in stated.items()]
    own += [Fact(f"flag.{name}", value, Ref("server.log", 2, argument_line)) for name, value in (flags or {}).items()]
    happened = {
        kind: Bounded.of(Event(kind, Ref("server.log", 10 + i, "an event"), {f"{kind}.{n}": v for n, v in figures.items()}))
        for i, (kind, figures) in enumerate((events or {}).items())
    }
    return Run(id="r1", facts=tuple(own), events=happened, launch=launch, has_log=True, has_banner=True)


def case_of(run: Run, gpus: tuple[Gpu, ...] = ()) -> tuple[Case, Evaluator]:
    case = Case(runs=(run,), gpus=gpus)
    return case, Evaluator(case, RULES.flags)


def finding(cause: str, variant: str | None = None) -> Judgement:
    return Judgement(cause, variant, "r1", None, "confirmed", "high", WHOLE)


def cards(name: str, count: int = 1) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, name, REF) for i in range(count))
