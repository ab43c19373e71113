"""Nothing that a log, a name or a config.json can say makes the memory model raise."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_doctor.capacity.config_json import ConfigInvalid, model_from_config
from vllm_doctor.capacity.kv import kv_bytes_per_token
from vllm_doctor.capacity.ledger import WORKER_FACTS, ledger
from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.capacity.size import size
from vllm_doctor.capacity.told import memory_reports
from vllm_doctor.model.case import Case, Run
from vllm_doctor.model.observations import Fact, Ref
from vllm_doctor.narrate import line
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()
NAMES = (
    *WORKER_FACTS, "memory.budget", "memory.utilization", "memory.free_at_start", "memory.graphs_estimated", "memory.kv_cache_requested",
    "kv_cache.tokens", "kv_cache.blocks", "kv_cache.block_size", "kv_cache.max_concurrency", "kv_cache.concurrency_length", "vllm.version",
    "model.name", "device.type", "config.max-model-len", "config.tensor-parallel-size", "config.block-size", "config.pipeline-parallel-size",
    "flag.gpu-memory-utilization", "flag.max-num-seqs", "flag.max-num-batched-tokens", "flag.speculative-config", "config.kv-cache-dtype",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        [0, -1, 0.0, 1, 2, 16, 10**30, float("inf"), float("-inf"), float("nan"), "", "auto", "8k", "{}", "[1]", True, "Qwen2.5-7B", "0.8.5"]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
)
FACTS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES, st.sampled_from([None, "Worker_TP0", "Worker_TP1", "EngineCore_DP0"])), max_size=14)


@settings(deadline=None)
@given(FACTS, st.booleans())
def test_any_facts_give_a_ledger_or_none(facts: list[tuple[str, str | float | int | bool, str | None]], banner: bool) -> None:
    stated = tuple(Fact(n, v, Ref("log", i, ""), process=p) for i, (n, v, p) in enumerate(facts, 1))
    run = Run("r1", facts=stated, has_log=True, has_banner=banner)
    found = ledger(run, Case(runs=(run,)), KNOWLEDGE)
    if found is not None:
        for memory in memory_reports(found, line):
            assert memory.run == "r1"


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_name_or_none(text: str) -> None:
    find_model(text, KNOWLEDGE)
    find_gpu(text, KNOWLEDGE)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)), lambda c: st.lists(c, max_size=3), max_leaves=4
)
KEYS = st.sampled_from(
    ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "sliding_window", "layer_types",
     "text_config", "quantization_config", "num_experts", "kv_lora_rank", "architectures", "full_attention_interval", "mamba_d_state", "torch_dtype",
     "hybrid_override_pattern", "layers_block_type", "attn_type_list", "linear_attn_config", "block_configs", "rope_scaling", "vision_config",
     "audio_config", "thinker_config", "sliding_window_pattern", "global_head_dim", "mamba_d_ssm", "mlp_only_layers", "moe_layer_freq",
     "moe_intermediate_size", "num_kv_shared_layers", "attn_config", "ffn_config", "multi_query", "mamba_n_heads"]
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=10))
def test_any_config_is_a_shape_or_refused(config: dict[str, object]) -> None:
    with suppress(ConfigInvalid):
        model = model_from_config(json.dumps({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, **config}))
        assert kv_bytes_per_token(model) >= 0
        size(Setup(model=model, total_bytes=24 * GIB))
