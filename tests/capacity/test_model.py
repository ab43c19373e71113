"""The memory model: bytes per token and blocks against figures that vLLM printed, generations, weights, and what must hold for any set-up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vllm_doctor.capacity import kv_bytes_per_token, requests_that_fit, size
from vllm_doctor.capacity.generations import engine_of, generation_of
from vllm_doctor.capacity.setup import GIB, Budget, Setup
from vllm_doctor.capacity.weights import quant_of, weight_bytes
from vllm_doctor.ruleset.load import load_knowledge
from vllm_doctor.ruleset.schema import Model

KNOWN = {m.name: m for m in load_knowledge().models}
LLAMA, QWEN = KNOWN["meta-llama/Llama-3.1-8B-Instruct"], KNOWN["Qwen/Qwen2.5-7B-Instruct"]
VERSIONS = ("0.2.7", "0.4.1", "0.6.4", "0.7.3", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.17.1", "0.19.1", "0.20.0", "0.24.0", "0.28.0", "0.33.0")


def shape(layers: int = 32, heads: int = 32, kv_heads: int = 8, size_: int = 128, **more: object) -> Model:
    fields: dict[str, object] = {"name": "m", "source": "test", "confidence": "test", "architecture": "LlamaForCausalLM", "vocab_size": 32000}
    fields |= {"num_hidden_layers": layers, "hidden_size": heads * size_, "intermediate_size": 3 * heads * size_, "num_attention_heads": heads}
    fields |= {"num_key_value_heads": kv_heads, "head_dim": size_, "max_position_embeddings": 32768}
    return Model(**{**fields, **more})  # type: ignore[arg-type]


def known(version: str, total: float, used: float, weights: float, activation: float, other: float, **more: object) -> Budget:
    parts = {"weights": round(weights * GIB), "activation": round(activation * GIB), "non_torch": round(other * GIB)}
    fields: dict[str, object] = {"model": QWEN, **more}
    return size(Setup(total_bytes=round(total * GIB), version=version, gpu_memory_utilization=used, known=parts, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "kib"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", {}, 128),
        ("Qwen/Qwen2.5-7B-Instruct", {}, 56),
        ("Qwen/Qwen2.5-7B-Instruct", {"tensor_parallel_size": 2}, 28),
        ("Qwen/Qwen2.5-7B-Instruct", {"tensor_parallel_size": 8}, 14),  # 4 heads on 8 GPUs: one each, replicated
        ("Qwen/Qwen2.5-7B-Instruct", {"kv_cache_dtype": "fp8"}, 28),
        ("Qwen/Qwen2.5-7B-Instruct", {"pipeline_parallel_size": 2}, 28),
        ("Qwen/Qwen2.5-7B-Instruct", {"decode_context_parallel_size": 2}, 28),
        ("facebook/opt-125m", {}, 36),
        ("microsoft/phi-4", {}, 200),
        ("deepseek-ai/DeepSeek-R1", {}, 61 * 576 * 2 / 1024),
        ("deepseek-ai/DeepSeek-R1", {"tensor_parallel_size": 16}, 61 * 576 * 2 / 1024),  # the latent is on every GPU
        ("deepseek-ai/DeepSeek-R1", {"kv_cache_dtype": "fp8_ds_mla"}, 61 * 656 / 1024),
        ("deepseek-ai/DeepSeek-R1", {"version": "0.6.6"}, 61 * 128 * 2 * 192 * 2 / 1024),  # no latent cache yet
        ("zai-org/GLM-5", {}, 78 * (576 * 2 + 132) / 1024),  # and the index of its sparse attention: 97.8 KiB in a log of 0.19.1
    ],
)
def test_bytes_per_token_are_those_of_the_shape(name: str, options: dict[str, object], kib: float) -> None:
    assert kv_bytes_per_token(KNOWN[name], **options) == kib * 1024  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "name", "total", "used", "parts", "tokens"),
    [
        ("0.8.1 (V0)", "Qwen/Qwen2.5-7B-Instruct", 21.99, 0.9, (14.2487, 1.43, 0.06), 75856),
        ("0.9.1 (V0)", "Qwen/Qwen2-Audio-7B-Instruct", 79.19, 0.9, (15.6455, 0.51, 0.0), 112864),
        ("0.7.3 (V0)", "microsoft/phi-4", 79.15, 0.7, (8.63, 1.16, 0.09), 237040),
    ],
)
def test_with_the_parts_known_tokens_are_within_1_percent_of_the_logs(
    version: str, name: str, total: float, used: float, parts: tuple[float, float, float], tokens: int
) -> None:
    assert known(version, total, used, *parts, model=KNOWN[name]).kv_tokens == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("version", "engine", "name"),
    [
        ("0.2.7", "V0", "V0-a"), ("0.3.3", "V0", "V0-b"), ("0.6.3.post1", "V0", "V0-b"), ("0.6.4.post1", "V0", "V0-b′"), ("0.8.5", "V0", "V0-c"),
        ("0.8.5", "V1", "V1-a"), ("0.9.0.1", "V1", "V1-a"), ("0.9.1", "V1", "V1-b"), ("0.17.1", "V1", "V1-b"), ("0.18.1", "V1", "V1-c"),
        ("0.20.0", "V1", "V1-d"), ("v0.26.0+cu129", "V1", "V1-d"), ("0.28.0", "V1", "V1-e"), ("0.99", "V1", "V1-e"), (None, "V1", "V1-e"),
    ],
)  # fmt: skip
def test_a_version_has_its_formula(version: str | None, engine: str, name: str) -> None:
    assert generation_of(version, engine).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "options", "engine"),
    [
        ("0.7.3", {}, "V0"), ("0.8.5", {}, "V1"), ("0.8.1", {"kv_cache_dtype": "fp8"}, "V0"), ("0.8.5", {"kv_cache_dtype": "fp8"}, "V1"),
        ("0.10.2", {"device": "cpu"}, "V1"), ("0.8.5", {"device": "cpu"}, "V0"), ("0.11.0", {}, "V1"), ("0.7.0 (V1)", {}, "V1"), (None, {}, "V1"),
        ("0.9.0", {"engine_generation": "V0"}, "V0"),
    ],
)  # fmt: skip
def test_the_engine_is_what_the_version_chooses(version: str | None, options: dict[str, object], engine: str) -> None:
    assert engine_of(Setup(model=QWEN, total_bytes=24 * GIB, version=version, **options)) == engine  # type: ignore[arg-type]


def test_graphs_are_subtracted_from_0_20_and_not_before() -> None:
    setup = Setup(
        model=QWEN, total_bytes=24 * GIB, gpu_memory_utilization=0.9, known={"weights": GIB, "activation": GIB, "non_torch": 0, "graphs": GIB}
    )
    budget = int(24 * GIB * 0.9)
    kv = {v: size(structs.replace(setup, version=v)).kv.bytes for v in ("0.19.1", "0.20.0", "0.28.0", "0.31.0")}
    without, subtracted = budget - 2 * GIB + 1, budget - 3 * GIB + 1  # 0.14 and later round up
    # a dense model gets the second model runner from 0.25.1, which subtracts an estimate only from 0.31
    assert kv == {"0.19.1": without, "0.20.0": subtracted, "0.28.0": without, "0.31.0": subtracted}


def test_a_first_start_holds_a_copy_of_the_embedding() -> None:
    """Qwen3-8B on a 24 GB card, 0.27.1: 1.18 GiB at the first start and 0.19 at the second, 1.46 GiB for a 32B model; none without compilation."""
    setup = Setup(model=KNOWN["Qwen/Qwen3-8B"], total_bytes=24 * GIB, version="0.27.1", max_model_len=8192)
    peak = size(setup).activation
    assert peak.bytes / GIB == pytest.approx(1.18, abs=0.03)
    assert (peak.low or 0) / GIB < 0.22
    large = structs.replace(setup, model=KNOWN["Qwen/Qwen3-32B"], quantization="awq")
    assert size(large).activation.bytes / GIB == pytest.approx(1.46, abs=0.03)
    assert [size(structs.replace(setup, **o)).activation.bytes / GIB < 0.3 for o in ({"enforce_eager": True}, {"version": "0.26.0"})] == [True, True]


def test_links_between_gpus_decide_what_nccl_takes() -> None:
    """Outside PyTorch on 0.7.1 to 0.8.4: 2.1 GiB on eight A100 over NVLink, 0.2 to 0.36 GiB over PCIe; RCCL 5.1 and 5.5 GiB on eight MI300X."""
    cards = {g.name: g for g in load_knowledge().gpus}

    def outside(card: str, ways: int, version: str, device: str = "cuda") -> float:
        total = round(cards[card].visible_gib[0] * GIB)
        setup = Setup(
            model=LLAMA, total_bytes=total, gpu=cards[card], version=version, tensor_parallel_size=ways, engine_generation="V0", device=device
        )
        return size(setup).non_torch.bytes / GIB

    assert outside("A100 SXM4 40GB", 8, "0.8.4") == pytest.approx(2.1, abs=0.1)
    assert outside("L40S 48GB", 8, "0.8.4") == pytest.approx(0.36, abs=0.1)
    assert outside("RTX 2080 Ti 11GB", 4, "0.8.5") == pytest.approx(0.2, abs=0.1)
    assert outside("MI300X 192GB", 8, "0.6.3", "rocm") == pytest.approx(5.3, abs=0.3)


@pytest.mark.parametrize("card", ["GB10 (DGX Spark) 128GB unified", "Jetson AGX Thor 128GB unified"])
def test_gpus_of_unified_memory_are_small_to_vllm(card: str) -> None:
    gpu = next(g for g in load_knowledge().gpus if g.name == card)
    budget = size(Setup(model=LLAMA, total_bytes=119 * GIB, gpu=gpu, version="0.27.1"))
    assert (budget.max_num_seqs, budget.max_num_batched_tokens) == (256, 2048)


def test_without_graphs_none_are_subtracted() -> None:
    eager = size(Setup(model=QWEN, total_bytes=24 * GIB, version="0.21.0", enforce_eager=True))
    assert (eager.graphs.bytes, eager.graphs_in_budget) == (0, False)


def test_other_processes_cost_pool_only_where_the_formula_charges_them() -> None:
    def lost(version: str) -> int:
        setup = Setup(model=QWEN, total_bytes=24 * GIB, version=version, engine_generation="V1" if version > "0.7" else None)
        return size(setup).kv.bytes - size(structs.replace(setup, outside_bytes=GIB)).kv.bytes

    assert {v: lost(v) for v in ("0.2.7", "0.4.1", "0.8.5", "0.9.1", "0.28.0")} == {"0.2.7": GIB, "0.4.1": 0, "0.8.5": GIB, "0.9.1": 0, "0.28.0": 0}


def test_kv_cache_memory_bytes_are_taken_verbatim() -> None:
    budget = size(Setup(model=LLAMA, total_bytes=80 * GIB, version="0.11.0", kv_cache_memory_bytes=20 * GIB))
    assert (budget.generation, budget.kv.bytes, budget.blocks, budget.kv_tokens) == ("manual", 20 * GIB, 10240, 163840)


def test_the_null_block_is_no_room_for_requests() -> None:
    setup = Setup(model=LLAMA, total_bytes=80 * GIB, version="0.11.0", kv_cache_memory_bytes=20 * GIB, max_model_len=16384)
    budget = size(setup)
    assert (budget.max_concurrency, requests_that_fit(budget, setup, 16384)) == (10.0, 10239 / 1024)


def test_an_override_decides_the_blocks() -> None:
    budget = size(Setup(model=LLAMA, total_bytes=80 * GIB, version="0.10.2", num_gpu_blocks_override=16, max_model_len=2048))
    assert (budget.blocks, budget.kv_tokens, budget.starts) == (16, 256, False)


@pytest.mark.parametrize("version", ["0.10.2", "0.20.2"])
def test_sliding_windows_share_the_pool_in_groups(version: str) -> None:
    """8 full and 24 sliding layers make groups of 8 layers, one full and three sliding; a window holds (1023 + 2048) / 16 + 1 blocks."""
    model = shape(sliding_window=1024, attn_layers_full=8, attn_layers_sliding=24, max_position_embeddings=131072)
    budget = size(Setup(model=model, total_bytes=40 * GIB, version=version, kv_cache_memory_bytes=20 * GIB, max_num_batched_tokens=2048))
    blocks, per_request = 20 * GIB // (16 * 8 * 2 * 128 * 2 * 8), 131072 // 16 + 3 * 193
    concurrency = blocks / per_request
    tokens = blocks // 4 * 16 if version == "0.10.2" else int(concurrency * 131072)
    assert (budget.blocks, budget.max_concurrency, budget.kv_tokens) == (blocks, concurrency, tokens)


def test_without_the_hybrid_manager_windows_hold_everything() -> None:
    model = shape(sliding_window=1024, attn_layers_full=8, attn_layers_sliding=24)
    setup = Setup(model=model, total_bytes=40 * GIB, version="0.10.2", kv_cache_memory_bytes=4 * GIB, disable_hybrid_kv_cache_manager=True)
    assert size(setup).kv_tokens == 4 * GIB // (128 * 1024)


def test_states_take_a_block_per_group_and_raise_the_block_size() -> None:
    model = KNOWN["Qwen/Qwen3-Next-80B-A3B-Instruct"]
    setup = Setup(model=model, total_bytes=80 * GIB, version="0.24.0", kv_cache_memory_bytes=12 * GIB, max_model_len=65536, quantization="fp8")
    budget = size(setup)
    state = (model.conv_state_bytes_per_seq or 0) + (model.ssm_state_bytes_per_seq or 0)
    assert budget.block_size * 2048 >= state / 36 > (budget.block_size - 16) * 2048  # 2 KiB per token and attention layer
    per_request = -(-65536 // budget.block_size) + 3
    assert budget.max_concurrency == budget.blocks / per_request


@pytest.mark.parametrize(
    ("text", "method", "bits"),
    [
        ("awq", "awq", 4.156), ("AWQ", "awq", 4.156), ("GPTQ-Int4", "gptq", 4.156), ("GPTQ-Int8", "gptq-int8", 8.156),
        ("compressed-tensors w8a8", "w8a8", 8.0),
        ("FP8 dynamic", "fp8", 8.0), ("fbgemm_fp8", "fbgemm_fp8", 8.0), ("mxfp4 experts + bf16", "mxfp4", 4.25),
        ("deepseek_v4_fp8", "fp4-experts", 4.25),
        ("bitsandbytes", "bitsandbytes", 4.5), ("modelopt nvfp4", "modelopt_fp4", 4.5), ("mxfp4", "mxfp4", 4.25),
        ("Q4_K_M", "q4_k_m", 4.85), ("W4A16", "gptq", 4.156), ("experts_int8", "experts_int8", 8.0),
    ],
)  # fmt: skip
def test_quantisation_is_known_as_people_write_it(text: str, method: str, bits: float) -> None:
    assert quant_of(text) == (method, bits)


@pytest.mark.parametrize("text", [None, "", "None", "auto", "bfloat16"])
def test_no_quantisation_is_none(text: str | None) -> None:
    assert quant_of(text) is None


@pytest.mark.parametrize(
    ("name", "options", "gib", "rel"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", {}, 14.9889, 0.002),
        ("meta-llama/Llama-3.1-8B-Instruct", {"tensor_parallel_size": 2}, 7.51, 0.005),
        ("meta-llama/Llama-3.1-8B-Instruct", {"pipeline_parallel_size": 4}, 4.26, 0.01),
        ("meta-llama/Llama-3.1-8B-Instruct", {"dtype": "float32"}, 29.98, 0.005),
        ("meta-llama/Llama-3.1-8B-Instruct", {"quantization": "fp8"}, 8.49, 0.005),
        ("meta-llama/Llama-3.1-70B-Instruct", {"tensor_parallel_size": 8}, 16.4605, 0.005),
        ("meta-llama/Llama-3.3-70B-Instruct", {"quantization": "fp8", "tensor_parallel_size": 2}, 33.88, 0.005),
        ("Qwen/Qwen2.5-7B-Instruct", {"tensor_parallel_size": 2}, 7.1217, 0.005),
        ("Qwen/Qwen2.5-7B-Instruct", {"quantization": "awq"}, 5.2032, 0.005),
        ("microsoft/phi-4", {"quantization": "bitsandbytes"}, 8.63, 0.05),
        ("deepseek-ai/DeepSeek-R1", {"tensor_parallel_size": 16}, 40.3174, 0.01),
        ("deepseek-ai/DeepSeek-R1", {"tensor_parallel_size": 8, "version": "0.7.3"}, 83.88, 0.01),  # with the absorbed products
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", {"tensor_parallel_size": 8, "version": "0.7.1"}, 3.97, 0.01),
        ("zai-org/GLM-5.2", {"tensor_parallel_size": 4, "quantization": "modelopt nvfp4"}, 106.69, 0.01),
        ("Qwen/Qwen3.6-35B-A3B", {"quantization": "nvfp4"}, 21.86, 0.01),  # delta nets at 16 bits
        ("Qwen/Qwen3.8-27B", {"tensor_parallel_size": 2, "quantization": "nvfp4"}, 12.02, 0.09),  # served without its tower
        ("google/gemma-4-31B-it", {"quantization": "modelopt nvfp4"}, 31.18, 0.03),  # attention at 16 bits
        ("meta-llama/Llama-3.1-405B-Instruct", {"tensor_parallel_size": 8, "quantization": "fbgemm_fp8"}, 57.75, 0.03),  # the same
        ("moonshotai/Kimi-K2.5", {"tensor_parallel_size": 8}, 554.32 / 8, 0.03),  # experts in groups of 32, all else at 16 bits
        ("Qwen/Qwen3-32B", {"quantization": "mxfp4"}, 18.6, 0.06),  # without experts everything is in four bits
        ("Qwen/Qwen3-32B", {"quantization": "nvfp4"}, 19.53, 0.03),
        ("google/gemma-4-26B-A4B-it", {"quantization": "modelopt nvfp4"}, 17.89, 0.03),  # experts only: NVIDIA's recipe
        ("google/gemma-4-26B-A4B-it", {"quantization": "nvfp4"}, 15.77, 0.03),
        ("google/gemma-4-E4B-it", {"quantization": "w4a16"}, 9.81, 0.05),  # the embeddings of every layer stay at 16 bits
        ("deepseek-ai/DeepSeek-V4-Flash", {"tensor_parallel_size": 2, "quantization": "deepseek_v4_fp8"}, 75.6, 0.02),
        ("openai/gpt-oss-20b", {}, 13.47, 0.005),
        ("facebook/opt-125m", {}, 0.2389, 0.03),
    ],
)
def test_weights_are_those_of_loading_lines(name: str, options: dict[str, object], gib: float, rel: float) -> None:
    setup = structs.replace(Setup(model=KNOWN[name], total_bytes=80 * GIB, version="0.19.0"), **options)
    assert weight_bytes(setup) / GIB == pytest.approx(gib, rel=rel)


# -- what must hold for any set-up

SHAPES = st.builds(
    shape,
    layers=st.integers(1, 80),
    heads=st.sampled_from([8, 16, 32, 64]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    size_=st.sampled_from([64, 128, 256]),
)
SETUPS = st.builds(
    Setup,
    model=SHAPES,
    total_bytes=st.integers(4 * GIB, 200 * GIB),
    version=st.sampled_from(VERSIONS),
    gpu_memory_utilization=st.floats(0.3, 0.98),
    tensor_parallel_size=st.sampled_from([1, 2, 4]),
    max_model_len=st.integers(16, 40000),
    enforce_eager=st.booleans(),
    outside_bytes=st.integers(0, 2 * GIB),
)


@given(SETUPS)
def test_parts_and_what_is_left_sum_to_the_total(setup: Setup) -> None:
    b = size(setup)
    assert b.outside.bytes + b.weights.bytes + b.activation.bytes + b.non_torch.bytes + b.graphs.bytes + b.kv.bytes + b.headroom == b.total


@given(SETUPS, st.integers(1, 8 * GIB), st.integers(1, 8 * GIB))
def test_tokens_fall_with_weights(setup: Setup, weights: int, more: int) -> None:
    light, heavy = (size(structs.replace(setup, known={"weights": w})) for w in (weights, weights + more))
    assert heavy.kv.bytes == light.kv.bytes - more
    assert heavy.kv_tokens <= light.kv_tokens


@given(SETUPS, st.floats(0.001, 0.02))
def test_tokens_rise_with_utilization(setup: Setup, more: float) -> None:
    low = size(setup)
    high = size(structs.replace(setup, gpu_memory_utilization=(setup.gpu_memory_utilization or 0) + more))
    assert high.kv.bytes > low.kv.bytes
    assert high.kv_tokens >= low.kv_tokens


@given(st.sampled_from([1, 2, 4]), st.integers(1, 2000), st.sampled_from(VERSIONS))
def test_twice_the_kv_heads_halve_the_tokens(heads: int, blocks: int, version: str) -> None:
    def tokens(kv_heads: int) -> int:
        one = shape(kv_heads=kv_heads)
        memory = blocks * 16 * 2 * 32 * 2 * heads * 128 * 2  # so many blocks of the shape with twice the heads
        return size(Setup(model=one, total_bytes=80 * GIB, version=version, kv_cache_memory_bytes=memory, max_model_len=16)).kv_tokens

    assert tokens(heads) == 2 * tokens(2 * heads)


@given(SETUPS, st.integers(1, 40000))
def test_requests_that_fit_never_hold_more_tokens_than_the_pool(setup: Setup, tokens: int) -> None:
    budget = size(setup)
    if budget.blocks:
        assert requests_that_fit(budget, setup, tokens) * tokens <= budget.blocks * budget.block_size * (1 + 1e-9)


@given(SETUPS)
def test_the_estimate_lies_within_its_range(setup: Setup) -> None:
    budget = size(setup)
    for amount in (*budget.parts.values(), budget.kv):
        low, high = amount.span
        assert low <= amount.bytes <= high
