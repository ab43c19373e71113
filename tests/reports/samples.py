"""Reports made by hand, in both languages: what the pipeline writes for three states of a server, and one full of hostile text."""

from __future__ import annotations

from vllm_doctor.model.report import (
    Change,
    Command,
    Effect,
    EvidenceReport,
    Finding,
    IssueReport,
    Line,
    MemoryReport,
    MissingReport,
    NotChecked,
    NotRemedy,
    RemedyReport,
    Report,
    RequestsThatFit,
    RuledOut,
    RunReport,
    SeriesReport,
    SourceReport,
    TimelineEntry,
    Tool,
)

TOOL = Tool("vllm-doctor", "0.1.0", "0123456789ab")
GIB = 2**30

STATS = (
    "(APIServer pid=5001) INFO 11-30 13:49:22 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
    "Avg generation throughput: 41.0 tokens/s, Running: 11 reqs, Waiting: 13 reqs, CPU KV cache usage: 96.9%, Prefix cache hit rate: 0.0%"
)
ACCESS = 'INFO:     127.0.0.1:33920 - "GET /metrics HTTP/1.1" 200 OK'


COURSE: tuple[tuple[str, str, list[tuple[float, float, float]]], ...] = (
    ("requests.running", "count", [(0, 0, 0), (0, 1, 2), (2, 2, 2), (0, 8, 24), *[(11 - n // 3,) * 3 for n in range(20)], (0, 3, 6), (0, 0, 0)]),
    ("requests.waiting", "count", [(0, 0, 0)] * 3 + [(0, 4.5, 9), *[(13 + n // 3,) * 3 for n in range(20)], (0, 4, 9), (0, 0, 0)]),
    (
        "kv_cache.usage",
        "ratio",
        [(0, 0, 0), (0, 0.02, 0.04), (0.04, 0.04, 0.05), (0.1, 0.6, 0.97), *[(0.85, 0.93, 0.969)] * 20, (0, 0.4, 0.9), (0, 0, 0)],
    ),
    ("throughput.prompt", "tokens/s", [(0, 0, 0), (40.4,) * 3, (76.8,) * 3, (0, 90, 148.2), *[(0, 0, 0)] * 20, (0, 0, 0), (0, 0, 0)]),
    ("throughput.generation", "tokens/s", [(0, 0, 0), (37.6,) * 3, (68.5,) * 3, (68.5, 260, 502), *[(41,) * 3] * 20, (31.5,) * 3, (0, 0, 0)]),
)
"""Lowest, mean and highest, each eight seconds."""


def kv_exhaustion(language: str = "en") -> Report:
    """Long generations filled a KV pool that an override made small; the server was stopped in order."""
    zh = language == "zh"

    def t(english: str, chinese: str) -> str:
        return chinese if zh else english

    sockets = MissingReport("client.send_queue", t("`ss -tn` on the server while it happens", "问题发生时在服务器上运行 `ss -tn`"))
    sooner = MissingReport(
        "latency.itl.mean",
        t(
            "scrapes from before 13:48: `curl -s http://HOST:PORT/metrics > metrics.txt`",
            "13:48 之前的指标：`curl -s http://HOST:PORT/metrics > metrics.txt`",
        ),
    )
    answer = Finding(
        id="kv-cache-exhaustion",
        variant=None,
        run="run-1",
        engine=0,
        severity="high",
        status="confirmed",
        confidence=0.97,
        role="root-cause",
        explained_by=(),
        title=t("The KV cache is full, so requests wait or are preempted", "KV 缓存已满，请求只能排队或被抢占"),
        summary=t(
            "The pool of KV blocks is sized once at start and never grows. 5,120 tokens cannot hold 24 requests of about 964 tokens.",
            "KV 块池在启动时一次性确定，之后不再增长。5,120 个 token 容纳不下 24 个长度约 964 个 token 的请求。",
        ),
        first_time="2026-11-30T13:48:52",
        last_time="2026-11-30T13:51:32",
        ongoing=False,
        evidence=(
            EvidenceReport(
                text=t("no request waited longer than 5 ms before it first ran", "请求首次运行前的排队时间都不超过 5 毫秒"),
                direction="against",
                weight="weak",
                signal="latency.queue.mean",
                value=0.00004,
                unit="s",
            ),
            EvidenceReport(
                text=t(
                    "requests waited while 97 % of the KV cache was in use, with scheduler slots free",
                    "调度槽位尚有空余，而请求排队时 KV 缓存使用率已达 97%",
                ),
                direction="for",
                weight="strong",
                signal="kv_cache.usage.while_waiting",
                value=0.969,
                unit="ratio",
                refs=(
                    Line("server.log", 174, STATS, before=(ACCESS,), after=(ACCESS,)),
                    Line("server.log", 180, STATS.replace("13:49:22", "13:49:32")),
                    Line("server.log", 186, STATS.replace("13:49:22", "13:49:42")),
                ),
            ),
            EvidenceReport(
                text=t("34 preemptions", "发生 34 次抢占"),
                direction="for",
                weight="decisive",
                signal="scheduler.preemptions.delta",
                value=34,
                unit="count",
                refs=(Line("metrics/0098_1796046688.300.txt", 111, 'vllm:num_preemptions_total{engine="0",model_name="tiny"} 34.0'),),
            ),
        ),
        missing=(sockets, MissingReport("request.max_tokens.p50", t("the clients' max_tokens", "客户端的 max_tokens"))),
        remedies=(
            RemedyReport(
                id="remove-blocks-override",
                title=t("Let vLLM size the KV cache itself", "让 vLLM 自行决定 KV 缓存大小"),
                kind="flag",
                change=Change("remove", "--num-gpu-blocks-override", from_="160"),
                effect=(
                    Effect(t("KV cache size", "KV 缓存容量"), "tokens", 5120, 524288, "model"),
                    Effect(t("such requests at once", "可同时运行的此类请求"), "count", 5, [528, 543], "model"),
                ),
                risk=t(
                    "None known: the option is meant for tests. Memory that something else used so far is taken at start.",
                    "未知：该选项仅用于测试。启动时会占用目前由其他程序使用的显存。",
                ),
                verify=t(
                    'After the restart the log says "KV cache size: 524,288 tokens", and Waiting stays 0 at this load.',
                    "重启后日志显示 “KV cache size: 524,288 tokens”，同样负载下 Waiting 保持为 0。",
                ),
                sources=("vllm/config/cache.py, 0.32.0",),
            ),
            RemedyReport(
                id="cap-output-tokens",
                title=t("Let clients ask for shorter outputs", "让客户端请求更短的输出"),
                kind="client",
                change=None,
                effect=(Effect(t("tokens per request", "每个请求的 token 数"), "tokens", 964, None, "rule-of-thumb"),),
                risk=t("Answers may be cut.", "回答可能被截断。"),
                verify=t("request_generation_tokens falls.", "request_generation_tokens 下降。"),
                sources=(),
            ),
            RemedyReport(
                id="lower-max-num-seqs",
                title=t("Admit fewer requests at once, so that fewer are preempted", "同时接纳更少的请求，以减少抢占"),
                kind="flag",
                change=Change("set", "--max-num-seqs", from_="64", to="5"),
                effect=(),
                risk=t("More requests wait before they start.", "更多请求会在开始前排队。"),
                verify=t("Preemptions stop growing.", "抢占次数不再增长。"),
                sources=(),
            ),
        ),
        not_remedies=(
            NotRemedy("--swap-space", t("gone since 0.18, and V1 never used it", "0.18 起已移除，V1 从未使用")),
            NotRemedy("--max-num-seqs", t("raising it admits nobody: 64 was never reached", "调大并不能接纳更多请求：从未达到 64")),
        ),
    )
    symptom = Finding(
        id="queue-overload",
        variant=None,
        run="run-1",
        engine=0,
        severity="medium",
        status="likely",
        confidence=None,
        role="symptom",
        explained_by=("kv-cache-exhaustion",),
        title=t("More requests arrive than the server finishes", "到达的请求多于服务器完成的请求"),
        summary="",
        first_time="2026-11-30T13:48:52",
        last_time="2026-11-30T13:51:32",
        ongoing=False,
        evidence=(),
        missing=(),
        remedies=(),
        not_remedies=(),
    )
    shutdown = Finding(
        id="orderly-shutdown",
        variant=None,
        run="run-1",
        engine=None,
        severity="info",
        status="confirmed",
        confidence=0.99,
        role="root-cause",
        explained_by=(),
        title=t("The server was asked to stop, and did", "服务器按要求停止"),
        summary="",
        first_time="2026-11-30T13:51:36",
        last_time="2026-11-30T13:51:36",
        ongoing=None,
        evidence=(
            EvidenceReport(
                text=t("a stop was requested before anything failed", "在任何失败之前已有停止请求"),
                direction="for",
                weight="decisive",
                signal="shutdown.before_failure",
                value=1,
                unit="count",
                refs=(
                    Line("server.log", 262, "(APIServer pid=5001) INFO 11-30 13:51:36 [launcher.py:146] [shutdown] API server: shutdown triggered"),
                ),
            ),
        ),
        missing=(),
        remedies=(),
        not_remedies=(),
    )
    return Report(
        tool=TOOL,
        redacted=True,
        verdict="problem",
        summary=answer.title,
        language=language,
        sources=(
            SourceReport("server.log", ("server_log",), 31204, 310, "2026-11-30T13:48:08", "2026-11-30T13:51:36"),
            *(SourceReport(f"metrics/{i:04d}_{1796046491 + 2 * i}.000.txt", ("metrics",), 50123, 561) for i in range(1, 102)),
        ),
        runs=(
            RunReport(
                id="run-1",
                vllm_version="0.32.0",
                engine_generation="V1",
                model="tiny",
                gpus=("CPU",),
                flags={"num-gpu-blocks-override": 160, "max-num-seqs": 64, "max-model-len": 2048, "enforce-eager": True},
                launch_command="vllm serve ./models/tiny --max-model-len 2048 --num-gpu-blocks-override 160 --max-num-seqs 64",
                started="2026-11-30T13:48:08",
                ended="2026-11-30T13:51:36",
                end="stopped",
            ),
        ),
        memory=(
            MemoryReport(
                run="run-1",
                kv_bytes=GIB,
                kv_bytes_per_token=2048,
                kv_tokens=5120,
                max_concurrency=2.5,
                requests_that_fit={"p50": RequestsThatFit(964, 5, "measured"), "max_model_len": RequestsThatFit(2048, 2, "measured")},
                refs={"kv_tokens": Line("server.log", 41, "CPU KV cache size: 5,120 tokens")},
            ),
        ),
        findings=(answer, symptom, shutdown),
        ruled_out=(
            RuledOut(
                "max-num-seqs-limited",
                "run-1",
                t("max-num-seqs is the limit", "max-num-seqs 达到上限"),
                (
                    EvidenceReport(
                        t("at most 24 of 64 slots were in use", "64 个槽位最多用了 24 个"),
                        "against",
                        "decisive",
                        "scheduler.slots.used_ratio",
                        0.375,
                        "ratio",
                    ),
                ),
            ),
            RuledOut(
                "prefill-spike",
                "run-1",
                t("Long prompts block the others", "长提示词阻塞其他请求"),
                (
                    EvidenceReport(
                        t("no prompt was longer than 64 tokens", "没有超过 64 个 token 的提示词"),
                        "against",
                        "decisive",
                        "request.prompt_tokens.max",
                        64,
                        "tokens",
                    ),
                ),
            ),
        ),
        not_indicated=("runtime-activation-oom", "engine-hang", "client-errors", "engine-killed"),
        not_checked=(
            NotChecked("client-backpressure", t("Clients read slowly or went away", "客户端读取缓慢或已离开"), (sockets,)),
            NotChecked("cpu-bound", t("The CPU is the limit", "CPU 成为瓶颈"), (sooner,)),
            NotChecked("low-prefix-hit", t("Few prefix cache hits", "前缀缓存命中率低"), (sooner,)),
        ),
        attach_next=(sockets,),
        commands=(
            Command(
                "run-1",
                "vllm serve ./models/tiny --max-model-len 2048 --num-gpu-blocks-override 160 --max-num-seqs 64",
                "vllm serve ./models/tiny --max-model-len 2048 --max-num-seqs 64",
                "- --num-gpu-blocks-override 160",
            ),
        ),
        series=tuple(
            SeriesReport(
                "run-1", 0, signal, unit, 8, [(f"2026-11-30T13:{48 + n * 8 // 60}:{n * 8 % 60:02d}", *point) for n, point in enumerate(points, 2)]
            )
            for signal, unit, points in COURSE
        ),
        issues=(
            IssueReport(
                "no-year",
                t("the log's times have no year; 2026 is taken from the file's date", "日志时间没有年份；按文件日期取 2026 年"),
                Line("server.log", 1, STATS),
            ),
        ),
        timeline=(
            TimelineEntry("2026-11-30T13:48:08", "run-1", "startup", t("the server starts", "服务器启动"), Line("server.log", 1, "INFO")),
            TimelineEntry("2026-11-30T13:48:52", "run-1", "episode", t("requests begin to wait", "请求开始排队")),
        ),
    )


def healthy(language: str = "en") -> Report:
    """A server under load that nothing is wrong with, on two equal GPUs."""
    zh = language == "zh"

    def t(english: str, chinese: str) -> str:
        return chinese if zh else english

    memory = MemoryReport(
        run="run-1",
        gpu=0,
        total_bytes=int(79.15 * GIB),
        budget_bytes=int(71.24 * GIB),
        weights_bytes=int(14.99 * GIB),
        activation_bytes=int(5.55 * GIB),
        non_torch_bytes=int(0.09 * GIB),
        kv_bytes=int(50.6 * GIB),
        kv_tokens=414_528,
        requests_that_fit={"max_model_len": RequestsThatFit(32768, 12.65, "measured")},
    )
    return Report(
        tool=TOOL,
        redacted=False,
        verdict="healthy",
        summary=t(
            "Nothing wrong was found, and trouble would have shown: requests ran for 21 min 10 s, none waited, and KV usage stayed below 31 %. "
            "Errors would have been in this log.",
            "未发现问题；如果有问题，应能反映出来：请求运行了 21 分 10 秒，无人排队，KV 使用率低于 31%。若有错误，此日志会显示。",
        ),
        language=language,
        sources=(
            SourceReport("server.log", ("server_log", "launch"), 4_310_551, 41_203),
            SourceReport("metrics-1.txt", ("metrics",), 50123, 561),
        ),
        runs=(
            RunReport(
                "run-1", "0.10.2", "V1", "Qwen/Qwen2.5-7B-Instruct", ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), {"tensor-parallel-size": 2},
                None, "2026-11-30T09:00:00Z", "2026-11-30T09:24:11Z", "running",
            ),
        ),
        memory=(memory, MemoryReport(**{**{f: getattr(memory, f) for f in memory.__struct_fields__}, "gpu": 1})),
        findings=(
            Finding(
                "low-prefix-hit", None, "run-1", 0, "low", "possible", None, "contributing", (),
                t("Few prefix cache hits", "前缀缓存命中率低"), "", None, None, None,
                (EvidenceReport(t("3 % of the looked-up tokens were found", "查询命中 3%"), "for", "weak", "prefix_cache.hit_ratio", 0.03, "ratio"),),
                (), (), (),
            ),
        ),
        not_indicated=("engine-hang", "queue-overload"),
    )  # fmt: skip


def failed_start(language: str = "en") -> Report:
    """The end of a start-up failure without the lines above it that say why."""
    zh = language == "zh"

    def t(english: str, chinese: str) -> str:
        return chinese if zh else english

    last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}"
    above = MissingReport(
        "startup.no_kv_memory.count",
        t(
            "the whole log from the server's banner on: the cause stands 60 to 100 lines above the last line",
            "从服务器启动横幅开始的完整日志：原因位于最后一行之上 60 到 100 行",
        ),
    )
    return Report(
        tool=TOOL,
        redacted=True,
        verdict="inconclusive",
        summary=t(
            "Cannot tell: the start failed, and the lines that say why are not in the input.",
            "无法判断：启动失败，但输入中没有说明原因的日志行。",
        ),
        language=language,
        sources=(SourceReport("-", ("server_log",), 1893, 22),),
        runs=(RunReport("run-1", None, None, None, (), {}, None, None, None, "crashed"),),
        findings=(
            Finding(
                "startup-kv-too-small", None, "run-1", None, "high", "possible", 0.4, "root-cause", (),
                t("The KV cache is too small for one request of the longest length", "KV 缓存容纳不下一个最长的请求"), "",
                None, None, None,
                (
                    EvidenceReport(
                        t("the engine failed while it started", "引擎在启动过程中失败"), "for", "weak", "startup.failed.count", 1, "count",
                        (Line("-", 22, "(APIServer pid=734) " + last, before=("    raise RuntimeError(\"Engine core initialization failed. \"",)),),
                    ),
                ),
                (above,),
                (
                    RemedyReport(
                        "lower-max-model-len", t("Allow shorter requests only", "只允许更短的请求"), "flag", Change("set", "--max-model-len"), (),
                        t("Longer requests are refused.", "更长的请求会被拒绝。"), t("The server starts.", "服务器能够启动。"), (),
                    ),
                    RemedyReport(
                        "expandable-segments", t("Let PyTorch's allocator grow its segments", "让 PyTorch 分配器使用可扩展段"), "env",
                        Change("set", "PYTORCH_CUDA_ALLOC_CONF", to="expandable_segments:True"), (), "", "", (),
                    ),
                ),
                (),
            ),
        ),
        not_checked=(NotChecked("profile-oom", t("Out of memory in the profile run", "性能分析运行时显存不足"), (above,)),),
        attach_next=(above, MissingReport("memory.total", t("`nvidia-smi` from the same host", "同一主机上的 `nvidia-smi` 输出"))),
        issues=(IssueReport("cut-paste", t("the paste begins in the middle of a traceback", "粘贴内容从回溯中间开始"), Line("-", 1, "  File")),),
    )  # fmt: skip


HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link"
    "\x9b2J\u202egnp.exe\u2066\u200b[bold]markup[/bold]\r\n\tnext\x00\ud800\U000e0041 :smile: {0} %s"
)


def hostile() -> Report:
    """Every text that an input can reach, filled with what breaks terminals, markup and formats."""
    h = HOSTILE
    long = "x" * 3000
    line = Line(h, 7, h + long, (h,), (h,))
    missing = MissingReport(h, h)
    evidence = EvidenceReport(h, "for", "strong", h, float("nan"), h, (line, line))
    finding = Finding(
        h, h, h, 0, "critical", "likely", None, "root-cause", (), h, h + " summary", h, h, True, (evidence, evidence), (missing,),
        (RemedyReport(h, h, "flag", Change("set", "--" + h, h, h), (Effect(h, h, [1, 2], float("inf"), "model"),), h, h, (h,)),),
        (NotRemedy(h, h),),
    )  # fmt: skip
    other = Finding(
        h, None, h, 1, "info", "possible", None, "symptom", (h,), h, h, h, h, None, (evidence,), (), (), (),
    )  # fmt: skip
    return Report(
        tool=TOOL,
        redacted=True,
        verdict="problem",
        summary=h,
        sources=(SourceReport(h, (h,), 1, 1, h, h),),
        runs=(RunReport(h, h, None, h, (h, h), {h: h}, h, h, h, "unknown"), RunReport("b", h, None, h, (), {}, None, None, None, "running")),
        memory=(MemoryReport(h, 0, total_bytes=1, budget_bytes=-5, refs={h: line}),),
        findings=(finding, other),
        ruled_out=(RuledOut(h, h, h, (evidence,)),),
        not_indicated=(h,),
        not_checked=(NotChecked(h, h, (missing,)),),
        attach_next=(missing,),
        commands=(Command(h, h, h + " --after " + h, h),),
        issues=(IssueReport(h, h, line),),
        timeline=(TimelineEntry(h, h, h, h, line), TimelineEntry(None, None, h, h)),
    )
