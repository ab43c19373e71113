"""Signs by which a single line tells what it belongs to. Data for `framing`."""

from __future__ import annotations

import re

from .lazy import lazy


def _any(*alternatives: str) -> re.Pattern[str]:
    return lazy("|".join(alternatives))


METRICS = _any(
    r"# (?:HELP|TYPE) [a-zA-Z_:]",
    r"(?:vllm[:_]|process_|python_|http_request)[\w:]*\w(?:\{[^}]*\}?)? +[-+\d.eEinfNa]+\s*$",
    r"# EOF\s*$",
    r"vllm:\w+\{",
)
GPU = _any(
    r"NVIDIA-SMI|NVSMI LOG|nvidia_smi_log",
    r"GPU \d+: .*\(UUID: ",
    r"ROCm System Management|End of ROCm SMI|AMD-SMI|npu-smi|HL-SMI|\bNVITOP\b",
    r"# gpu +(?:pwr|pid|sm)\b",
    r"(?:index|name|gpu_uuid|pid|timestamp|memory\.\w+)(?: \[\w+\])?, .*(?:memory\.|utilization\.|used_)",
    r"\[\d+\] .+\| *\d+.C, +",
)
"""A line that is from a GPU tool whatever stands around it."""
GPU_TABLE = _any(
    r"\s*[+|][-=+ ]{10,}[+|]?\s*$",
    r"\s*\|.*(?:MiB|Driver Version|Volatile|Persistence-M|MIG M|Processes|GPU +GI|PID +Type|No running).*\|",
    r"\s*\|\s+(?:N/A +)?\d+%? +\d+C .*\|",
    r"\s*\|\s+\d+ +.*\|.*\|",
    r"\s*\|[ |]*\|\s*$",
    r"\s*\|\s+(?:ID|Usage|Fan).*\|",
)
"""A row of a box, within or right above a GPU dump."""
GPU_ROW = _any(
    r"[^,]{1,80}(?:, [^,]{1,80})*, \d+ (?:MiB|%)",
    r"\s{2,}[A-Z][\w /\-.()]+ {2,}: ",
    r"GPU [0-9A-F]{8}:",
    r"\d+, NVIDIA",
    r"GPU\[\d+\]",
    r"={10,}",
)
"""A row of a dump without boxes, after its first line."""
DATE = lazy(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d (?:\w+ )?\d{4}\s*$")
_PROMPT = r"(?:[$#>%] ?|\w[\w.\-]*@[\w.\-]+[^$#]{0,60}[$#] ?|- |command: |args: |CMD |ENTRYPOINT |ExecStart=)?"
_BEFORE = r"(?:[A-Z_][A-Z0-9_]*=\S* +|sudo |nohup |exec |time |numactl \S+ )*"
LAUNCH = lazy(
    rf"\s*{_PROMPT}{_BEFORE}"
    r"(?:[\w./~\-]*vllm\"? +\"?serve\b(?!: error)|[\w./~\-]*python[\d.]*\"? +(?:-u +)?-m +vllm\.|(?:docker|podman|nerdctl) +(?:run|compose)\b"
    r"|uv run vllm|[\w./]*python[\d.]* +\S*api_server\.py)"
)
LAUNCH_FILE = lazy(r"\s*(?:services:|apiVersion:|containers:|command:|args:|# docker compose|version: ?['\"]?3)")
LAUNCH_MORE = _any(
    r"\s*- +[\"']?--?[a-z]",
    r"\s*[\"']?--[a-z][a-z0-9\-]+",
    r"\s*- [\"']?[\w./:\-]+[\"']?\s*$",
    r"\s*-[ev] \S",
    r"\s*(?:services|command|image|environment|args|entrypoint|containers|resources|volumes|ports|deploy|spec|template|env):",
    r"\s*[a-z_\-]+:\s*$",
    r"\s*[}\])]+,?\s*$",
)
KERNEL = _any(
    r"NVRM: ",
    r"\]: segfault at ",
    r"\boom-kill:constraint=|Out of memory: Kill|invoked oom-killer|oom_reaper:|Memory cgroup out of memory|memory: usage \d+kB",
    r"nvidia-nvswitch\d|pcieport .*AER",
    r"(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ )?kernel: ",
    r"\[ *\d{1,9}\.\d{6}\] ",
    r"traps: \S+\[\d+\]",
)
LOG = _any(
    r"Traceback \(most recent call last\)",
    r"^\s+File \"[^\"]+\", line \d+",
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:\([\w.]+\))?: ",
    r"throughput: [\d.]+ tokens/s",
    r"\" \d{3} (?:OK|Bad Request|Internal Server Error|Not Found|Unauthorized|Service Unavailable)",
    r"KV cache (?:size|usage): |# \w+ blocks: ",
    r"[\w. ]{1,40}: error: (?:unrecognized arguments: |argument |the following arguments are required)",
    r"died unexpectedly|Aborted request |Uvicorn running|Application startup complete|recovered from upstream disconnection",
)
WRAPPED = _any(
    r"\{\"(?:log|message|asctime|MESSAGE|@timestamp|time|timestamp|ts|level|levelname|line|textPayload)\"",
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d",
    r"\[pod/",
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./\-]+\[\d+\]: ",
    r"[A-Za-z][\w.\-]*\s+\| (?=\S)(?!.*\|\s*$)",
)
