"""Advice that fits: never an option that the version lacks or ignores, never a value already set, never a conflict."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.remedies.cases import CARD, FLAGS, GIB, REF, RULES, cards, case_of, finding, server
from tests.test_rules import FIXTURES, evaluator_of, judgements_of
from tests.test_rules import case_of as fixture
from vllm_doctor.diagnosis.rank import ranked
from vllm_doctor.model.judgement import Advice
from vllm_doctor.model.observations import Gpu, Launch, Scalar
from vllm_doctor.remedies.advise import advise, not_helpful
from vllm_doctor.remedies.options import default_of, present, same, switched_on
from vllm_doctor.ruleset.schema import Cause, ChangeRule, Flag, Remedy, RuleSet, Text
from vllm_doctor.versions import NEWEST, OLDEST

VERSIONS = ["0.2.7", "0.3.3", "0.4.2", "0.5.5", "0.6.3.post1", "0.6.6", "0.7.3", "0.8.2", "0.8.5", "0.9.2", "0.10.2", "0.11.1", "0.14.1", "0.17.1",
            "0.18.1", "0.20.0", "0.23.0", "0.25.1", "0.28.0", "0.29.0", "0.31.0", "0.33.0", "0.34.0"]  # fmt: skip
VALUES: list[Scalar] = [0, 1, 64, 0.9, True, False, "auto", "fp8", "expandable_segments:True"]
TEXT = Text(en="x", zh="x")


def every_option(to: Scalar) -> tuple[RuleSet, Cause]:
    """Rules that advise setting every option of the table to one value, and removing it."""
    remedies = []
    for flag in RULES.flags:
        lever = {"env": flag.name} if flag.env else {"flag": flag.name}
        for action in ("set", "remove"):
            change = ChangeRule(**lever, action=action, to=to if action == "set" else None)  # type: ignore[arg-type]
            remedies.append(Remedy(f"{action} {flag.name}", TEXT, "flag", TEXT, TEXT, [], change))
    cause = structs.replace(RULES.causes[0], remedies=[r.id for r in remedies], not_remedies=[])
    return structs.replace(RULES, causes=[cause], remedies=remedies), cause


def lacks(version: str, flag: Flag) -> bool:
    """Straight from the table, for releases that it covers: sampled ends are open at both ends of the table."""
    if not flag.last_version[0].isdigit():
        return Version(version) < Version(flag.first_version) and Version(flag.first_version) > OLDEST
    low, high, own = Version(flag.first_version), Version(flag.last_version), Version(version)
    return (own < low and low > OLDEST) or (own > high and high < NEWEST)


def forbidden(version: str | None, flag: Flag, other: str, flags: dict[str, Flag]) -> bool:
    """Does the table forbid the pair in this version (in any, where it is unknown)? Either entry may say so."""
    pairs = [(flag.conflicts, other), (flags[other].conflicts, flag.name)]
    for conflicts, name in pairs:
        for text in conflicts:
            own, _, bounds = text.partition(" ")
            if own == name and (version is None or not bounds or SpecifierSet(bounds).contains(version)):
                return True
    return False


OPTIONS = sorted(f.name.lstrip("-") for f in RULES.flags if not f.env)
VARIABLES = sorted(f.name for f in RULES.flags if f.env)
options = st.dictionaries(st.sampled_from(OPTIONS), st.sampled_from(VALUES), max_size=8)
environments = st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["0", "1", "expandable_segments:True"]), max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*VERSIONS, None]), st.sampled_from(["V0", "V1", None]), options, environments, st.sampled_from(VALUES))
def test_no_advice_is_unknown_to_the_version_or_set_already_or_in_conflict(
    version: str | None, generation: str | None, given_options: dict[str, Scalar], environment: dict[str, str], to: Scalar
) -> None:
    launch = Launch("vllm serve m", {}, environment, "m", REF)
    run = server(version, flags=given_options, generation=generation, launch=launch)
    case, evaluator = case_of(run)
    rules, cause = every_option(to)
    for advice in advise(case, finding(cause.id), rules, evaluator):
        flag = FLAGS[str(advice.option)]
        current = present(flag, run)
        if advice.action == "remove":
            assert switched_on(current)
            continue
        possible = [version] if version else [v for v in VERSIONS if possible_for(generation, v)]
        assert [v for v in possible if lacks(v, flag)] == []
        assert current is None or not same(current, to)
        default = default_of(flag, run)
        assert current is not None or default is None or not same(default, to)
        in_use = [n for n, f in FLAGS.items() if n != flag.name and switched_on(present(f, run))]
        segments = flag.name.endswith("ALLOC_CONF") and to != "expandable_segments:True"
        for other in in_use:
            harmless = segments or (other.endswith("ALLOC_CONF") and "expandable" not in str(present(FLAGS[other], run)))
            assert harmless or not forbidden(version, flag, other, FLAGS), (flag.name, other)


def possible_for(generation: str | None, version: str) -> bool:
    own = Version(version)
    return {"V0": own <= Version("0.10.2"), "V1": own >= Version("0.6.4")}.get(generation or "", True)


def test_conflicts_are_declared_on_both_sides_and_name_options_of_the_table() -> None:
    stated = {(f.name, text.partition(" ")[0], text.partition(" ")[2]) for f in RULES.flags for text in f.conflicts}
    assert {other for _, other, _ in stated} <= set(FLAGS)
    assert {(b, a, bounds) for a, b, bounds in stated} == stated


@cache
def names(version: str | None, cause: str, key: str = "", generation: str | None = "V1") -> tuple[str, ...]:
    facts, flags, events, gpus = CASES[key]
    run = server(version, facts={**CARD, **facts}, flags=flags, events=events, generation=generation)
    case, evaluator = case_of(run, gpus)
    return tuple(a.remedy for a in advise(case, finding(cause), RULES, evaluator))


Case = tuple[dict[str, Scalar], dict[str, Scalar], dict[str, dict[str, Scalar]], tuple[Gpu, ...]]
SHORT: dict[str, dict[str, Scalar]] = {"startup.kv_below_max_len": {"needed": 1.5 * GIB, "available": GIB, "max_model_len": 32768}}
NOTHING: dict[str, dict[str, Scalar]] = {"startup.no_kv_memory": {}}
CASES: dict[str, Case] = {
    "": ({}, {}, {}, ()),
    "l4": ({}, {}, {}, cards("NVIDIA L4")),
    "a100": ({}, {}, {}, cards("NVIDIA A100-SXM4-80GB")),
    "mixed": ({}, {}, {}, (*cards("NVIDIA L4"), *cards("NVIDIA A100-SXM4-80GB"))),
    "fp8": ({"config.kv-cache-dtype": "fp8"}, {}, {}, cards("NVIDIA L4")),
    "short": ({}, {}, SHORT, ()),
    "nothing": ({"memory.kv_cache": -GIB, "kv_cache.tokens": 0}, {}, NOTHING, ()),
    "graphs": ({"memory.graphs_estimated": 2 * GIB}, {}, SHORT, ()),
    "eager": ({"memory.graphs_estimated": 2 * GIB}, {"enforce-eager": True}, SHORT, ()),
    "draft": ({}, {"speculative-config": "{}"}, {}, ()),
    "sleep": ({}, {"enable-sleep-mode": True}, {"oom": {"requested": GIB, "free": 0.5 * GIB}}, ()),
    "connector": ({}, {"kv-transfer-config": "{}"}, {"oom": {"requested": GIB, "free": 0.5 * GIB}}, ()),
    "oom": ({}, {}, {"oom": {"requested": GIB, "free": 0.5 * GIB}}, ()),
    "swap": ({}, {"swap-space": 4}, {}, ()),
    "offload": ({}, {"cpu-offload-gb": 8}, {}, ()),
    "cut": ({}, {}, {"shutdown.requested": {}, "engine.dead_error": {}}, ()),
}


@pytest.mark.parametrize(
    ("remedy", "cause", "version", "key", "shown"),
    [
        ("fp8-kv-cache", "kv-cache-exhaustion", "0.32.0", "l4", True),
        ("fp8-kv-cache", "kv-cache-exhaustion", "0.32.0", "a100", False),
        ("fp8-kv-cache", "kv-cache-exhaustion", "0.32.0", "mixed", False),
        ("fp8-kv-cache", "kv-cache-exhaustion", "0.32.0", "", False),
        ("fp8-kv-cache", "kv-cache-exhaustion", "0.32.0", "fp8", False),
        ("fp8-kv-cache", "kv-cache-exhaustion", "0.8.0", "l4", False),
        ("remove-speculative-config", "kv-cache-exhaustion", "0.32.0", "draft", True),
        ("remove-speculative-config", "kv-cache-exhaustion", "0.32.0", "", False),
        ("auto-max-model-len", "startup-kv-too-small", "0.14.1", "short", True),
        ("auto-max-model-len", "startup-kv-too-small", "0.13.0", "short", False),
        ("auto-max-model-len", "startup-kv-too-small", None, "short", False),
        ("lower-max-model-len", "startup-kv-too-small", None, "short", True),
        ("lower-max-model-len", "startup-kv-too-small", "0.32.0", "nothing", False),
        ("smaller-cudagraphs", "startup-kv-too-small", "0.32.0", "graphs", True),
        ("smaller-cudagraphs", "startup-kv-too-small", "0.32.0", "eager", False),
        ("eager-frees-budget", "startup-kv-too-small", "0.32.0", "graphs", True),
        ("eager-frees-budget", "startup-kv-too-small", "0.32.0", "eager", False),
        ("expandable-segments", "allocator-fragmentation", "0.14.1", "oom", True),
        ("expandable-segments", "allocator-fragmentation", "0.14.1", "sleep", False),
        ("expandable-segments", "allocator-fragmentation", "0.32.0", "sleep", True),
        ("expandable-segments", "allocator-fragmentation", "0.32.0", "connector", False),
        ("expandable-segments", "allocator-fragmentation", "0.14.1", "connector", True),
        ("expandable-segments", "allocator-fragmentation", None, "connector", False),
        ("remove-cpu-offload", "engine-killed", "0.32.0", "offload", True),
        ("remove-cpu-offload", "engine-killed", "0.32.0", "", False),
        ("smaller-swap-space", "engine-killed", "0.10.2", "swap", False),
        ("drain-on-shutdown", "orderly-shutdown", "0.32.0", "cut", True),
        ("drain-on-shutdown", "orderly-shutdown", "0.17.1", "cut", False),
        ("drain-before-stop", "orderly-shutdown", "0.17.1", "cut", True),
        ("log-requests", "client-backpressure", "0.10.0", "", False),
        ("log-requests", "client-backpressure", "0.32.0", "", True),
    ],
)
def test_a_remedy_appears_where_it_helps_and_nowhere_else(remedy: str, cause: str, version: str | None, key: str, shown: bool) -> None:
    assert (remedy in names(version, cause, key)) is shown


def test_swap_space_is_only_ever_lowered_and_only_in_v0() -> None:
    assert "smaller-swap-space" in names("0.8.5", "engine-killed", "swap", "V0")
    assert [r.id for r in RULES.remedies if r.change and r.change.flag == "--swap-space"] == ["smaller-swap-space"]


def test_chunked_prefill_is_advised_to_v0_below_32k_only() -> None:
    def told(version: str, generation: str, length: int) -> bool:
        run = server(version, facts={**CARD, "config.max-model-len": length}, events=SHORT, generation=generation)
        case, evaluator = case_of(run)
        return "chunked-profile" in {a.remedy for a in advise(case, finding("startup-kv-too-small"), RULES, evaluator)}

    assert [told("0.8.5", "V0", 32768), told("0.8.5", "V0", 65536), told("0.8.5", "V1", 32768), told("0.3.3", "V0", 8192)] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("name", FIXTURES)
def test_a_problem_has_a_remedy(name: str) -> None:
    evaluator = evaluator_of(name)
    for judgement in ranked(list(judgements_of(name)), RULES):
        cause = next(c for c in RULES.causes if c.id == judgement.cause)
        if cause.remedies and judgement.outcome in ("confirmed", "likely") and judgement.severity != "info":
            assert advise(fixture(name), judgement, RULES, evaluator), judgement.cause


@pytest.mark.parametrize("name", FIXTURES)
def test_a_value_that_is_set_differs_from_the_one_in_force(name: str) -> None:
    found: list[Advice] = []
    for judgement in ranked(list(judgements_of(name)), RULES):
        found += advise(fixture(name), judgement, RULES, evaluator_of(name))
    assert [a for a in found if a.action == "set" and a.to is not None and a.from_ is not None and same(a.from_, a.to)] == []


def test_a_cpu_server_is_told_nothing_of_gpus() -> None:
    from pathlib import Path

    import vllm_doctor

    report = vllm_doctor.analyze(Path(__file__).resolve().parents[2] / "fixtures" / "startup-no-kv-memory-0.32")
    leading = report.findings[0]
    assert (leading.id, [r.id for r in leading.remedies]) == ("startup-free-memory-taken", ["smaller-cpu-cache"])
    assert "gpu.foreign" not in [m.signal for m in leading.missing]
    assert "other-process-on-gpu" not in [n.id for n in report.not_checked]


def advised(cause: str, **more: object) -> dict[str, Advice]:
    run = server(**more)  # type: ignore[arg-type]
    case, evaluator = case_of(run, cards("NVIDIA GeForce RTX 4090"))
    return {a.remedy: a for a in advise(case, finding(cause), RULES, evaluator)}


FAILED: dict[str, Scalar] = {**CARD, "model.name": "Qwen/Qwen2.5-7B-Instruct", "config.max-model-len": 32768}


def test_a_start_that_failed_is_advised_only_what_lets_it_start() -> None:
    facts = {k: v for k, v in FAILED.items() if k != "kv_cache.tokens"}
    nothing = advised("startup-kv-too-small", facts={**facts, "memory.kv_cache": -GIB}, events={"startup.no_kv_memory": {}})
    assert "fp8-kv-cache" not in nothing  # twice nothing is nothing
    assert "quantized-weights" in nothing
    needs = 32768 * 56 * 1024
    for share, shown in ((0.3, False), (0.7, True)):
        event = {"needed": needs, "available": int(share * needs), "max_model_len": 32768}
        found = advised("startup-kv-too-small", facts={**facts, "memory.kv_cache": int(share * needs)}, events={"startup.kv_below_max_len": event})
        assert ("fp8-kv-cache" in found) is shown
        assert "lower-max-model-len" in found


def test_the_value_in_force_is_the_one_that_the_log_states() -> None:
    oom = {"oom": {"requested": 2 * GIB, "free": GIB, "total": 24 * GIB}}
    found = advised("runtime-activation-oom", facts={**CARD, "memory.utilization": 0.97}, events=oom)
    assert (found["lower-gpu-memory-utilization"].from_, found["lower-gpu-memory-utilization"].to) == (0.97, 0.9)


def test_an_effect_is_measured_where_the_log_states_both_ends() -> None:
    event: dict[str, Scalar] = {"needed": 4 * GIB, "available": GIB, "max_model_len": 32768, "estimated_length": 7936}
    told = {
        e.quantity: e
        for e in advised("startup-kv-too-small", facts={"device.type": "cuda"}, events={"startup.kv_below_max_len": event})[
            "lower-max-model-len"
        ].effect
    }
    assert (told["request.max_length"].before, told["request.max_length"].after, told["request.max_length"].basis) == (32768, 7936, "measured")
    event["estimated_length"] = 8190  # rounded down to what people type, it is no figure of the log's
    rounded = advised("startup-kv-too-small", facts={"device.type": "cuda"}, events={"startup.kv_below_max_len": event})["lower-max-model-len"]
    assert [(e.after, e.basis) for e in rounded.effect if e.quantity == "request.max_length"] == [(7936, "model")]
    forced: dict[str, Scalar] = {"kv_cache.tokens": 5120, "config.num-gpu-blocks-override": 160, "kv_cache.blocks_by_budget": 16384}
    found = advised("kv-cache-exhaustion", facts={**CARD, **forced}, flags={"num-gpu-blocks-override": 160})["remove-blocks-override"].effect
    assert [(e.quantity, e.basis) for e in found][:2] == [("kv_cache.tokens", "measured"), ("requests.fit.max_model_len", "model")]


def test_texts_about_v0_are_for_v0() -> None:
    def against_swap(generation: str | None) -> list[str]:
        run = server("0.10.2" if generation else None, facts=CARD, generation=generation)
        case, evaluator = case_of(run)
        found = [finding(c.id) for c in RULES.causes if any(i.flag == "--swap-space" for i in c.not_remedies)]
        told = [item for f in found for item, _ in not_helpful(case, f, RULES, evaluator) if item.flag == "--swap-space"]
        return sorted({item.because.en for item in told})

    assert against_swap("V1")
    assert all("V1" in text for text in against_swap("V1"))
    assert against_swap("V0")
    assert not any("V1" in text for text in against_swap("V0"))
    assert against_swap(None)
    assert not any("V1" in text for text in against_swap(None))
    short = {"startup.kv_below_max_len": {"max_model_len": 32768, "capacity": 20_000}}
    assert {n for n in advised("startup-kv-too-small", version="0.8.5", generation="V0", events=short) if "max-model-len" in n} == {
        "lower-max-model-len-v0"
    }
    assert "lower-max-model-len" in advised("startup-kv-too-small", version=None, generation=None, events=short)
