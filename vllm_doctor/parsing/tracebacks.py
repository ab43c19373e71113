"""Python tracebacks in raw bytes: where they end, what was raised, and in which phase of vLLM's life.

vLLM repeats the whole head on every line of a logged traceback; an uncaught one has no head, or only a process tag. Lines of
other processes may lie between. So a traceback is followed by the bytes in front of its first line.
"""

from __future__ import annotations

import re

from msgspec import Struct

from . import lines
from .lazy import lazy

HEADER = b"Traceback (most recent call last)"
MAX_LINES = 600
MAX_BYTES = 128 * 1024
FOREIGN = 100
"""Lines of other output within one traceback after which it counts as cut off."""
LOOK_BACK = 200
"""Lines above an error whose traceback has lost its first line in which frames are looked for."""

_HEAD = lazy(lines.RAW_HEAD)
_INDENT = frozenset((b" ", b"\n", b"\r", b"\t", b"", b"|", b"+"))
_CONTINUES = (b"Traceback (most", b"During handling", b"The above exc")
_CONTINUES_TEXT = tuple(text.decode() for text in _CONTINUES)
_LEVELS = (b"INFO", b"WARNING", b"ERROR", b"DEBUG")
_FRAME = lazy(r'File "(?P<file>[^"]{1,400})", line \d+, in (?P<function>[^\s]{1,120})')
_RAISED = lazy(r"(?P<type>[A-Za-z_][\w.]{0,120})(?::(?: (?P<message>.*))?)?$", re.DOTALL)
_ERROR_TYPE = lazy(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Timeout|Interrupt|Failure)(?:\([\w.]+\))?: ")


class Frame(Struct, frozen=True):
    """One call. `file` is the path as printed."""

    file: str
    function: str


class Traceback(Struct, frozen=True):
    """A traceback in `data`: where its first line ends, what every line of it starts with, and where the line that names the exception
    begins."""

    header_end: int
    prefix: bytes
    raised_at: int

    def frames(self, data: bytes) -> tuple[Frame, ...]:
        """Outermost first."""
        start = b"\n" + self.prefix + b'  File "'
        found: list[Frame | None] = []
        at = data.find(start, self.header_end, self.raised_at)
        while at >= 0:
            found.append(_frame(data, at + 1 + len(self.prefix)))
            at = data.find(start, at + 1, self.raised_at)
        return tuple(f for f in found if f is not None)


def _frame(data: bytes, at: int) -> Frame | None:
    end = data.find(b"\n", at, at + 1000)
    found = _FRAME.search(data[at : end if end >= 0 else at + 1000].decode("utf-8", "replace"))
    return Frame(found["file"], found["function"]) if found else None


def _unindented(data: bytes, start: bytes, position: int, limit: int) -> int:
    """The first line from `position` on that begins with `start` (a newline and a head) and whose message is not indented; -1 if none."""
    size, find = len(start), data.find
    while (position := find(start, position, limit)) >= 0:
        position += size
        if data[position : position + 1] not in _INDENT:
            return position - size + 1
    return -1


def follow(data: bytes, header: int) -> Traceback | None:
    """The traceback whose `HEADER` is at this offset; None where the data end or other output cut it off."""
    begin = data.rfind(b"\n", 0, header) + 1
    prefix = data[begin:header]
    header_end = position = data.find(b"\n", header, header + 4096)
    limit = min(len(data), header + MAX_BYTES)
    if position >= 0 and _HEAD.fullmatch(prefix):
        at = _unindented(data, b"\n" + prefix, position, limit)
        if at >= 0 and data.count(b"\n", position, at) < FOREIGN:
            return None if data.startswith(_CONTINUES, at + len(prefix)) else Traceback(header_end, prefix, at)
    own = lines.head(lines.text_of(prefix + b"T"))
    foreign = 0
    for _ in range(MAX_LINES):
        if position < 0 or position + 1 >= limit or foreign > FOREIGN:
            return None
        position += 1
        end = data.find(b"\n", position, limit)
        if data.startswith(prefix, position):
            at = position + len(prefix)
            if own.level is None and data.startswith(_LEVELS, at):
                foreign += 1
            elif data[at : at + 1] not in _INDENT:
                text = lines.text_of(data[at : min(end if end >= 0 else limit, at + 300)])
                if own.level is not None or (lines.head(text).level is None and lines.head(text).process is None):
                    if text.startswith(_CONTINUES_TEXT):
                        return None
                    return Traceback(header_end, prefix, position)
                foreign += 1
        else:
            foreign += 1
        position = end
    return None


def above(data: bytes, begin: int) -> tuple[Frame, ...]:
    """The frames right above a line, for a paste that starts inside a traceback. Outermost first."""
    frames: list[Frame] = []
    end = begin - 1
    for _ in range(LOOK_BACK):
        if end <= 0:
            break
        start = data.rfind(b"\n", 0, end) + 1
        text = lines.text_of(data[start : min(end, start + 1000)])
        message = text[lines.head(text).start :]
        if not message.startswith((" ", "\t")) and 'File "' not in message[:8]:
            break
        found = _FRAME.search(message)
        if found:
            frames.append(Frame(found["file"], found["function"]))
        end = start - 1
    return tuple(reversed(frames))


def below(data: bytes, begin: int) -> tuple[Frame, ...]:
    """The frames of a traceback that starts right below a line, which says in advance what it ends with. Outermost first."""
    end = data.find(b"\n", begin)
    after = data.find(b"\n", end + 1, end + 1000) if end >= 0 else -1
    header = data.find(HEADER, end + 1, after if after >= 0 else end + 1000) if end >= 0 else -1
    if header < 0:
        return ()
    prefix = data[end + 1 : header]
    frames: list[Frame] = []
    for _ in range(LOOK_BACK):
        end = data.find(b"\n", end + 1)
        if end < 0 or not data.startswith(prefix, end + 1):
            break
        at = end + 1 + len(prefix)
        if at != header and data[at : at + 1] != b" ":
            break
        frame = _frame(data, at)
        frames += [frame] if frame is not None else []
    return tuple(frames)


def raised(message: str) -> tuple[str, str] | None:
    """Class and message of the line that ends a traceback."""
    found = _RAISED.match(message.rstrip())
    return (found["type"], found["message"] or "") if found else None


def names_error(message: str) -> bool:
    """Whether a line reads like the end of a traceback that is not there."""
    return _ERROR_TYPE.match(message) is not None


_FUNCTIONS = {
    "weights": (
        "load_model get_model initialize_model _initialize_model load_weights create_weights process_weights_after_loading "
        "_process_weights_after_loading"
    ),
    "profile": (
        "determine_num_available_blocks profile_num_available_blocks determine_available_memory profile_run profile_encoder_cache "
        "profile_cudagraph_memory"
    ),
    "kv_alloc": (
        "initialize_cache _init_cache_engine init_cache_engine initialize_from_config initialize_kv_cache initialize_kv_cache_tensors "
        "_allocate_kv_cache _allocate_kv_cache_tensors allocate_gpu_cache allocate_cpu_cache allocate_kv_cache init_kv_cache"
    ),
    "graphs": "capture_model _capture_cudagraphs compile_or_warm_up_model _warm_up_model capture_end warm_up_model",
    "warmup_sampler": "_dummy_sampler_run _dummy_pooler_run",
    "sampler": (
        "compute_logits _get_logits _get_logprobs _get_prompt_logprobs_dict _apply_top_k_top_p apply_top_k_top_p apply_penalties compute_logprobs "
        "gather_logprobs topk_topp_sampler _sample"
    ),
    "encoder": (
        "_execute_mm_encoder _execute_encoder get_multimodal_embeddings embed_multimodal _process_image_input _process_video_input "
        "_process_audio_input"
    ),
    "lora": "create_lora_weights load_lora_model maybe_setup_dummy_loras activate_adapter add_lora apply_lora",
    "quantization": "awq_dequantize gptq_gemm gptq_shuffle",
    "forward": "execute_model _model_forward run_busy_loop _process_engine_step engine_step run_engine_loop _handle_process_request",
}
_BY_FUNCTION = {name: phase for phase, names in _FUNCTIONS.items() for name in names.split()}
_BY_FILE = (
    ("sampler", re.compile(r"/(?:v1/sample/|v1/worker/gpu/sample/|model_executor/layers/(?:sampler|logits_processor|rejection_sampler))")),
    ("lora", re.compile(r"/vllm/lora/")),
    ("encoder", re.compile(r"/gpu/mm/encoder_runner|/models/(?:clip|siglip|qwen2_vl|qwen2_5_vl|intern_?vit|pixtral)\.py")),
    ("quantization", re.compile(r"/layers/quantization/(?:awq|gptq|bitsandbytes|squeezellm|gguf)\.py")),
    ("graphs", re.compile(r"torch/cuda/graphs\.py")),
)
_REFINES = {
    "forward": {"sampler", "encoder", "lora", "quantization", "graphs", "weights", "profile", "kv_alloc", "warmup_sampler"},
    "profile": {"sampler", "encoder", "warmup_sampler"},
    "kv_alloc": {"graphs", "warmup_sampler"},
    "graphs": {"warmup_sampler"},
    "weights": {"lora"},
}
"""A phase function closer to the error that replaces an outer one. Only the engine loop may be replaced by a start-up phase."""


def phase(frames: tuple[Frame, ...]) -> tuple[str, str | None]:
    """The phase of vLLM that the frames belong to, and the vLLM frame that decided it, as `path:function`."""
    current, decided = "unknown", None
    for frame in frames:
        found = _phase_of(frame)
        if found is None or found == current:
            continue
        if current == "unknown" or found in _REFINES.get(current, ()):
            current = found
            decided = f"{re.sub(r'^.*?/vllm/', 'vllm/', frame.file)}:{frame.function}"
    return ("sampler" if current == "warmup_sampler" else current), decided


def _phase_of(frame: Frame) -> str | None:
    if "vllm" in frame.file and frame.function in _BY_FUNCTION:
        return _BY_FUNCTION[frame.function]
    return next((name for name, pattern in _BY_FILE if pattern.search(frame.file)), "graphs" if frame.function == "capture_end" else None)
