"""Conditions of remedies that ask for more than a signal: hardware, the engine's way of working, what is set. `where` names them.

Each answers True, False or None (the case does not say); a remedy is shown only where all its conditions are True.
"""

from __future__ import annotations

from collections.abc import Callable

from ..capacity.defaults import LONG_CONTEXT
from ..capacity.names import find_gpu
from ..capacity.observed import option, positive, setup_of, truth, whole
from ..capacity.setup import capability_of
from ..capacity.size import size
from ..model.case import Case, Known, Run
from ..model.figures import figure
from ..model.judgement import Judgement
from ..ruleset.load import load_knowledge
from ..ruleset.schema import Model
from ..signals.evaluate import Evaluator
from ..versions import generation, parse, satisfies
from .figures import graphs_counted, look
from .options import switched_on
from .servers import starts

Condition = Callable[[Case, Run, Judgement, Evaluator], bool | None]

FP8_CAPABILITY = 8.9
"""First compute capability with native FP8 (Ada): A100 and older have none (rules/knowledge/gpus.yaml)."""


def fp8_hardware(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Do all GPUs that were seen compute in FP8? None where no GPU was named, or one that nobody knows."""
    names = {g.name for g in case.gpus if g.name}
    if not names:
        return None
    answers: set[bool | None] = set()
    for name in names:
        capability = capability_of(find_gpu(name, load_knowledge()).gpu)
        answers.add(None if capability is None else capability >= FP8_CAPABILITY)
    return False if False in answers else None if None in answers else True


def sixteen_bit_cache(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the KV cache in the model's own 16-bit type?"""
    return str(option(run, "kv-cache-dtype") or "auto").lower() in ("auto", "bfloat16", "float16", "half")


def pool_by_budget(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the pool what the budget leaves? Not where the number of blocks or the bytes are forced."""
    return not (whole(option(run, "num-gpu-blocks-override")) or whole(option(run, "kv-cache-memory-bytes")))


def pool_in_bytes(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the pool given in bytes, and not as a number of blocks? Then the share of the card has no say."""
    return bool(whole(option(run, "kv-cache-memory-bytes"))) and not whole(option(run, "num-gpu-blocks-override"))


def some_pool(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Was there anything left for a pool? Twice nothing is nothing."""
    return not run.events_of("startup.no_kv_memory")


def shorter_length_helps(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Does a shorter max-model-len help? Where there is a pool and one request does not fit in it; where nothing was left for a pool only
    if the profile run held a whole prompt (V0 without chunks)."""
    if run.events_of("startup.kv_below_max_len") or not run.events_of("startup.no_kv_memory"):
        return True
    return unchunked(case, run, finding, evaluator)


def unchunked(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """V0 with whole prompts in a step: chunked prefill was off unless asked for, up to 32k of max-model-len."""
    own = generation(run)
    if own == "V1":
        return False
    stated = option(run, "enable-chunked-prefill")
    if stated is not None:
        return str(stated).lower() == "false" and own == "V0"
    engine = finding.engine if finding.engine is not None else run.engines[0]
    length = evaluator.value("model.max_len", run, engine, finding.window)
    if own is None or parse(run.version) is None or not isinstance(length, Known):
        return None
    return length.value <= LONG_CONTEXT or satisfies(run.version, "<0.5.5") is True


def chunked(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """May a step hold less than a whole prompt? Only then can the token budget be below max-model-len."""
    answer = unchunked(case, run, finding, evaluator)
    if answer is not None:
        return not answer
    # V1 chunks always, but for a user who switched it off
    return None if generation(run) != "V1" else str(option(run, "enable-chunked-prefill")).lower() != "false"


def not_unchunked(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is nothing known of steps that hold whole prompts?"""
    return unchunked(case, run, finding, evaluator) is not True


def not_v0(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the engine V1, or not known?"""
    return generation(run) != "V0"


def not_v1(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the engine V0, or not known?"""
    return generation(run) != "V1"


def graphs_in_budget(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Do CUDA graphs take from the KV pool? From 0.20.0, unless they are off."""
    if switched_on(run.flags().get("enforce-eager")) or (run.text("device.type") or "cuda") == "cpu":
        return False
    return graphs_counted(run)


def graphs_outside_budget(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Do CUDA graphs come on top of the budget? Before 0.20.0, unless they are off."""
    if switched_on(run.flags().get("enforce-eager")) or (run.text("device.type") or "cuda") == "cpu":
        return False
    counted = graphs_counted(run)
    return None if counted is None else not counted


def graphs_follow_slots(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Are graphs captured only as far as max-num-seqs goes? V0, and V1 from 0.10.0 (before, up to 512 whatever it was)."""
    own = generation(run)
    if own == "V0":
        return True
    return satisfies(run.version, ">=0.10.0") if own == "V1" else None


def weights_exceed_free(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Do the weights alone need more than was free at the start? None where the model's shape or what was free is not known."""
    free = min(
        (v for e in run.events_of("startup.free_below_budget") if (v := figure(e.values.get("startup.free_below_budget.free"))) is not None),
        default=None,
    )
    shape = evaluator.memo.get("model")
    setup = None if free is None else setup_of(run, case, load_knowledge(), shape if isinstance(shape, Model) else None)
    if setup is None or free is None:
        return None
    return size(setup).parts["weights"].bytes > free


def spare_gpus(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Are there more GPUs than the server uses? Only a GPU dump can tell."""
    if not case.gpus:
        return None
    engine = finding.engine if finding.engine is not None else run.engines[0]
    used = 1.0
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        value = evaluator.setting(name, run, engine, finding.window)
        used *= value.value if isinstance(value, Known) else 1.0
    return len(case.gpus) >= 2 * used


def several_gpus(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Do the ranks of this server talk to each other over links between GPUs?"""
    ranks = [positive(option(run, name)) for name in ("tensor-parallel-size", "pipeline-parallel-size")]
    if any(r is not None and r > 1 for r in ranks):
        return True
    return False if ranks[0] == 1 or run.has_banner else None


def experts_in_replicas(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Does every data-parallel replica hold all experts of a mixture-of-experts model?"""
    servers = look(case, run, finding, evaluator).servers
    if not servers:
        return None
    setups = [s.setup for s in servers]
    return all(s.model.num_experts and s.data_parallel_size > 1 and not s.enable_expert_parallel for s in setups)


def adapters_on(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Does the server take LoRA adapters?"""
    return truth(option(run, "enable-lora")) is True


def mostly_deferred(run: Run, finding: Judgement, evaluator: Evaluator) -> bool:
    """Does more than half of the queue wait for something else than a slot or a block: an adapter, a transfer, a grammar? Counted since 0.20."""
    engine = finding.engine if finding.engine is not None else run.engines[0]
    deferred, waiting = (evaluator.value(f"requests.{n}.max", run, engine, finding.window) for n in ("deferred", "waiting"))
    return isinstance(deferred, Known) and isinstance(waiting, Known) and 2 * deferred.value > waiting.value > 0


def takes_media(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Has the model an encoder for images or video? None where the model is not known."""
    servers = look(case, run, finding, evaluator).servers
    return all(s.setup.model.vision_params_m for s in servers) if servers else None


def prefix_caching_off(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is prefix caching off? Told, or by V0's default."""
    stated = truth(option(run, "enable-prefix-caching"))
    if stated is not None:
        return not stated
    return True if generation(run) == "V0" and (run.has_banner or run.launch) else None


def server_known(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Does the memory model know the model's shape and the card?"""
    return bool(look(case, run, finding, evaluator).servers)


def server_unknown(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the model's shape or the card not known?"""
    return not look(case, run, finding, evaluator).servers


def rpc_timed_out(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Did V0's API server get no answer from its engine in time?"""
    return any("didn't reply within" in e.ref.text for e in run.events_of("engine.timeout"))


def iteration_timed_out(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Did a step of V0's asynchronous engine take longer than its limit?"""
    return any("Engine iteration timed out" in e.ref.text for e in run.events_of("engine.timeout"))


def before_serving(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Did memory run out in the start, as far as is known?"""
    return bool(run.events_of("startup.sampler_oom")) or not _count_known("oom.serving.count", run, finding, evaluator)


def after_start(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Did memory run out with a request, as far as is known?"""
    return not run.events_of("startup.sampler_oom") and not _count_known("oom.startup.count", run, finding, evaluator)


def _count_known(name: str, run: Run, finding: Judgement, evaluator: Evaluator) -> bool:
    value = evaluator.value(name, run, finding.engine if finding.engine is not None else run.engines[0], finding.window)
    return isinstance(value, Known) and value.value > 0


def nothing_given_back(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Did no other process release memory while vLLM measured its own? Where one did, none that holds any is to blame."""
    return not run.events_of("startup.memory_changed")


def shortage_of_unknown_owner(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Did the profile leave nothing, and neither the log nor the memory model says that the server itself took it? From 0.6.4 on, and before
    0.3.3, what others take meanwhile is charged to it."""
    rest = evaluator.value("startup.kv.rest", run, finding.engine if finding.engine is not None else run.engines[0], finding.window)
    if not run.events_of("startup.no_kv_memory") or isinstance(rest, Known) or satisfies(run.version, ">=0.3.3,<0.6.4") is True:
        return False
    servers = look(case, run, finding, evaluator).servers
    return not servers or any(starts(s) for s in servers)


def latency_face(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the finding about long steps, not about memory?"""
    return finding.variant != "oom"


def memory_ran_out(case: Case, run: Run, finding: Judgement, evaluator: Evaluator) -> bool | None:
    """Is the finding about an allocation that failed?"""
    return finding.variant != "latency" and run.event_count("oom") > 0


CONDITIONS: dict[str, Condition] = {
    "fp8_hardware": fp8_hardware,
    "sixteen_bit_cache": sixteen_bit_cache,
    "pool_by_budget": pool_by_budget,
    "pool_in_bytes": pool_in_bytes,
    "some_pool": some_pool,
    "shorter_length_helps": shorter_length_helps,
    "unchunked": unchunked,
    "chunked": chunked,
    "not_unchunked": not_unchunked,
    "not_v0": not_v0,
    "not_v1": not_v1,
    "graphs_in_budget": graphs_in_budget,
    "graphs_outside_budget": graphs_outside_budget,
    "graphs_follow_slots": graphs_follow_slots,
    "spare_gpus": spare_gpus,
    "weights_exceed_free": weights_exceed_free,
    "several_gpus": several_gpus,
    "experts_in_replicas": experts_in_replicas,
    "adapters_on": adapters_on,
    "takes_media": takes_media,
    "prefix_caching_off": prefix_caching_off,
    "server_known": server_known,
    "server_unknown": server_unknown,
    "rpc_timed_out": rpc_timed_out,
    "iteration_timed_out": iteration_timed_out,
    "before_serving": before_serving,
    "after_start": after_start,
    "nothing_given_back": nothing_given_back,
    "shortage_of_unknown_owner": shortage_of_unknown_owner,
    "latency_face": latency_face,
    "memory_ran_out": memory_ran_out,
}
"""The names that `where` in a remedy or a not-remedy may use."""
