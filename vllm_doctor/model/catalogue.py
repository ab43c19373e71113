"""The vocabulary: what formats may give (observations) and what rules may ask for (signals), each with unit and meaning.

Names are dotted, in vLLM's and Prometheus' own terms, singular subject first. One word for one thing: a name that is not
declared here does not load, in a format as in a rule.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Unit = Literal["count", "tokens", "bytes", "s", "ratio", "times", "tokens/s", "per_second", "per_minute", "text", "flag"]
Kind = Literal["fact", "sample", "event", "attribute", "count"]


class ObservationDef(Struct, frozen=True):
    """A thing that an input can state. `attribute`s belong to the event whose name is their own without the last word."""

    name: str
    kind: Kind
    unit: Unit
    meaning: str


class SignalDef(Struct, frozen=True):
    """A scalar that rules compare. `windowed` signals differ per episode; the others hold for the whole run."""

    name: str
    unit: Unit
    meaning: str
    windowed: bool = True


def _define(kind: Kind, text: str) -> list[ObservationDef]:
    rows = [line.split("|") for line in text.strip().splitlines()]
    return [ObservationDef(name.strip(), kind, unit.strip(), meaning.strip()) for name, unit, meaning in rows]  # type: ignore[arg-type]


_FACTS = """
vllm.version | text | the version the server prints
engine.generation | text | V0 or V1, as the engine names itself
model.name | text | --model as given
device.type | text | cuda, cpu, rocm, xpu, ... where a line says so
memory.total | bytes | device memory as CUDA sees it
memory.free_at_start | bytes | free device memory when the worker took its first snapshot
memory.utilization | ratio | gpu_memory_utilization as a memory line states it
memory.budget | bytes | total x utilization, as printed
memory.weights | bytes | per GPU, a memory difference: without the CUDA context
memory.activation | bytes | PyTorch's peak in the profile run above the weights
memory.non_torch | bytes | NCCL, workspaces and the like
memory.graphs | bytes | CUDA graphs as captured
memory.graphs_estimated | bytes | CUDA graphs as counted in the budget (0.20.0 and later)
memory.kv_cache | bytes | memory the KV pool gets; negative just before a failed start
memory.kv_cache_requested | bytes | kv_cache_memory_bytes, which replaces sizing by utilization
memory.consumed | bytes | weights and non-torch together, measured from the driver (0.28 and later)
memory.swap_space | bytes | V0 host memory for swapped sequences
memory.sleep_freed | bytes | given back by sleep mode
kv_cache.tokens | tokens | capacity of the KV pool as printed
kv_cache.blocks | count | device blocks
kv_cache.blocks_by_budget | count | device blocks that the budget would have given, where an override replaced them
kv_cache.cpu_blocks | count | host blocks of V0's swap space
kv_cache.block_size | tokens | tokens per block
kv_cache.attention_block | tokens | tokens per block that a hybrid model's attention needs (only whole blocks are cached)
kv_cache.max_concurrency | times | full-length requests that fit, as printed
kv_cache.concurrency_length | tokens | the request length of that figure
startup.weights_time | s | loading weights
startup.engine_init | s | profile, KV cache, warm-up
startup.graph_capture | s | capturing CUDA graphs
startup.compile | s | torch.compile
attention.backend | text | attention backend chosen
"""

_SAMPLES = """
throughput.prompt | tokens/s | prompt tokens whose prefill finished in the last interval (0.16+: computed ones only)
throughput.generation | tokens/s | generated tokens in the last interval
requests.running | count | requests in the running batch
requests.waiting | count | requests not in the batch: never started, or preempted (V0 says Pending)
requests.swapped | count | V0: sequence groups swapped to host memory
requests.deferred | count | part of waiting that waits for something else than capacity (0.20+)
kv_cache.usage | ratio | share of KV blocks held by running requests
swap.usage | ratio | V0: share of host blocks in use
prefix_cache.hit_rate | ratio | over the most recent 1000 requests (V1)
external_prefix_cache.hit_rate | ratio | hits of a KV connector
mm_cache.hit_rate | ratio | hits of the multi-modal cache
spec_decode.acceptance_rate | ratio | accepted of drafted tokens
spec_decode.mean_length | tokens | mean acceptance length
spec_decode.accepted_tokens | tokens | draft tokens accepted in the last interval
spec_decode.drafted_tokens | tokens | draft tokens proposed in the last interval
step.context_requests | count | prefilling requests in one engine step (iteration details)
step.context_tokens | tokens | prompt tokens in one engine step
step.generation_requests | count | decoding requests in one engine step
step.duration | s | time of one engine step
process.resident_memory | bytes | RSS of the API server
process.open_fds | count | open file descriptors of the API server
process.start_time | s | Unix time of the API server's start
"""

_EVENTS = """
startup.loading | count | loading weights begins
startup.capturing | count | capturing CUDA graphs begins
startup.complete | count | the server accepts requests
startup.failed | count | a line that says the start failed without saying why
startup.options_rejected | count | the command line parser refuses the options
startup.no_kv_memory | count | the budget left nothing for KV blocks
startup.kv_below_max_len | count | one request of max_model_len does not fit in the KV pool
startup.free_below_budget | count | free memory at start is less than the budget
startup.memory_changed | count | memory was released by others while vLLM profiled
startup.sampler_oom | count | out of memory while warming up the sampler or pooler
startup.weights_oom | count | out of memory while loading weights, as vLLM says it
startup.port_in_use | count | the address that the server shall listen on is taken
startup.rendezvous_port_in_use | count | a port by which vLLM's own processes meet is taken
startup.model_missing | count | no model of that name: neither a folder nor a repository
startup.model_forbidden | count | the model's licence was not accepted, or the token is missing or wrong
startup.model_unreachable | count | the hub cannot be reached, and the cache is not complete
startup.weights_missing | count | the folder holds no weights, or files that are not whole
startup.length_above_model | count | max_model_len is above what the model's config allows
startup.config_rejected | count | vLLM's own check refuses the combination of options
startup.model_config_rejected | count | vLLM's own check refuses the model or an option about it
startup.options_conflict | count | two options, or an option and the model, contradict each other
startup.too_few_gpus | count | more GPUs are asked for than there are
startup.unsupported | count | this GPU, model or quantization is not supported by this version
startup.driver_unusable | count | the driver is too old for the CUDA version, or does not fit its libraries
dependency.missing | count | a module, library, compiler or header is missing or does not fit
oom | count | a device allocation failed
engine.fatal_error | count | the engine core reports an exception of its own
engine.died | count | a monitor saw the engine process gone
engine.dead_error | count | a request met a dead engine: secondary, never a cause
worker.died | count | a monitor saw a worker process gone
worker.silent | count | a process has waited a minute for the message queue of another (normal while compiling)
engine.timeout | count | a call to the engine or a worker was not answered in time
comm.failed | count | NCCL or the process group reports an error or a timeout
gpu.fault | count | CUDA or NVML reports a failure of the device itself
gpu.launch_failure | count | a kernel failed without a reason: its own bug, or the device
ray.worker_lost | count | Ray found a worker process gone and lists possible reasons
supervisor.restarting | count | Kubernetes, Docker or systemd restarts the server again and again
exception | count | the last line of a traceback
scheduler.dump | count | what the engine was executing when it failed
scheduler.preempted | count | V0: a preemption warning (only the 1st, 51st, 101st ...)
shutdown.requested | count | somebody asked the server to stop
shutdown.http | count | the HTTP server stops
shutdown.waiting_for_clients | count | the HTTP server waits for open connections
shutdown.complete | count | the HTTP server has stopped
request.received | count | request logging: a request arrived
request.aborted | count | request logging: a client went away or gave up
request.queue_full | count | rejected by a queue limit
client.disconnected | count | a proxy says that its client closed the connection
process.killed | count | a shell or supervisor reports a killed process
process.crashed | count | a segmentation fault, bus error or abort, as the process or its shell reports it
kernel.segfault | count | the kernel reports a segmentation fault
kernel.oom_kill | count | the kernel's out-of-memory killer
kernel.gpu_fault | count | the driver reports a failure of a GPU or its links (Xid 48, 64, 74, 79, 94, 95 and the like)
kernel.gpu_application_fault | count | the driver reports a fault of a program on a GPU (Xid 13, 31, 43, 45 and the like)
"""

_ATTRIBUTES = """
startup.failed.processes | text | names and exit codes of what failed
startup.kv_below_max_len.needed | bytes | KV memory that one request of max_model_len needs
startup.kv_below_max_len.available | bytes | KV memory that there is
startup.kv_below_max_len.max_model_len | tokens | the length that does not fit
startup.kv_below_max_len.capacity | tokens | tokens that fit (V0)
startup.kv_below_max_len.estimated_length | tokens | longest length that fits, as vLLM estimates
startup.free_below_budget.free | bytes | free at start
startup.free_below_budget.total | bytes | total
startup.free_below_budget.utilization | ratio | desired utilization
startup.free_below_budget.budget | bytes | desired memory
startup.memory_changed.initial | bytes | free (V0 0.7.3+: used) memory before profiling
startup.memory_changed.current | bytes | the same after
startup.sampler_oom.requests | count | dummy requests in the warm-up
oom.source | text | allocator (PyTorch's), driver (CUDA without sizes), host
oom.device | text | CUDA, HIP, XPU, CPU
oom.gpu | count | device index
oom.requested | bytes | the allocation that failed
oom.total | bytes | device capacity
oom.free | bytes | free for everybody
oom.this_process | bytes | all of this process, context and libraries included
oom.allocated | bytes | live tensors of PyTorch
oom.private_pools | bytes | part of allocated that lies in private pools (CUDA graphs)
oom.reserved_unallocated | bytes | cached by PyTorch, not in use, not usable for the request
oom.other_processes | bytes | sum of the processes that the message names and that are not this one
oom.phase | text | weights, profile, kv_alloc, graphs, sampler, forward, encoder, lora, quantization, unknown
oom.frame | text | the vLLM frame that decided the phase
engine.died.process | text | process name
engine.died.pid | count | process id
engine.died.exit_code | count | exit code; -9 is SIGKILL
worker.died.process | text | process name
worker.died.pid | count | process id
worker.died.exit_code | count | exit code
exception.type | text | exception class
exception.message | text | its message, first line
exception.phase | text | as oom.phase
scheduler.dump.scheduled_tokens | tokens | tokens of the step that failed
scheduler.dump.running | count | running requests
scheduler.dump.waiting | count | waiting requests
scheduler.dump.kv_usage | ratio | KV usage
scheduler.preempted.mode | text | RECOMPUTE or SWAP
scheduler.preempted.cumulative | count | preemptions so far, this one included
shutdown.requested.by | text | api_server, engine, supervisor
shutdown.requested.signal | text | SIGTERM, SIGINT
shutdown.requested.mode | text | abort or drain
shutdown.requested.timeout | s | time that in-flight requests get
startup.options_rejected.message | text | what is wrong with the options
startup.length_above_model.requested | tokens | max_model_len as asked for
startup.length_above_model.derived | tokens | the most that the model's config allows
startup.too_few_gpus.needed | count | GPUs asked for
startup.too_few_gpus.available | count | GPUs that there are
kernel.gpu_fault.xid | count | the driver's code
kernel.gpu_application_fault.xid | count | the driver's code
process.killed.exit_code | count | 137 is SIGKILL
process.killed.reason | text | such as OOMKilled
kernel.segfault.process | text | process name, cut to 15 characters
kernel.segfault.pid | count | process id
kernel.segfault.library | text | where it happened
kernel.oom_kill.process | text | process name
kernel.oom_kill.pid | count | process id
kernel.oom_kill.rss | bytes | its resident memory
"""

_COUNTS = """
http.responses.2xx | count | access lines (written when a response starts: no proof of success)
http.responses.4xx | count | access lines
http.responses.5xx | count | access lines
http.inference.2xx | count | access lines of POST requests
http.inference.4xx | count | access lines of POST requests
http.inference.5xx | count | access lines of POST requests
"""

OBSERVATIONS: dict[str, ObservationDef] = {
    d.name: d
    for d in [
        *_define("fact", _FACTS),
        *_define("sample", _SAMPLES),
        *_define("event", _EVENTS),
        *_define("attribute", _ATTRIBUTES),
        *_define("count", _COUNTS),
    ]
}

FAMILIES: dict[str, str] = {
    "flag.": "a launch option as the user gave it, in vLLM's spelling without dashes: flag.max-num-seqs",
    "config.": "a resolved setting as vLLM prints it, named like its option: config.max-model-len",
}
"""Observation names that are open: facts whose last part is an option of vLLM."""


def observation(name: str) -> ObservationDef | None:
    """The declaration of an observation, or None: a name that is neither declared nor in an open family."""
    if name in OBSERVATIONS:
        return OBSERVATIONS[name]
    for prefix, meaning in FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return ObservationDef(name, "fact", "flag", meaning)
    return None


COUNTERS: dict[str, str] = {
    "scheduler.preemptions": "preemptions (V1: counted when the victim resumes, never if it is aborted first)",
    "tokens.prompt": "prompt tokens, cached ones included",
    "tokens.generation": "generated tokens",
    "requests.finished": "finished requests, all reasons; client disconnects are in none",
    "prefix_cache.queries": "looked-up tokens (blocks before 0.9)",
    "prefix_cache.hits": "found tokens (blocks before 0.9)",
    "spec_decode.accepted": "accepted draft tokens",
    "spec_decode.drafted": "draft tokens",
    "http.2xx": "HTTP responses",
    "http.4xx": "HTTP responses",
    "http.5xx": "HTTP responses",
    "requests.rejected": "requests refused by a queue limit",
    "process.cpu": "CPU seconds of the API server",
}
"""Counters of a scrape, in our names; `rules/knowledge/metrics.yaml` maps every vLLM name to one."""

HISTOGRAMS: dict[str, tuple[Unit, str]] = {
    "latency.ttft": ("s", "arrival to first token, at the API server"),
    "latency.itl": ("s", "gap between two tokens of one request"),
    "latency.e2e": ("s", "arrival to last token, finished requests"),
    "latency.queue": ("s", "queued to first scheduled; V1: a preempted request's second wait is not in it"),
    "latency.prefill": ("s", "first scheduled to first token"),
    "latency.decode": ("s", "first to last token"),
    "latency.inference": ("s", "first scheduled to last token"),
    "request.prompt_tokens": ("tokens", "prompt length of finished requests"),
    "request.generation_tokens": ("tokens", "output length of finished requests"),
    "request.max_tokens": ("tokens", "max_tokens parameter of finished requests"),
    "request.preemptions": ("count", "preemptions per finished request (0.31+)"),
    "step.tokens": ("tokens", "tokens per engine step"),
}
"""Histograms of a scrape, in our names."""

_AGGREGATES: dict[str, tuple[Unit | None, str]] = {
    "max": (None, "largest sample"),
    "min": (None, "smallest sample"),
    "mean": (None, "mean of the samples"),
    "p50": (None, "median of the samples"),
    "p95": (None, "95th percentile of the samples"),
    "last": (None, "last sample"),
    "samples": ("count", "number of samples"),
    "share_above_zero": ("ratio", "share of samples above zero (3 samples or more)"),
    "trend": ("per_minute", "least-squares slope (3 samples or more)"),
    "while_waiting": (None, "mean over the samples in which requests waited"),
    "max_while_waiting": (None, "largest sample in which requests waited"),
    "min_while_waiting": (None, "smallest sample in which requests waited"),
}
_HISTOGRAM_AGGREGATES = {
    "mean": "mean",
    "p50": "median",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "max": "upper bound of the highest bucket hit",
}

_DERIVED = """
requests.arrivals.rate | per_second | finished requests plus growth of running and waiting, per second
requests.demoted | count | running requests put back in the queue: the smaller of running's fall and waiting's rise
requests.unfinished.delta | count | requests that got a first token and are neither finished nor running nor waiting (V1): the client went away
requests.unfinished.share | ratio | the same as a share of the requests that got a first token
scheduler.slots.used_ratio | ratio | most requests running while others waited, of max_num_seqs
scheduler.slots.full_share | ratio | share of the samples with waiting requests in which all of max_num_seqs ran
scheduler.plateau_share | ratio | share of the samples with waiting requests in which running stood at its own maximum
kv_cache.prompt_share | ratio | longest observed prompt, of the tokens in the KV pool
kv_cache.free_prompts | ratio | free tokens in the KV pool while requests waited (mean), of the longest observed prompt
latency.itl.stalled_share | ratio | share of all inter-token time that was spent in gaps of 10 medians or more
latency.ttft.after_queue | s | mean TTFT minus mean queue time
latency.ttft.queue_share | ratio | mean queue time, of mean TTFT
latency.prefill.share | ratio | time in prefill, of the time in prefill and decode
request.prompt_to_budget | ratio | longest prompt, of max_num_batched_tokens
step.budget_share | ratio | share of the batched tokens that went through steps of at least half the token budget
prefix_cache.hit_ratio | ratio | hits of queries in the window
prefix_cache.queries_ever | tokens | looked-up tokens since the start, by the last scrape
prefix_cache.hits_ever | tokens | found tokens since the start, by the last scrape
load.samples | count | samples with running requests, or intervals in which requests finished
load.span | s | from the first sample with load to the last sample
errors.share | ratio | HTTP responses of 4xx and 5xx, of all (counters, else access lines)
errors.client_share | ratio | HTTP responses of 4xx, of all (counters, else access lines of POST requests)
errors.client_count | count | HTTP responses of 4xx
requests.rejected.share | ratio | requests refused by a queue limit, of those refused and finished
throughput.prompt.steadiness | ratio | least prompt throughput while requests waited, of the largest
requests.starved.samples | count | samples in which requests waited while none ran
spec_decode.acceptance | ratio | accepted of drafted tokens in the window
spec_decode.drafted_seen | tokens | draft tokens proposed in the window
engine.stall.span | s | longest time for which requests ran and no token came, prompt or output (scrapes)
engine.stall.waiting | count | requests that waited at the end of that time
errors.visible | count | 1 where errors would have shown: a server log, or HTTP status counters
requests.aborted_share | ratio | aborted of received requests, where request logging is on
"""

_RUN_SIGNALS = """
scheduler.max_num_seqs | count | most requests that may run at once: as set, as printed, or the version's default
scheduler.token_budget | tokens | max_num_batched_tokens: as set, as printed, or the version's default
model.max_len | tokens | max_model_len in force
kv_cache.length_ratio | ratio | tokens in the KV pool, of max_model_len
startup.kv.shortfall | ratio | KV memory needed for one full-length request, of what there is
startup.kv.rest | bytes | budget minus weights, activation and non-torch memory: what the profile left for KV
startup.kv.unaccounted | count | refusals for want of KV blocks that the stated parts of the budget do not explain
oom.reserved_to_request | ratio | reserved but unallocated memory, of the failed request (smallest over the failures)
oom.reserved_share | ratio | reserved but unallocated, of all that PyTorch holds
oom.reserved | bytes | reserved but unallocated
oom.foreign | bytes | memory held by other processes on the device when the allocation failed
oom.serving.count | count | device allocations that failed after the server had started to serve
oom.startup.count | count | device allocations that failed before that
oom.capture.count | count | device allocations that failed while CUDA graphs were captured
oom.step_to_budget | ratio | tokens of the step that failed, of max_num_batched_tokens
oom.headroom | bytes | device memory outside vLLM's budget
oom.weights.count | count | device allocations that failed while weights were loaded
oom.profile.count | count | device allocations that failed in the profile run
oom.after_capture.count | count | device allocations that failed between the end of graph capture and the first request, of no known phase
oom.sampler.count | count | device allocations that failed in the sampler or in computing logits
oom.encoder.count | count | device allocations that failed in a multi-modal encoder
oom.forward.count | count | device allocations that failed in the forward pass of a serving step
oom.host.count | count | allocations of host memory that failed
dependency.fatal.count | count | missing things after which nothing else was raised, on a server that failed
host.oom_kills | count | processes of vLLM, Python or Ray that the kernel killed for lack of host memory
host.memory_limit.count | count | processes that a container limit or Ray's memory monitor ended for lack of host memory
startup.served | count | 1 where the server began to serve, 0 where no line says so
run.crashed | count | 1 where the run ended in a failure
runs.failed_alike | count | lives of the server that ended in the same failure, this last one included
engine.stall.silent | count | waits of a minute for another process while requests ran and no token came any more
engine.step_timeout.count | count | engine steps that were not answered in time
gpu.failing | count | GPUs that the tool shows as lost, or whose readings are ERR!
engine.killed.count | count | engine or worker processes whose exit code says SIGKILL
engine.exception.count | count | Python exceptions of the engine or a worker before its death
shutdown.before_failure | count | 1 where a stop was asked for before anything failed, 0 where the failure came first
shutdown.cut_streams | count | requests that met a dead engine after the stop was asked for
memory.utilization_in_force | ratio | gpu_memory_utilization: as set, as printed, or the version's default
sockets.send_queue.max | bytes | most bytes sent to one client that it has not read yet
gpu.foreign | bytes | memory of processes that are not vLLM's, on the GPUs that vLLM uses
"""


def _signals() -> dict[str, SignalDef]:
    result: dict[str, SignalDef] = {}

    def add(name: str, unit: Unit, meaning: str, windowed: bool) -> None:
        assert name not in result, name
        result[name] = SignalDef(name, unit, meaning, windowed)

    for d in OBSERVATIONS.values():
        if d.kind == "fact" and d.unit not in ("text", "flag"):
            add(d.name, d.unit, d.meaning, False)
        elif d.kind == "sample":
            for word, (unit, meaning) in _AGGREGATES.items():
                add(f"{d.name}.{word}", unit or d.unit, f"{d.meaning}: {meaning}", True)
        elif d.kind == "event":
            add(f"{d.name}.count", "count", d.meaning, False)
        elif (d.kind == "attribute" and d.unit not in ("text", "flag")) or d.kind == "count":
            add(d.name, d.unit, d.meaning, False)
    for name, meaning in COUNTERS.items():
        add(f"{name}.delta", "s" if name == "process.cpu" else "count", f"{meaning}: growth", True)
        add(f"{name}.rate", "per_second", f"{meaning}: growth per second", True)
    for name, (base_unit, meaning) in HISTOGRAMS.items():
        for word, text in _HISTOGRAM_AGGREGATES.items():
            add(f"{name}.{word}", base_unit, f"{meaning}: {text}", True)
        add(f"{name}.count", "count", f"{meaning}: observations", True)
    for text, windowed in ((_DERIVED, True), (_RUN_SIGNALS, False)):
        for line in text.strip().splitlines():
            name, declared, meaning = (cell.strip() for cell in line.split("|"))
            add(name, declared, meaning, windowed)  # type: ignore[arg-type]
    return result


SIGNALS: dict[str, SignalDef] = _signals()

_CAUSE_IDS = """
startup-weights-too-large startup-kv-too-small startup-free-memory-taken profile-oom cudagraph-oom sampler-logits-oom mm-encoder-oom
runtime-activation-oom prefill-spike allocator-fragmentation other-process-on-gpu host-oom kv-leak-bug
kv-cache-exhaustion max-num-seqs-limited token-budget-limited lora-slots-limited queue-overload queue-full-rejections request-exceeds-kv
engine-imbalance cpu-bound low-prefix-hit spec-decode-low-accept slow-attention-backend thermal-or-power-throttle
client-backpressure client-errors
engine-hang nccl-or-comm hardware-fault engine-killed native-crash orderly-shutdown crash-loop
unsupported-config missing-dependency invalid-launch-options max-model-len-exceeds-model too-few-gpus model-not-found port-in-use
known-vllm-bug
"""
CAUSE_IDS: frozenset[str] = frozenset(_CAUSE_IDS.split())
"""The fixed cause ids (DESIGN section 6): a contract. A rule may explain one of them before a file for it exists."""
