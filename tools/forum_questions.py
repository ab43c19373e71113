#!/usr/bin/env python3
"""Writes docs/forum-questions.md: two forum threads answered with figures that `plan` gives, in both languages. `make docs` runs it; a test
keeps the page current."""

# ruff: noqa: E501  sentences of two languages
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from msgspec import structs  # noqa: E402  the checkout's own package, installed or not

from vllm_doctor.capacity.names import find_gpu, find_model  # noqa: E402
from vllm_doctor.capacity.plan import Plan, plan  # noqa: E402
from vllm_doctor.capacity.setup import GIB, Setup  # noqa: E402
from vllm_doctor.capacity.solving import Wish  # noqa: E402
from vllm_doctor.reports.plan import as_text  # noqa: E402
from vllm_doctor.ruleset.load import load_knowledge  # noqa: E402

PAGE = ROOT / "docs" / "forum-questions.md"
ONE = ("Qwen2.5-7B-Instruct", "RTX 4090", 20)
TWO = ("Qwen2.5-7B-Instruct-AWQ", "A100 80GB", 8)
VERSIONS = ("0.6.3", "0.10.2", "0.19.1", "0.33.0")


def setup(model: str, card: str) -> Setup:
    """Thread one's or two's server: a length of 8192, utilization 0.9."""
    knowledge = load_knowledge()
    found, gpu = find_model(model, knowledge), find_gpu(card, knowledge)
    assert found.model is not None
    assert gpu.total_gib is not None
    return Setup(
        model=found.model, quantization=found.quantization, gpu=gpu.gpu, total_bytes=round(gpu.total_gib * GIB), version="0.10.2",
        gpu_memory_utilization=0.9, max_model_len=8192,
    )  # fmt: skip


def figures(answer: Plan) -> tuple[str, str, str]:
    """(KV GiB, tokens, requests of full length) as text."""
    return f"{answer.budget.kv.bytes / GIB:.1f}", f"{answer.budget.kv_tokens:,}", f"{answer.fits['max_model_len'].requests:.1f}"


def answered(model: str, card: str, at_once: int, language: str) -> str:
    answer = plan(setup(model, card), Wish(at_once))
    label = answer.setup.gpu.name if answer.setup.gpu else card
    command = f'$ vllm-doctor plan --model {model} --gpu "{card}" --vllm-version 0.10.2 --max-model-len 8192 \\\n'
    command += f"      --gpu-memory-utilization 0.9 --concurrency {at_once}" + (" --lang zh" if language == "zh" else "")
    return "```\n" + command + "\n\n" + as_text([(label, answer)], model, Wish(at_once), language=language, width=100) + "```"


def by_version(model: str, card: str, head: str) -> list[str]:
    rows = [head, "|---|---|---|---|"]
    for version in VERSIONS:
        rows.append(f"| {version} | {' | '.join(figures(plan(structs.replace(setup(model, card), version=version))))} |")
    return rows


def changes(model: str, card: str, words: dict[str, str]) -> list[str]:
    """What each piece of advice does to the pool, calculated."""
    base = setup(model, card)
    tried: list[tuple[str, Setup]] = [
        (words["as is"], base),
        *((f"--gpu-memory-utilization {u:g}", structs.replace(base, gpu_memory_utilization=u)) for u in (0.7, 0.8, 0.95)),
        *((f"--max-num-seqs {n}", structs.replace(base, max_num_seqs=n)) for n in (8, 32)),
        ("--max-model-len 4096", structs.replace(base, max_model_len=4096)),
        ("--max-num-batched-tokens 8192", structs.replace(base, max_num_batched_tokens=8192)),
        ("--enforce-eager", structs.replace(base, enforce_eager=True)),
        ("--kv-cache-dtype fp8", structs.replace(base, kv_cache_dtype="fp8")),
        ("--tensor-parallel-size 2", structs.replace(base, tensor_parallel_size=2)),
        (f"AWQ {words['to']} GPTQ-Int8" if base.quantization else f"bf16 {words['to']} AWQ", structs.replace(base, quantization="gptq-int8" if base.quantization else "awq")),
    ]  # fmt: skip
    rows = [words["head"], "|---|---|---|---|"]
    for label, changed in tried:
        answer = plan(changed)
        kv, tokens, _requests = figures(answer)
        eight = plan(changed, Wish(None, 8192, 0)).fits["wanted"].requests
        rows.append(f"| `{label}` | {kv} | {tokens} | {eight:.1f} |")
    return rows


EN = {
    "title": "# Two forum questions, with the arithmetic that the answers skip",
    "intro": "Every figure below is calculated by `vllm-doctor plan`; `make docs` writes this page, and a test keeps it current. Both servers set "
    "`--max-model-len 8192 --gpu-memory-utilization 0.9`; without a version in the threads, 0.10.2 is shown, and others below.",
    "one": "## One: Qwen2.5-7B, one 24 GB card, out of memory at 20 concurrent requests",
    "one_text": "Twenty requests do not exhaust memory. One pool is sized at start, and never grows: what does not fit in it queues or is "
    "preempted. If CUDA did run out of memory, the allocation lay outside the budget: CUDA graphs (before 0.20.0), logits of `prompt_logprobs`, "
    "another process, fragmentation, a workspace made late. The OOM text names the sizes that tell: hand the log to `vllm-doctor analyze`.",
    "two": "## Two: the same model in AWQ, one A100 80 GB, out of memory at about 8 concurrent requests",
    "two_text": "Eight requests use a twentieth of the pool. Look elsewhere: another process on the card; the plain `awq` kernel, which unpacks a "
    "layer at full precision in steps of 256 tokens and more (before 0.5.5, or with `--quantization awq`); `prompt_logprobs`; fragmentation.",
    "versions": "The version matters, because each sizes the pool in its own way:",
    "head_versions": "| version | KV GiB | tokens | requests of 8,192 tokens |",
    "changes": "What the advice of the thread does to the pool (0.10.2):",
    "head": "| change | KV GiB | tokens | requests of 8,192 tokens |",
    "as is": "as it is",
    "to": "to",
    "claims": "## Claim by claim",
}
ZH = {
    "title": "# 两个论坛问题：补上回答里缺的计算",
    "intro": "下列数字都由 `vllm-doctor plan` 计算；本页由 `make docs` 生成，并有测试保证与程序一致。两台服务都使用 "
    "`--max-model-len 8192 --gpu-memory-utilization 0.9`；帖子没有写版本，这里以 0.10.2 为例，其他版本见下表。",
    "one": "## 问题一：Qwen2.5-7B，单张 24 GB 显卡，20 并发时显存不足",
    "one_text": "20 个请求不会耗尽显存。KV 缓存池在启动时一次分配，之后不再增长：放不下的请求排队或被抢占。如果真的出现 CUDA 显存不足，"
    "说明分配发生在预算之外：CUDA Graph（0.20.0 之前）、`prompt_logprobs` 的 logits、其他进程、碎片，或运行中才创建的工作区。"
    "OOM 报错里的各项大小能说明是哪一种：请把日志交给 `vllm-doctor analyze`。",
    "two": "## 问题二：同一模型的 AWQ 版本，单张 A100 80 GB，约 8 并发时显存不足",
    "two_text": "8 个请求只用到缓存池的约二十分之一。应从别处找原因：卡上的其他进程；普通 `awq` 内核在 256 个 token 以上的步骤中会以全精度展开一层"
    "（0.5.5 之前，或指定了 `--quantization awq`）；`prompt_logprobs`；碎片。",
    "versions": "版本很重要，因为各版本计算缓存池的方式不同：",
    "head_versions": "| 版本 | KV GiB | token 数 | 8,192 token 的请求数 |",
    "changes": "帖子里的建议对缓存池的影响（0.10.2）：",
    "head": "| 改动 | KV GiB | token 数 | 8,192 token 的请求数 |",
    "as is": "原配置",
    "to": "改为",
    "claims": "## 逐条核对",
}

CLAIMS: tuple[tuple[str, str, str, str], ...] = (
    ("The KV cache grows with concurrency until it OOMs", "No: one pool, sized at start, of {kv1} GiB in thread one and {kv2} GiB in thread two.",
     "KV 缓存随并发增长直到 OOM", "不对：缓存池在启动时一次分配，问题一为 {kv1} GiB，问题二为 {kv2} GiB。"),
    ("Set max-num-seqs to 4, 8, 12 or 16", "Thread one: {n1} full requests fit, so a limit below that only loses throughput; above it, it trades preemption for queueing. Thread two: {n2} fit.",
     "把 max-num-seqs 设为 4、8、12 或 16", "问题一可容纳 {n1} 个满长请求，设得更低只会损失吞吐；更高时，降低它是用排队代替抢占。问题二可容纳 {n2} 个。"),
    ("Lower max-model-len", "With chunked prefill the pool stays the same ({same} tokens at 4096 and at 8192 in 0.10.2); a short request uses no more under 8192.",
     "降低 max-model-len", "启用分块预填充时缓存池不变（0.10.2 中 4096 与 8192 都是 {same} 个 token）；短请求在 8192 下并不多占。"),
    ("Lower gpu-memory-utilization to 0.7", "The pool shrinks: in thread one from {kv1} to {kv07} GiB. Right only if the OOM is outside the budget.",
     "把 gpu-memory-utilization 降到 0.7", "缓存池变小：问题一从 {kv1} 变为 {kv07} GiB。只有当 OOM 发生在预算之外时才对。"),
    ("Raise it to 0.95", "Right for a pool that is too small: {kv095} GiB, {n095} requests; what is left for graphs and others falls to {left095} GiB.",
     "提高到 0.95", "缓存池太小时有效：{kv095} GiB，{n095} 个请求；留给 CUDA Graph 等的空间降到 {left095} GiB。"),
    ("enforce-eager saves gigabytes", "It saves the graphs, about {graphs} GiB here, which lie outside the budget before 0.20.0; decoding gets slower.",
     "enforce-eager 能省几个 GB", "省下的是 CUDA Graph，这里约 {graphs} GiB，0.20.0 之前在预算之外；解码会变慢。"),
    ("swap-space is a buffer against OOM", "No: V0 used it for swapped groups only, V1 not at all; the option is gone since 0.18.1.",
     "swap-space 可以防 OOM", "不对：V0 只用于被换出的序列组，V1 完全不用；0.18.1 起该参数已移除。"),
    ("AWQ to GPTQ or 8 bit helps", "GPTQ in 4 bit weighs the same; in 8 bit {w8} instead of {w4} GiB, so the pool shrinks.",
     "AWQ 换 GPTQ 或 8 位会好", "4 位 GPTQ 权重大小相同；8 位为 {w8} GiB 而不是 {w4} GiB，缓存池反而变小。"),
    ("fp8 KV cache halves it", "In bytes, yes: 28 instead of 56 KiB per token. An A100 has no FP8 arithmetic: check the backend first.",
     "fp8 KV 缓存减半", "按字节是的：每个 token 28 KiB 而不是 56 KiB。A100 不支持 FP8 运算：先确认注意力后端。"),
    ("gpu_cache_usage above 0.9 means OOM is near", "It means that preemption is near.",
     "gpu_cache_usage 超过 0.9 说明快 OOM 了", "说明快要发生抢占了。"),
    ("nvidia-smi shows the card full", "By design: about {used} GiB of {total} from start to end.",
     "nvidia-smi 显示显存占满", "这是设计如此：自始至终约占 {total} GiB 中的 {used} GiB。"),
)  # fmt: skip


def claim_figures() -> dict[str, str]:
    one, two = plan(setup(*ONE[:2])), plan(setup(*TWO[:2]))
    low, high = (plan(structs.replace(one.setup, gpu_memory_utilization=u)) for u in (0.7, 0.95))
    eight = plan(structs.replace(two.setup, quantization="gptq-int8"))
    short = plan(structs.replace(one.setup, max_model_len=4096))
    assert short.budget.kv_tokens == one.budget.kv_tokens
    return {
        "kv1": figures(one)[0], "n1": str(int(one.fits["max_model_len"].requests)), "kv2": figures(two)[0],
        "n2": str(int(two.fits["max_model_len"].requests)), "same": figures(short)[1], "kv07": figures(low)[0], "kv095": figures(high)[0],
        "n095": str(int(high.fits["max_model_len"].requests)), "left095": f"{high.budget.headroom / GIB:.1f}",
        "graphs": f"{one.budget.graphs.bytes / GIB:.1f}", "w4": f"{two.budget.weights.bytes / GIB:.1f}", "w8": f"{eight.budget.weights.bytes / GIB:.1f}",
        "used": f"{one.budget.budget / GIB:.1f}", "total": f"{one.budget.total / GIB:.1f}",
    }  # fmt: skip


def part(words: dict[str, str], language: str) -> list[str]:
    numbers = claim_figures()
    first = 0 if language == "en" else 2
    lines = [words["title"], "", words["intro"]]
    for key, thread in (("one", ONE), ("two", TWO)):
        lines += ["", words[key], "", words[f"{key}_text"], "", answered(*thread, language), "", words["versions"], ""]
        lines += by_version(thread[0], thread[1], words["head_versions"])
        lines += ["", words["changes"], "", *changes(thread[0], thread[1], words)]
    lines += ["", words["claims"], ""]
    lines += [f"* **{claim[first]}** {claim[first + 1].format(**numbers)}" for claim in CLAIMS]
    return lines


def page() -> str:
    """The whole page: English, then Chinese."""
    return "\n".join(["[中文](#两个论坛问题补上回答里缺的计算)", "", *part(EN, "en"), "", *part(ZH, "zh")]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
