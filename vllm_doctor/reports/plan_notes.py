"""The notes of a plan in words (`sentence`), and figures with the digits that are known (`about`)."""

from __future__ import annotations

from ..capacity.setup import GIB
from .words import Words


def about(words: Words, number: float, measured: bool, unit: str = "bytes") -> str:
    """A figure with the digits that are known: an estimate of memory to a tenth of a GiB (below one, to 10 MiB), of tokens to three digits."""
    if measured or not number:
        return words.value(number, unit)
    if unit == "bytes":
        size = abs(number)
        if size >= 1000 * 2**20:
            return f"{number / GIB:,.1f} GiB"
        return f"{round(number / 2**20, -1 if size >= 100 * 2**20 else 0):,.0f} MiB"
    step = 10 ** max(len(str(int(abs(number)))) - 3, 0)
    return words.value(int(number / step) * step, unit)


_UNITS = {
    **dict.fromkeys(("missing", "copy", "headroom", "graphs", "free", "budget", "ecc_on", "ecc_off", "each", "further"), "bytes"),
    **dict.fromkeys(("tokens", "length", "longest", "batched", "window"), "tokens"),
}


def sentence(words: Words, code: str, values: dict[str, float | str]) -> str:
    """A note in words."""
    _ = words._
    text = {
        "no-kv": _("It does not start: weights and peak exceed what vLLM may use by {missing}."),
        "below-max-len": _("It does not start with a length of {length}: about {longest} fit (surely {safe}, at best {most})."),
        "may-not-start": _("It may start with a length of {length}, within the error of the estimates: about {longest} fit (surely {safe})."),
        "graphs-outside": _(
            "It may start: CUDA graphs of about {graphs} are captured outside the budget, and {missing} are lacking there. Lower the utilization."
        ),
        "no-cache": _("It starts: the model keeps no KV cache, so memory does not limit requests; at most {seqs} run at once (--max-num-seqs)."),
        "heads-split": _("It does not start: {heads} attention heads cannot be divided among {tp} GPUs."),
        "kv-heads-split": _("It does not start: {heads} KV heads can neither be divided among {tp} GPUs nor repeated on them."),
        "mlp-split": _("It does not start: an MLP of width {width} cannot be divided among {tp} GPUs."),
        "vocabulary-split": _("It does not start: a vocabulary of {vocabulary} cannot be divided among {tp} GPUs."),
        "stages": _("It does not start: {layers} layers cannot be spread over {pp} pipeline stages."),
        "context-parallel": _("It does not start: {dcp} GPUs cannot share the tokens of the KV cache where {tp} GPUs share its heads."),
        "free-below-budget": _(
            "It does not start: free memory below the budget ({free} free, {budget} wanted). Lower the utilization or free the card."
        ),
        "overcommitted": _("It does not start: it would take {missing} more than the card has."),
        "batched-below-length": _(
            "It does not start: without chunked prefill --max-num-batched-tokens ({batched}) must not be below the length ({length})."
        ),
        "batched-below-seqs": _("It does not start: --max-num-batched-tokens ({batched}) must not be below --max-num-seqs ({seqs})."),
        "model-limit": _(
            "It does not start with a length of {length}: the model's limit is {limit}, whatever the memory. Only rope scaling or "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 lift it."
        ),
        "old-card": _("It does not start: vLLM needs a GPU of compute capability {needs} or higher, and {card} has {has}."),
        "old-card-for-method": _("It does not start: this version's {method} needs compute capability {needs} or higher, and {card} has {has}."),
        "old-version": _("It does not start: vLLM {version} does not know the model ({architecture}); {first} is the first release that does."),
        "perhaps-old-version": _(
            "vLLM {version} does not know the model ({architecture}; {first} is the first release that does): if at all it runs through "
            "Transformers, and the figures are those of a release that knows it."
        ),
        "limit-binds": _("{limit} is the model's limit: it binds, not the memory."),
        "wish-above-limit": _("A request of {tokens} exceeds the model's limit of {limit}, whatever the memory."),
        "free-near-budget": _("It may start: the budget of {budget} is about what is free ({free}). Lower the utilization."),
        "wish-above-length": _("A request of {tokens} is refused with --max-model-len {limit}: the command below sets {command}."),
        "queue": _(
            "Of {wanted} wanted at once, {fits} fit at {tokens} each; others wait or are preempted. A full KV cache gives no CUDA out of memory."
        ),
        "edge": _("{wanted} at once may or may not fill the KV cache: {fits} fit at {tokens} each, {low} at the cautious end of the estimates."),
        "room": _(
            "{wanted} at once cannot fill the KV cache: {fits} surely fit at {tokens} each. An out-of-memory error at this load has another cause."
        ),
        "room-in-kv": _("{wanted} at once cannot fill the KV cache: {fits} surely fit at {tokens} each."),
        "seqs": _("--max-num-seqs allows {limit} of the {wanted} wanted requests to run."),
        "tight-headroom": _(
            "Only {headroom} are left over, while this version captures CUDA graphs of about {graphs} outside the budget: lower the utilization."
        ),
        "ecc": _(
            "{card} shows {ecc_on} with ECC on and {ecc_off} with ECC off: figures are for ECC on, upper ends for ECC off. The GiB of your own card "
            "(--gpu) narrow them."
        ),
        "other-device": _(
            "The account is one of GPUs with CUDA and has not been checked on {card}: there the platform's plugin decides what is profiled and kept "
            "free, so ranges may not hold and parts may be called otherwise."
        ),
        "no-bf16": _("{card} has no bfloat16: vLLM needs --dtype float16 there."),
        "no-fp8": _("{card} has no FP8 arithmetic: check that an attention backend of this version can store FP8 there."),
        "blocks-split": _(
            "{width} divided among {tp} GPUs is no multiple of {block}: checkpoints in FP8 or 4 bits with blocks or groups of {block} fail to load "
            "so, unless they are padded or --enable-expert-parallel keeps experts whole."
        ),
        "sliding-window": _(
            "{layers} of {total} layers keep a window of {window} only: {each} per token holds within it, and every further token of a request "
            "takes {further}. That is why more tokens fit than {each} for each would allow."
        ),
        "replicated-heads": _("The model has {heads} KV heads: with {tp} GPUs they are replicated, and the KV cache per GPU stops shrinking."),
        "no-effect": _("{flag} does not change what fits."),
        "takes-memory": _("Not modelled: {flag} takes memory, so less fits than is said here."),
        "not-modelled": _("Not modelled, carried into the command as given: {flag}."),
        "perhaps-meant": _("{flag} is not known here and was carried along: did you mean {close}?"),
        "no-such-option": _("vLLM {version} has no {flag}: it is left out of the command."),
        "version-outside": _("vLLM {version} was not read: the figures are those of {nearest}, the nearest release known."),
        "checkpoint": _(
            "The figures are those of a checkpoint quantised as {kind}. No option of vLLM says that: give such a checkpoint as the model."
        ),
        "log-differs": _("The log is of another set-up ({what}): only its weights were used, and nothing else is measured."),
        "log-version": _("The log states no version: the last with its engine, {version}, was taken. Give --vllm-version if it is another."),
        "first-start": _(
            "The figures are those of a first start, with an empty torch.compile cache: a copy of the embedding ({copy}) is its peak. With a warm "
            "cache the KV cache is larger by up to as much."
        ),
        "compressed-cache": _(
            "How many requests fit cannot be told: this model compresses its KV cache by layer, which is not modelled. Weights and the size of the "
            "cache are estimates as for others; tokens and requests below are not."
        ),
        "wide-band": _("For models of this kind the estimate of the peak is loose: encoder, states and workspaces differ by version."),
    }[code]
    if code == "may-not-start" and not values["safe"]:
        text = _("It may start with a length of {length}, within the error of the estimates: about {longest} fit (surely no useful length).")
    if code == "wish-above-length" and not values["command"]:
        text = _("A request of {tokens} is refused with --max-model-len {limit}, and a longer limit does not start.")
    if code == "old-card-for-method" and values["later"]:
        text = _(
            "It does not start: this version's {method} needs compute capability {needs} or higher, and {card} has {has}, which is enough from "
            "vLLM {later} on."
        )
    if code == "graphs-outside" and not values["lower"]:
        text = _("It may start: CUDA graphs of about {graphs} are captured outside the budget, and {missing} are lacking there.")
    if code == "below-max-len" and not values["safe"]:
        text = _("It does not start with a length of {length}: about {longest} fit (surely no useful length, at best {most}).")
    if code == "below-max-len" and not values["longest"]:
        text = _("It does not start with a length of {length}: none fits by the middle estimate, and at best {most}.")
    if code == "may-not-start" and not values["longest"]:
        text = _("It may start with a length of {length}, at the favourable end of the estimates only: by the middle one no length fits.")

    def figure(name: str, value: float) -> str:
        unit = _UNITS.get(name, "count")
        return about(words, value, code not in _ROUGH) if unit == "bytes" else words.value(value, unit)

    return text.format(**{k: v if isinstance(v, str) else figure(k, v) for k, v in values.items()})


_ROUGH = frozenset(("no-kv", "overcommitted", "tight-headroom", "graphs-outside", "free-near-budget"))
"""Notes whose sizes are estimates."""
