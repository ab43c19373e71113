"""A config.json as it is found: with a byte-order mark, with numbers in quotes, with nonsense."""

from __future__ import annotations

import json

import pytest

from vllm_doctor.capacity.config_json import ConfigInvalid, model_from_config

CONFIG: dict[str, object] = {
    "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip


def test_a_byte_order_mark_and_numbers_as_strings_change_nothing() -> None:
    quoted = {k: str(v) if isinstance(v, int) else v for k, v in CONFIG.items()}
    assert model_from_config("\ufeff" + json.dumps(quoted)) == model_from_config(json.dumps(CONFIG))


@pytest.mark.parametrize("value", [28.5, "28.5"])
def test_a_fraction_of_a_head_is_refused(value: object) -> None:
    with pytest.raises(ConfigInvalid, match=r"num_attention_heads is 28\.5, which is no whole number"):
        model_from_config(json.dumps(CONFIG | {"num_attention_heads": value}))
