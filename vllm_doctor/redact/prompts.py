"""Prompts, outputs and token ids in request lines, dumps, request bodies and validation errors.

The wordings are those of vLLM 0.2.7 to 0.33 (`Received request`, `Generated response`, `Request ... details`, `Dumping scheduler output`,
reprs of its request and output types), of OpenAI-style bodies, and of pydantic's errors.
"""

from __future__ import annotations

import re

from .spans import MASK, Lazy, balanced_end, line_end, mask, opening_quote, quoted_end, words

_TEXTS = (
    "system_prompt|negative_prompt|prompt_text|prompt_str|prompts?|generated_text|output_text|outputs?|completions?|texts?|contents?|input_text|input_value"
    "|inputs?|messages|documents?|question|instructions?|arguments|delta_text|decoded_token|reasoning(?:_content)?|refusal|raw_request|request_body|payload"
)
_NAMED = Lazy(rf"(?:(?<![\w-])|(?<=\\[nrt]))({_TEXTS})(?:(?:\\{{0,15}}[\"'])?\s{{0,3}}[:=：]\s{{0,3}}|(?<=prompt) (?=[\"']))", re.IGNORECASE)
_TRIGGER = re.compile(
    r"prompt|output|generated|complet|text|content|input|messages|document|question|instruct|argum|delta|decoded|params:|reason|refusal|raw_req|request_b|payload",
    re.IGNORECASE,
)
NEAR = 2048
"""How far a part of the same record is looked for; without a bound a hostile text could make the work quadratic."""
_ONLY_QUOTED = frozenset({"text", "texts", "document", "question", "completion", "content", "reasoning", "instruction"})
_FIELDS = ("[CompletionOutput", "[PoolingOutput", "[Sample", "['ipc:", "['tcp:", "['inproc:")
_IDS = Lazy(
    r"(?:(?<![\w-])|(?<=\\[nrt]))(\w{0,40}?token[_ ]ids|\w{1,40}_ids|(?:(?:prompt|input|output|generated)_)?tokens|scheduled_spec_decode_tokens)"
    r"(?:\\{0,15}[\"'])?\s{0,3}[:=：]\s{0,3}"
    r"(?:array\('\w', ?|tensor\(|deque\(|ConstantList\()?(?=[\[({])",
    re.IGNORECASE,
)
_KNOWN_IDS = words(
    "stop_token_ids eos_token_ids block_ids new_block_ids resumed_block_ids req_ids request_ids finished_req_ids resumed_req_ids device_ids gpu_ids "
    "worker_ids rank_ids node_ids core_ids cpu_ids layer_ids expert_ids group_ids slot_ids seq_ids lora_ids adapter_ids engine_ids actor_ids"
)
"""Settings of a model and numbers of the program's own, not what somebody wrote."""
_SAID_IDS = words("input_ids output_ids prompt_ids generated_ids decoder_input_ids")
_NUMBERS = Lazy(r"[\[(][\s\[\](),\d]*")
_TENSOR = Lazy(r"(tensor\(|array\()(\[[\s\[]{0,40}\d{1,7},\s{1,40}\d{1,7}(?:[\s,\[\]]{1,40}(?:\d{1,7}|\.\.\.))+)(?![\w.])")
_QUERY = Lazy(r"(?<=[?&])((?:prompt|text|inputs?|q|query|question|content|messages?)=)[^&\s\"'<>*][^&\s\"'<>]*", re.IGNORECASE)
_CHINESE = Lazy(
    r"((?:用户(?:的)?(?:提问|问|输入|问题|消息|请求内容|提示词?|说)|提问|输入内容|模型(?:输出|回答|回复))(?:内容)?\s{0,3}[：:＝=]\s{0,3})(?!\*\*\*)[^\s][^\n]*"
)
_OPEN = Lazy(r"(?:prompt|output)\\{0,15}[\"']?\s{0,3}[:=：]\s{0,3}\\{0,15}[\"'“‘「]$", re.IGNORECASE)
_RECORD = Lazy(r"(?:\([^()\n]{1,60}\) ?){0,3}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+\.py:\d+\]")
"""A line that vLLM's logger wrote: it is no part of a prompt that was logged with its line ends."""
_REQUEST = Lazy(r"Received request|Generated response|Request \S{1,200} details")
_BARE = Lazy(r"(?:prompt|output): ?(?=[^\s'\"\\*\[])", re.IGNORECASE)
_SAID = Lazy(r"(?<=[Pp]rompt: )[^\W\d_]+ \S")
"""Words, not a figure, after `prompt:` in a line that is not one of vLLM's."""
_AFTER = Lazy(r"[\"'”’]?, ?(?:(?:sampling[ _])?params: ?|prompt[_ ]token|prompt_embeds|output_token|finish_reason|lora_request)", re.IGNORECASE)
_TAIL = Lazy(r"[\"'], ?(?:sampling[ _])?params: ?(?:SamplingParams|PoolingParams|BeamSearch)\(")
_CHAT = Lazy(
    r"(?:<\|(?:im_start|start_header_id|user|system|assistant|User|begin_of_text)\|>|\[INST\])[^\n]*?(?:<\|(?:im_end|eot_id)\|>|\[/INST\]|$)", re.M
)
_IMAGE = Lazy(r"(data:[\w/+.-]{1,60};base64,)[A-Za-z0-9+/=_-]+")


def without_prompts(text: str) -> str:
    """`text` with what people wrote and models answered masked. Names and settings around it stay."""
    if _TRIGGER.search(text):
        if "rompt: " in text or "utput: " in text:
            text = _request_lines(text)
        if (tail := _TAIL.re.search(text)) and "prompt:" not in text[: tail.start()]:
            text = mask(text[: tail.start()]) + text[tail.start() :]  # the line begins within a prompt
        text = _named_values(text)
    if "oken" in text or "OKEN" in text or "_ids" in text:
        text = _token_ids(text)
    if "tensor(" in text or "array(" in text:
        text = _TENSOR.re.sub(lambda m: m[1] + "[" + mask(m[2]) + ("]" if m[2].endswith("]") else ""), text)
    if "=" in text and ("?" in text or "&" in text):
        text = _QUERY.re.sub(r"\1" + MASK, text)
    if "用户" in text or "内容" in text or "提问" in text or "模型" in text:
        text = _CHINESE.re.sub(r"\1" + MASK, text)
    if "<|" in text or "[INST]" in text:
        text = _CHAT.re.sub(MASK, text)
    if ";base64," in text:
        text = _IMAGE.re.sub(r"\1" + MASK, text)
    return text


def _named_values(text: str) -> str:
    out: list[str] = []
    done = at = 0
    while match := _NAMED.re.search(text, at):
        at = match.end()
        inner = opening_quote(text, at)
        if inner is not None:
            end, at = quoted_end(text, inner)
            end, at = _word_quotes(text, inner, end, at)
            if end == at and _OPEN.re.search(text, max(match.start() - 8, 0), inner) and _TAIL.re.search(text, end, end + NEAR) is None:
                return "".join([*out, text[done:inner], _rest(text, inner)])
            end, at = _over_lines(text, end, at)
            if end > inner and text[inner:end] != MASK:
                out += [text[done:inner], mask(text[inner:end])]
                done = end
        elif text[at : at + 1] in ("[", "{", "(") and match[1].lower() not in _ONLY_QUOTED:
            if text.startswith(_FIELDS, at):
                continue  # no text: sockets, or a type whose own fields follow
            end = balanced_end(text, at)
            if end - at > 2 and text[at + 1 : end - 1] != MASK:
                out += [text[done : at + 1], mask(text[at + 1 : end - 1]), text[end - 1 : end]]
                done = end
            at = max(end, at + 1)
    return "".join([*out, text[done:]]) if out else text


def _word_quotes(text: str, inner: int, end: int, after: int) -> tuple[int, int]:
    """An apostrophe within a word closes nothing, in a text that was quoted without escapes."""
    while end < after < len(text) and text[after].isalnum() and text[after - 1] in "'\"" and text[inner - 1] == text[after - 1]:
        newline = text.find("\n", after)
        limit = len(text) if newline < 0 else newline
        at = text.find(text[inner - 1], after, limit)
        end, after = (limit, limit) if at < 0 else (at, at + 1)
    return end, after


def _rest(text: str, inner: int) -> str:
    """What follows the quote of a prompt that is not closed in this text: all of it may be the prompt's, but for lines of vLLM's own."""
    first, *others = text[inner:].split("\n")
    cut = "…" if first.endswith("…") else ""
    kept = [line if _RECORD.re.match(line) else (MASK if line.strip() else line) for line in others]
    later = "\n".join(kept)
    return "\n".join([MASK + cut if first else first, *([_named_values(later)] if others else [])])


def _over_lines(text: str, end: int, after: int) -> tuple[int, int]:
    """A prompt that was logged with its line ends runs on to the parameters that follow it."""
    if end == after < len(text) and (tail := _TAIL.re.search(text, end, end + NEAR)):
        return tail.start(), tail.start() + 1
    return end, after


def _request_lines(text: str) -> str:
    """A prompt that lost its quotes runs to the next known part of its line."""
    out, done, at = [], 0, 0
    while match := _BARE.re.search(text, at):
        at = match.end()
        limit = line_end(text, at)
        if text.startswith(("None", "null", MASK), at):
            continue
        if not _REQUEST.re.search(text, max(text.rfind("\n", 0, at), at - 400, 0), at) and not _SAID.re.match(text, at):
            continue
        after = _AFTER.re.search(text, at, limit)
        end = after.start() if after else limit
        out += [text[done:at], MASK]
        done = at = end
    return "".join([*out, text[done:]])


def _token_ids(text: str) -> str:
    out, done, at = [], 0, 0
    while match := _IDS.re.search(text, at):
        at = match.end()
        end = balanced_end(text, at)
        if text[end : end + 1] == "\n" and (numbers := _NUMBERS.re.match(text, at)):  # printed over several lines
            end = max(end, text.rfind("]", at, numbers.end()) + 1)
        name = match[1].lower()
        if not (name.endswith("tokens") or "token" in name) and not re.match(
            r"[\[(\s]*\d+," if name not in _SAID_IDS else r"[\[(\s]*\d", text[at : at + 80]
        ):
            continue  # `*_ids` of something else than numbers
        if name not in _KNOWN_IDS and text[at + 1 : end].strip("[]{}() \n,*"):
            out += [text[done : at + 1], mask(text[at + 1 : end]), text[end - 1 : end] if text[end - 1] in "])}" else ""]
            done = end
        at = end
    return "".join([*out, text[done:]]) if out else text
