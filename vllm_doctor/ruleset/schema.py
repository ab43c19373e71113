"""The shapes of the YAML files under `rules/`. Unknown keys are refused; `load` turns violations into located errors."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from ..model.observations import Scalar
from ..model.report import RemedyKind, Severity, Status, Weight

WhenText = str | list[Any] | dict[str, Any]


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence in each language. `{signal}` inserts a signal's value in its unit."""

    en: str
    zh: str

    def in_language(self, language: str) -> str:
        return self.zh if language == "zh" else self.en


class Applies(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rule holds. `version` is a specifier such as `>=0.8,<0.11`; an unknown version makes it unknown.
    `device` is vLLM's device word (`cpu`, `cuda`) or its negation (`!cpu`)."""

    version: str | None = None
    engine_generation: Literal["V0", "V1"] | None = None
    device: str | None = None


class Gives(Struct, frozen=True, forbid_unknown_fields=True):
    """How a named group becomes an observation. Without `field` the observation only marks that the line was seen."""

    field: str | None = None
    unit: Literal["", "bytes", "KiB", "MiB", "GiB", "kB", "s", "ms", "%", "ratio", "tokens", "count", "text"] = ""
    value: Scalar | None = None  # a constant, for lines whose wording is the information


class Sample(Struct, frozen=True, forbid_unknown_fields=True):
    """One wording: the line as the user has it and everything that must be read off it."""

    version: str
    line: str
    want: dict[str, Scalar]
    before: str = ""  # earlier lines, for records of several lines


class Format(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of line. `literal`s are looked for in raw bytes first; only then the regex or the named parser runs.

    `origin` are the `[file.py:` tokens that may print it (empty: any); it is documentation and breaks ties, not a condition:
    file names move between versions. `begins` marks a banner: a new part of the stream starts here."""

    id: str
    literal: str | list[str]
    samples: list[Sample]
    gives: dict[str, Gives] | list[str]
    origin: list[str] = field(default_factory=list)
    since: str | None = None
    until: str | None = None
    regex: str | None = None
    parser: str | None = None
    begins: Literal["api", "engine"] | None = None
    note: str = ""


class Threshold(Struct, frozen=True, forbid_unknown_fields=True):
    """A named limit with its unit in `value`, such as `85 %`. What nobody measured is `heuristic`."""

    value: str
    basis: Literal["mechanism", "measured", "heuristic"]
    reason: str
    source: str | None = None


class EvidenceRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One observation that speaks for or against a cause. `severity` replaces the cause's where this holds."""

    when: WhenText
    weight: Weight
    why: Text
    variant: str | None = None
    applies: Applies | None = None
    severity: Severity | None = None


class CauseTest(Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine must answer on a fixture or on lines given here. `since`/`until` count from the first observation."""

    name: str
    expect: Literal["confirmed", "likely", "possible", "ruled_out", "not_indicated", "not_checked"]
    case: str | None = None
    log: str | None = None
    since: str | None = None
    until: str | None = None
    missing: list[str] | None = None


class NotRemedyRule(Struct, frozen=True, forbid_unknown_fields=True):
    """Advice that is often given for this cause and does not help, with the reason. `where` names conditions of `remedies/conditions.py`."""

    flag: str
    because: Text
    when: WhenText | None = None
    applies: Applies | None = None
    where: list[str] = field(default_factory=list)


class Face(Struct, frozen=True, forbid_unknown_fields=True):
    """How one variant of a cause is called, where it is another trouble from the same root."""

    title: Text
    summary: Text


class Cause(Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    """One cause: evidence for and against, thresholds with reasons, remedies, tests. `phase` says when it can strike: a cause of
    serving is out of the question for a server that never came up. `faces` name variants that are not what the title says."""

    id: str
    maturity: Literal["stable", "testing", "experimental"]
    severity: Severity
    title: Text
    summary: Text
    sources: list[str]
    for_: list[EvidenceRule]
    tests: list[CauseTest]
    phase: Literal["serving"] | None = None
    applies: Applies | None = None
    faces: dict[str, Face] = field(default_factory=dict)
    thresholds: dict[str, Threshold] = field(default_factory=dict)
    against: list[EvidenceRule] = field(default_factory=list)
    explains: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    not_remedies: list[NotRemedyRule] = field(default_factory=list)
    false_positives: list[str] = field(default_factory=list)


class ChangeRule(Struct, frozen=True, forbid_unknown_fields=True):
    """The lever. Exactly one of `flag` and `env`; `to` is a fixed value, `solve` in the remedy computes one."""

    flag: str | None = None
    env: str | None = None
    action: Literal["set", "remove"] = "set"
    to: Scalar | None = None


class Remedy(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to change. `when` and `where` bound it to cases where it helps: `when` compares signals, `where` names conditions of
    `remedies/conditions.py` that ask for more than a signal. Version bounds of options live in `knowledge/flags.yaml` only.

    `solve` names a function of `remedies/solvers.py`. `lever` names what is moved where it is no option of the server (a closed list in
    `remedies/levers.py` and `remedies/servers.py`), so that its effect can be predicted all the same."""

    id: str
    title: Text
    kind: RemedyKind
    risk: Text
    verify: Text
    sources: list[str]
    change: ChangeRule | None = None
    solve: str | None = None
    lever: str | None = None
    when: WhenText | None = None
    where: list[str] = field(default_factory=list)
    applies: Applies | None = None


class FlagDefault(Struct, frozen=True, forbid_unknown_fields=True):
    """A default with the versions and engine it holds for. `values` lists all possible ones where the hardware decides."""

    values: list[Scalar]
    since: str | None = None
    until: str | None = None
    engine_generation: Literal["V0", "V1"] | None = None
    device: str | None = None


class FlagWords(Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of an option, in another language than English."""

    default: str
    effect: str
    notes: str = ""


class Flag(Struct, frozen=True, forbid_unknown_fields=True):
    """A launch option or environment variable: the versions that have it, its defaults, what it does; the same in Chinese.

    `effective` lists where it has an effect at all (empty: wherever it exists); `value_versions` the versions that know a value, for values
    younger than the option. `conflicts` are `OTHER SPECIFIER`: where the two must not be combined."""

    name: str
    first_version: str
    last_version: str
    default: str
    effect: str
    notes: str = ""
    zh: FlagWords | None = None
    env: bool = False
    aliases: list[str] = field(default_factory=list)
    defaults: list[FlagDefault] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    effective: list[Applies] = field(default_factory=list)
    value_versions: dict[str, str] = field(default_factory=dict)

    def words(self, language: str) -> FlagWords:
        """Default, effect and notes in a language; in English where there is no other."""
        return self.zh if language == "zh" and self.zh else FlagWords(self.default, self.effect, self.notes)


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """A Prometheus family of vLLM and the name it has here (`signal`; empty where nothing uses it yet)."""

    name: str
    type: Literal["gauge", "counter", "histogram", "summary", "info"]
    first_version: str
    last_version: str
    meaning: str
    signal: str = ""
    unit: Literal["", "ms"] = ""
    notes: str = ""


class Input(Struct, frozen=True, forbid_unknown_fields=True):
    """Something a user can attach. Its id is what `Unknown.missing` names."""

    id: str
    how_to_get: Text


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model's shape: what decides its weights and its KV cache. Keys are those of a Hugging Face `config.json` where it has one.

    `source` and `confidence` say where the shape was read and how far to trust it. `kv_bytes_full` and `kv_bytes_sliding` are bytes per
    token at 2 bytes per element over all layers of that kind, given only where they do not follow from heads and head size (shared KV,
    compressed caches). `indexer_layers` keep an index of tokens besides (DeepSeek sparse attention). State bytes are per request at
    tensor-parallel size 1. `weights_gib` is the 16-bit checkpoint as loaded, `loaded_gib` a checkpoint that is only published quantised, as a
    log showed it on one GPU; `measured_weights` quotes loading lines of real logs. `quantised` lists published variants as `NAME:bits`."""

    name: str
    source: str
    confidence: str
    kind: Literal["dense", "moe", "vlm", "hybrid", "mla", "embedding", "encoder-decoder"] = "dense"
    aliases: list[str] = field(default_factory=list)
    family: str = ""
    architecture: str = ""
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    moe_intermediate_size: int | None = None
    num_experts: int | None = None
    experts_per_tok: int | None = None
    shared_experts: int | None = None
    shared_expert_intermediate_size: int | None = None
    first_dense_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    vocab_size: int | None = None
    hidden_size_per_layer_input: int | None = None
    tie_word_embeddings: bool | None = None
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    sliding_window_pattern: str = ""
    attn_layers_full: int | None = None
    attn_layers_sliding: int | None = None
    kv_bytes_full: int | None = None
    kv_bytes_sliding: int | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    qk_nope_head_dim: int | None = None
    indexer_layers: int | None = None
    linear_layers: int | None = None
    linear_type: str = ""
    linear_state: str = ""
    conv_state_bytes_per_seq: int | None = None
    ssm_state_bytes_per_seq: int | None = None
    total_params_b: float | None = None
    active_params_b: float | None = None
    published_params_b: float | None = None
    published_source: str = ""
    checkpoint_dtype: str = ""
    quantised: list[str] = field(default_factory=list)
    weights_gib: float | None = None
    loaded_gib: float | None = None
    measured_weights: str = ""
    vision_params_m: float | None = None
    note: str = ""


class Gpu(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A card. `visible_gib` is what CUDA (or its like) reports as total, lowest and highest seen, per device; `fp8` whether it computes
    in FP8; `ecc` whether the lowest is with ECC on and the highest with ECC off; bandwidth in GB/s. `large_defaults`: does vLLM give it the
    defaults of large GPUs (0.9 and later)?"""

    name: str
    source: str
    vendor: str
    marketed_gb: float
    visible_gib: list[float]
    aliases: list[str] = field(default_factory=list)
    compute_capability: str = ""
    fp8: bool = False
    bf16: bool = True
    ecc: bool = False
    bandwidth_gb_s: float | None = None
    interconnect: str = ""
    tdp_w: float | None = None
    devices_per_card: int = 1
    note: str = ""


class Myth(Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of an option, and what holds."""

    claim: Text
    truth: Text


class FlagNote(Struct, frozen=True, forbid_unknown_fields=True):
    """What an option of `flags.yaml` changes in memory and latency, and the myths about it."""

    flag: str
    memory: Text
    latency: Text
    myths: list[Myth] = field(default_factory=list)


class Method(Struct, frozen=True, forbid_unknown_fields=True):
    """A quantisation method: the least compute capability that it `needs`, by the first release for which that holds, the oldest first."""

    name: str
    source: str
    needs: dict[str, float]


class Architecture(Struct, frozen=True, forbid_unknown_fields=True):
    """An architecture as config.json names it, and the first release that knows it."""

    name: str
    source: str
    since: str


class Knowledge(Struct, frozen=True):
    """Models, cards, what they need, and notes on options: large, and needed by few commands, so it is no part of RuleSet and is loaded when asked
    for."""

    models: list[Model]
    gpus: list[Gpu]
    notes: list[FlagNote] = field(default_factory=list)
    methods: list[Method] = field(default_factory=list)
    architectures: list[Architecture] = field(default_factory=list)


class Accuracy(Struct, frozen=True, forbid_unknown_fields=True):
    """How often findings of a status were right on labelled cases (docs/accuracy.md)."""

    status: Status
    right: int
    of: int

    @property
    def confidence(self) -> float:
        """Laplace's rule of succession: a few dozen cases prove no certainty."""
        return round((self.right + 1) / (self.of + 2), 2)


class RuleSet(Struct, frozen=True):
    """Everything under `rules/`, checked."""

    version: str
    formats: list[Format]
    causes: list[Cause]
    remedies: list[Remedy]
    flags: list[Flag]
    metrics: list[Metric]
    inputs: list[Input]
    accuracy: list[Accuracy] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)  # notes on user rules that replaced shipped ones
