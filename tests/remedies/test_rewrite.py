"""The user's launch command with one thing changed: only that, in the layout and quotes that it was written in."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vllm_doctor.parsing.launch import find
from vllm_doctor.parsing.launch_args import Options
from vllm_doctor.remedies.rewrite import Edit, masked, rewritten
from vllm_doctor.ruleset.load import load

FLAGS = load().flags
OPTIONS = Options.of(FLAGS)
SEQS = Edit("--max-num-seqs", "32")
EAGER = Edit("--enforce-eager", "true")
UTIL = Edit("--gpu-memory-utilization", "0.95")
GONE = Edit("--max-num-seqs", None)
SEGMENTS = Edit("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", environment=True)

SHELL = """vllm serve Qwen/Qwen2.5-7B-Instruct \\
    --max-num-seqs 256 \\
    --served-model-name "my model" \\
    --gpu-memory-utilization=0.9 > server.log 2>&1 &"""
COMPOSE = """services:
  vllm:
    image: vllm/vllm-openai:v0.10.2
    command:
      - --model
      - Qwen/Qwen2.5-7B-Instruct
      - --max-num-seqs
      - "256"   # all of them
    ports: ["8000:8000"]
"""
EQUALS = """    image: vllm/vllm-openai:v0.10.2
    command:
      - "--model=Qwen/Qwen2.5-7B-Instruct"
      - "--max-num-seqs=256"
"""
KUBERNETES = """        image: vllm/vllm-openai:v0.10.2
        args: ["--model", "Qwen/Qwen2.5-7B-Instruct", "--max-num-seqs", "256"]
"""
FOLDED = """    image: vllm/vllm-openai:v0.10.2
    command: >
      --model Qwen/Qwen2.5-7B-Instruct
      --max-num-seqs 256
"""
DOCKER = """docker run --gpus all -e HF_TOKEN=hf_0123456789 \\
  vllm/vllm-openai:v0.10.2 \\
  --model Qwen/Qwen2.5-7B-Instruct \\
  --max-num-seqs 256"""
SUBSTITUTED = """    image: vllm/vllm-openai:v0.20.2
    command:
      - --model
      - Qwen/Qwen2.5-7B-Instruct
      - --gpu-memory-utilization
      - ${UTIL:-0.92}   # of the card
"""
PLAIN = """    image: vllm/vllm-openai:v0.10.2
    command: --model Qwen/Qwen2.5-7B-Instruct --max-num-seqs 256
"""
LITERAL = """    entrypoint: ["python3","-m","vllm.entrypoints.openai.api_server"]
    command: |
      --model=Qwen/Qwen2.5-7B-Instruct
      --max-num-seqs=256
"""
NESTED = """    command: ["/bin/bash", "-c"]
    args: ["exec vllm serve m --max-num-seqs 256"]
"""
ESCAPED = """    args: ["-c", "vllm serve m --max-num-seqs 256 --hf-overrides '{\\"a\\": 1}'"]
"""
SHELL_IN_DOCKER = "docker run --gpus all vllm/vllm-openai:v0.10.2 bash -c 'vllm serve m --max-num-seqs 256'"
PYTHON = """llm = LLM(
    model="Qwen/Qwen2.5-7B-Instruct",
    max_num_seqs=256,
)"""
MODULE = "python3 -m vllm.entrypoints.openai.api_server --model m --max_num_seqs 256"


def after(text: str, edit: Edit) -> str | None:
    (launch,) = find(text, "launch.txt", 1, FLAGS)
    return rewritten(launch.text, edit, OPTIONS, launch.flags)


@pytest.mark.parametrize(
    ("text", "edit", "old", "new"),
    [
        (SHELL, SEQS, "--max-num-seqs 256", "--max-num-seqs 32"),
        (SHELL, UTIL, "--gpu-memory-utilization=0.9", "--gpu-memory-utilization=0.95"),
        (SHELL, EAGER, "utilization=0.9 >", "utilization=0.9 \\\n    --enforce-eager >"),
        (SHELL, GONE, " \\\n    --max-num-seqs 256", ""),
        (SHELL, SEGMENTS, "vllm serve", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve"),
        ("$ vllm serve m --max-num-seqs '256'", SEQS, "$ vllm serve m --max-num-seqs '256'", "vllm serve m --max-num-seqs '32'"),
        (MODULE, SEQS, "--max_num_seqs 256", "--max_num_seqs 32"),
        (MODULE, UTIL, "seqs 256", "seqs 256 --gpu-memory-utilization 0.95"),
        ("vllm serve m --no-enable-chunked-prefill", Edit("--enable-chunked-prefill", "true"), "--no-enable", "--enable"),
        (DOCKER, SEQS, "256", "32"),
        (DOCKER, SEGMENTS, "docker run", "docker run -e PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (COMPOSE, SEQS, '"256"', '"32"'),
        (COMPOSE, UTIL, '- "256"', '- "256"\n      - --gpu-memory-utilization\n      - "0.95"'),
        (COMPOSE, EAGER, '- "256"', '- "256"\n      - --enforce-eager'),
        (COMPOSE, GONE, '\n      - --max-num-seqs\n      - "256"', ""),
        (EQUALS, SEQS, '"--max-num-seqs=256"', '"--max-num-seqs=32"'),
        (EQUALS, UTIL, 'seqs=256"', 'seqs=256"\n      - "--gpu-memory-utilization=0.95"'),
        (KUBERNETES, SEQS, '"256"', '"32"'),
        (KUBERNETES, UTIL, '"256"', '"256", "--gpu-memory-utilization", "0.95"'),
        (KUBERNETES, GONE, ', "--max-num-seqs", "256"', ""),
        (FOLDED, SEQS, "256", "32"),
        (FOLDED, UTIL, "256", "256\n      --gpu-memory-utilization 0.95"),
        ("vllm serve m --max-num-seqs 8 --max-num-seqs 256", SEQS, "seqs 256", "seqs 32"),
        ("vllm serve m --max-num-seqs 8 --port 1 --max-num-seqs=256", GONE, " --max-num-seqs 8 --port 1 --max-num-seqs=256", " --port 1"),
        (SUBSTITUTED, UTIL, "${UTIL:-0.92}", '"0.95"'),
        (PLAIN, SEQS, "256", "32"),
        (LITERAL, SEQS, "=256", "=32"),
        (LITERAL, UTIL, "=256", "=256\n      --gpu-memory-utilization=0.95"),
        (NESTED, SEQS, "256", "32"),
        (NESTED, UTIL, "256", "256 --gpu-memory-utilization 0.95"),
        (NESTED, SEGMENTS, "exec vllm", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True exec vllm"),
        (ESCAPED, SEQS, "256", "32"),
        (SHELL_IN_DOCKER, SEQS, "256", "32"),
        (PYTHON, SEQS, "max_num_seqs=256", "max_num_seqs=32"),
        (PYTHON, UTIL, "max_num_seqs=256", "max_num_seqs=256,\n    gpu_memory_utilization=0.95"),
        (PYTHON, EAGER, "max_num_seqs=256", "max_num_seqs=256,\n    enforce_eager=True"),
        (PYTHON, GONE, "\n    max_num_seqs=256,", ""),
    ],
)
def test_only_the_change_changes(text: str, edit: Edit, old: str, new: str) -> None:
    (launch,) = find(text, "launch.txt", 1, FLAGS)
    whole = launch.text if old in launch.text else text
    assert after(text, edit) == whole.replace(old, new, 1)


MODEL = "Qwen/Qwen2.5-7B-Instruct"
LENGTH = Edit("--max-model-len", "38656")
ONLY_MODEL = {
    "brackets": f'    image: vllm/vllm-openai\n    command: ["--model", "{MODEL}"]\n',
    "brackets and no space": f'    image: vllm/vllm-openai\n    command: ["--model","{MODEL}"]\n',
    "brackets and single quotes": f"    image: vllm/vllm-openai\n    command: ['--model', '{MODEL}']\n",
    "brackets and no quotes": f"    image: vllm/vllm-openai\n    command: [--model, {MODEL}]\n",
    "brackets and a comment": f'    image: vllm/vllm-openai\n    command: [\n      "--model",\n      "{MODEL}"  # this\n    ]  # all\n',
    "brackets and a last comma": f'    image: vllm/vllm-openai\n    command: [\n      "--model", "{MODEL}",\n    ]\n',
    "a comment behind brackets": f'    image: vllm/vllm-openai\n    command: ["--model", "{MODEL}"]   # "which"\n',
    "block": f"        image: vllm/vllm-openai\n        args:\n          - --model\n          - {MODEL}\n",
    "block with quotes": f'        image: vllm/vllm-openai\n        args:\n        - "--model"\n        - "{MODEL}"\n',
    "block with comments": f"    image: vllm/vllm-openai\n    command:\n      - --model   # which\n      # the small one\n      - {MODEL}   # this\n",
    "block with serve": f"    command:\n      - vllm\n      - serve\n      - {MODEL}\n",
    "brackets with serve": f'    command: ["vllm", "serve", "{MODEL}"]\n',
}
JOINED = {
    "brackets": f'    image: vllm/vllm-openai\n    command: ["--model={MODEL}"]\n',
    "block": f"    image: vllm/vllm-openai\n    command:\n      - --model={MODEL}\n",
    "block with quotes": f'    image: vllm/vllm-openai\n    command:\n      - "--model={MODEL}"\n',
}


def items(text: str | None) -> list[object]:
    """The arguments in a part of a YAML file, as a YAML reader has them."""
    assert text is not None
    (arguments,) = yaml.safe_load(text).values()
    assert isinstance(arguments, list)
    return arguments


@pytest.mark.parametrize("text", ONLY_MODEL.values(), ids=ONLY_MODEL)
def test_a_list_that_only_names_the_model_gets_further_items(text: str) -> None:
    (launch,) = find(text, "launch.txt", 1, FLAGS)
    assert items(after(text, LENGTH)) == [*items(launch.text), "--max-model-len", "38656"]
    assert items(after(text, EAGER)) == [*items(launch.text), "--enforce-eager"]


@pytest.mark.parametrize("text", JOINED.values(), ids=JOINED)
def test_an_option_joins_its_value_where_the_model_does(text: str) -> None:
    assert items(after(text, LENGTH)) == [f"--model={MODEL}", "--max-model-len=38656"]
    assert items(after(text, Edit("--hf-overrides", '{"a": 1}'))) == [f"--model={MODEL}", '--hf-overrides={"a": 1}']


@pytest.mark.parametrize(
    ("text", "edit", "arguments"),
    [
        (COMPOSE, SEQS, ["--model", MODEL, "--max-num-seqs", "32"]),
        (COMPOSE, UTIL, ["--model", MODEL, "--max-num-seqs", "256", "--gpu-memory-utilization", "0.95"]),
        (COMPOSE, GONE, ["--model", MODEL]),
        (EQUALS, SEQS, [f"--model={MODEL}", "--max-num-seqs=32"]),
        (EQUALS, UTIL, [f"--model={MODEL}", "--max-num-seqs=256", "--gpu-memory-utilization=0.95"]),
        (KUBERNETES, SEQS, ["--model", MODEL, "--max-num-seqs", "32"]),
        (KUBERNETES, UTIL, ["--model", MODEL, "--max-num-seqs", "256", "--gpu-memory-utilization", "0.95"]),
        (KUBERNETES, GONE, ["--model", MODEL]),
        (SUBSTITUTED, UTIL, ["--model", MODEL, "--gpu-memory-utilization", "0.95"]),
        (NESTED, SEQS, ["exec vllm serve m --max-num-seqs 32"]),
        (ESCAPED, SEQS, ["-c", "vllm serve m --max-num-seqs 32 --hf-overrides '{\"a\": 1}'"]),
    ],
)
def test_a_rewritten_list_is_read_by_yaml_as_the_arguments_it_stands_for(text: str, edit: Edit, arguments: list[str]) -> None:
    assert items(after(text, edit)) == arguments


@pytest.mark.parametrize("old", ["$(VALUE)", "${VALUE}", "256"])
@pytest.mark.parametrize("value", ["38656", "0.9", "1e5", "-1", "true", "No", "null", "auto", "fp8_e4m3", "a: b", "it's", '{"a": 1}'])
def test_an_argument_in_place_of_an_unquoted_one_stays_a_string(old: str, value: str) -> None:
    text = f"args:\n  - --model\n  - m\n  - --max-model-len\n  - {old}\n"
    (launch,) = find(f"image: vllm/vllm-openai\n{text}", "pod.yaml", 1, FLAGS)
    assert items(rewritten(launch.text, Edit("--max-model-len", value), OPTIONS, launch.flags)) == ["--model", "m", "--max-model-len", value]


@pytest.mark.parametrize("text", [COMPOSE, KUBERNETES, PYTHON, 'CMD ["vllm", "serve", "m", "--max-num-seqs", "4"]'])
def test_a_variable_has_no_place_in_a_list_of_arguments(text: str) -> None:
    assert after(text, SEGMENTS) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vllm serve m --api-key sk-1 --port 8000", "vllm serve m --api-key *** --port 8000"),
        ("HF_TOKEN=abc vllm serve m --api-key='x y'", "HF_TOKEN=*** vllm serve m --api-key=***"),
        ("docker run -e HF_TOKEN=abc vllm/vllm-openai --model m", "docker run -e HF_TOKEN=*** vllm/vllm-openai --model m"),
        ("args:\n  - --api-key\n  - secret\n  - --model\n  - m", "args:\n  - --api-key\n  - ***\n  - --model\n  - m"),
        ('args: ["--api-key", "secret", "--model", "m"]', 'args: ["--api-key", "***", "--model", "m"]'),
        ('args: ["--model", "m"]  # --api-key secret', 'args: ["--model", "m"]  # --api-key ***'),
        ("vllm serve m --max-num-seqs 4", "vllm serve m --max-num-seqs 4"),
        ('args: ["vllm serve m --api-key sk-1 --port 1"]', 'args: ["vllm serve m --api-key *** --port 1"]'),
        ("vllm serve m --api-key $KEY --hf-token 58213", "vllm serve m --api-key $KEY --hf-token ***"),
        ("HFTOKEN=x1 NUM_TOKENS=5 vllm serve m --ssl-keyfile-password 5", "HFTOKEN=*** NUM_TOKENS=5 vllm serve m --ssl-keyfile-password ***"),
        ("LLM(model='m', hf_token='abc', tokenizer='t')", "LLM(model='m', hf_token='***', tokenizer='t')"),
    ],
)
def test_secrets_are_masked_in_every_layout(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("value", ["4096", "8k", "0.9", "auto", "true", "fp8_e4m3"])
def test_the_value_of_no_known_option_is_a_secret(value: str) -> None:
    for flag in FLAGS:
        text = f"{flag.name}={value} vllm serve m" if flag.env else f"vllm serve m {flag.name} {value} {flag.name}={value}"
        assert masked(text) == text


def test_a_command_whose_options_speak_of_tokens_is_rewritten() -> None:
    text = "vllm serve m --max-num-batched-tokens 4096 --max-num-seqs 256"
    assert after(text, SEQS) == "vllm serve m --max-num-batched-tokens 4096 --max-num-seqs 32"
    assert after(masked(text), Edit("--max-num-batched-tokens", "2048")) == "vllm serve m --max-num-batched-tokens 2048 --max-num-seqs 256"


names = st.sampled_from(["--max-num-batched-tokens", "--max-num-seqs", "--max-model-len", "--port", "--block-size", "--swap-space"])
gaps = st.sampled_from([" ", "  ", " \\\n  ", " \\\n"])


@given(st.dictionaries(names, st.integers(1, 9999), min_size=1), gaps, st.booleans(), names, st.integers(1, 9999) | st.none())
def test_what_is_read_back_is_the_old_command_with_the_one_change(
    given_options: dict[str, int], gap: str, joined: bool, option: str, value: int | None
) -> None:
    glue = "=" if joined else " "
    text = gap.join(["vllm serve some/model", *(f"{k}{glue}{v}" for k, v in given_options.items())])
    new = after(text, Edit(option, None if value is None else str(value)))
    if value is None and option not in given_options:
        assert new is None
        return
    assert new is not None
    rest = {k: v for k, v in given_options.items() if k != option}
    expected = rest if value is None else rest | {option: value}
    found = find(new, "launch.txt", 1, FLAGS)
    assert (found[0].flags if found else {}) == expected
    assert new.startswith("vllm serve some/model")


@given(st.text(max_size=300), st.sampled_from([SEQS, GONE, SEGMENTS, EAGER]))
def test_no_text_makes_it_fail(text: str, edit: Edit) -> None:
    masked(text)
    result = rewritten(text, edit, OPTIONS, {})
    assert result is None or isinstance(result, str)
