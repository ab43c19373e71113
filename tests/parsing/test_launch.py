"""Launch commands as people paste them, and what is no launch."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from vllm_doctor.model.observations import Launch
from vllm_doctor.parsing.launch import find
from vllm_doctor.ruleset import strict_yaml
from vllm_doctor.ruleset.schema import Flag
from vllm_doctor.versions import has_flag

KNOWLEDGE = Path(__file__).resolve().parents[2] / "rules" / "knowledge" / "flags.yaml"
FLAGS = msgspec.convert(strict_yaml.load(KNOWLEDGE.read_text(encoding="utf-8"), "flags.yaml")[0], list[Flag])


def only(text: str) -> Launch:
    found = find(text, "cmd.txt", 1, FLAGS)
    assert len(found) == 1, found
    return found[0]


def read(text: str) -> tuple[str | None, dict[str, object], dict[str, str]]:
    launch = only(text)
    return launch.model, dict(launch.flags), launch.environment


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --enforce-eager", "Qwen/Qwen3-8B", {"--max-num-seqs": 64, "--enforce-eager": True}),
        ("vllm serve m --max_num_seqs=64 --dtype half", "m", {"--max-num-seqs": 64, "--dtype": "half"}),
        ("vllm serve --enforce-eager ./m", "./m", {"--enforce-eager": True}),
        ("vllm serve m -tp 4 -pp=2 -dp 8", "m", {"--tensor-parallel-size": 4, "--pipeline-parallel-size": 2, "--data-parallel-size": 8}),
        ("vllm serve m --device-memory-utilization 0.8", "m", {"--gpu-memory-utilization": 0.8}),
        ("vllm serve m --no-enable-prefix-caching", "m", {"--enable-prefix-caching": False}),
        ("vllm serve m --enable-chunked-prefill False", "m", {"--enable-chunked-prefill": False}),
        ("vllm serve m --enable-chunked-prefill=false --port 1", "m", {"--enable-chunked-prefill": False, "--port": 1}),
        ("vllm serve m --served-model-name a b --seed -1", "m", {"--served-model-name": "a b", "--seed": -1}),
        ("vllm serve m -O3", "m", {"-O": 3}),
        ("vllm serve m --revision 0.10", "m", {"--revision": 0.1}),
        ("vllm serve m --limit-mm-per-prompt '{\"image\": 4}'", "m", {"--limit-mm-per-prompt": '{"image": 4}'}),
        ("vllm serve m --hf-overrides.rope_scaling.factor 2", "m", {"--hf-overrides.rope_scaling.factor": 2}),
        ("python -m vllm.entrypoints.openai.api_server --model a/b --swap-space 1", "a/b", {"--model": "a/b", "--swap-space": 1}),
        ("python3 -u -m vllm.entrypoints.api_server --model a/b", "a/b", {"--model": "a/b"}),
        ("python /opt/vllm/entrypoints/openai/api_server.py --model a/b", "a/b", {"--model": "a/b"}),
        ("/opt/venv/bin/vllm serve m", "m", {}),
        ("ExecStart=/usr/bin/vllm serve m --port 8000", "m", {"--port": 8000}),
        ("user@gpu-1:~/work$ vllm serve m", "m", {}),
        ("(vllm) [user@node ~]$ vllm serve m --port 1", "m", {"--port": 1}),
        ("`vllm serve m --port 1` crashes with --enforce-eager", "m", {"--port": 1}),
        ("nohup vllm serve m --port 1 > server.log 2>&1 &", "m", {"--port": 1}),
        ("cd /srv && vllm serve m --port 1; echo done --x", "m", {"--port": 1}),
        ("vllm serve m --port 1 # --enforce-eager", "m", {"--port": 1}),
        ("vllm serve m —max-model-len 4096 –enforce-eager", "m", {"--max-model-len": 4096, "--enforce-eager": True}),
        ("vllm serve m --chat-template “a b”", "m", {"--chat-template": "a b"}),
        ("vllm serve m --chat-template 'a b", "m", {"--chat-template": "a"}),
    ],
)
def test_a_command_line_gives_long_options_and_the_model(text: str, model: str, flags: dict[str, object]) -> None:
    assert read(text)[:2] == (model, flags)


@pytest.mark.parametrize("mark", [" \\\n", " \\  \r\n", " ^\n", " `\n", "\n"], ids=["backslash", "blanks behind it", "cmd", "powershell", "lost"])
def test_a_command_goes_on_over_lines(mark: str) -> None:
    text = mark.join(["$ vllm serve m", "    --max-num-seqs 64", "    --dtype half"]) + "\nINFO 11-12 10:04:31 [core.py:77] hello\n"
    launch = only(text)
    assert (launch.model, launch.flags) == ("m", {"--max-num-seqs": 64, "--dtype": "half"})
    assert launch.command == "vllm serve m --max-num-seqs 64 --dtype half"


def test_the_environment_comes_from_the_line_and_from_exports() -> None:
    text = 'export VLLM_USE_V1=0\n$env:NCCL_DEBUG = "INFO"\nCUDA_VISIBLE_DEVICES=0,1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m\n'
    launch = only(text)
    assert launch.environment == {
        "VLLM_USE_V1": "0",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    assert launch.command == "CUDA_VISIBLE_DEVICES=0,1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m"
    assert launch.ref.line == 3


def test_secrets_are_masked_in_options_and_environment_and_stay_in_the_command() -> None:
    launch = only("HF_TOKEN=hf_abc VLLM_API_KEY=k vllm serve m --api-key sk-1 sk-2 --tokenizer t --max-num-batched-tokens 8192")
    assert launch.environment == {"HF_TOKEN": "***", "VLLM_API_KEY": "***"}
    assert launch.flags == {"--api-key": "***", "--tokenizer": "t", "--max-num-batched-tokens": 8192}
    assert "sk-1" in launch.command


def test_a_docker_command_gives_what_stands_behind_the_image() -> None:
    text = (
        "docker run --runtime nvidia --gpus all --name my-vllm \\\n  -v ~/.cache:/root/.cache -e VLLM_LOGGING_LEVEL=DEBUG --env HF_TOKEN=hf_x \\\n"
        "  -p 8000:8000 --ipc=host vllm/vllm-openai:v0.10.2 \\\n  --model a/b --max-model-len 4096\n"
    )
    assert read(text) == ("a/b", {"--model": "a/b", "--max-model-len": 4096}, {"VLLM_LOGGING_LEVEL": "DEBUG", "HF_TOKEN": "***"})


def test_a_docker_image_of_another_name_is_known_by_its_model() -> None:
    assert read("docker run --gpus all registry.local/llm:1 --model a/b --port 1")[:2] == ("a/b", {"--model": "a/b", "--port": 1})


def test_a_compose_file_gives_its_command_and_environment() -> None:
    text = """services:
  llm:
    image: vllm/vllm-openai:latest
    environment:
      - HF_TOKEN=hf_x
      - VLLM_USE_V1=1
    command:
      - --model=a/b
      - "--max-model-len"
      - "4096"
    ports: ["8000:8000"]
"""
    assert read(text) == ("a/b", {"--model": "a/b", "--max-model-len": 4096}, {"HF_TOKEN": "***", "VLLM_USE_V1": "1"})


def test_a_folded_compose_command_is_read() -> None:
    text = "    image: vllm/vllm-openai\n    command: >\n      --model a/b\n      --enforce-eager\n    restart: always\n"
    assert read(text)[:2] == ("a/b", {"--model": "a/b", "--enforce-eager": True})


def test_a_kubernetes_container_gives_command_and_args_as_one() -> None:
    text = """      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.9.1
        command: ["python3", "-m", "vllm.entrypoints.openai.api_server"]
        args:
        - --model
        - a/b
        - --gpu-memory-utilization=0.95   # most of it
        env:
        - name: HF_TOKEN
          value: "hf_x"
        - name: VLLM_ATTENTION_BACKEND
          value: FLASHINFER
"""
    assert read(text) == (
        "a/b",
        {"--model": "a/b", "--gpu-memory-utilization": 0.95},
        {"HF_TOKEN": "***", "VLLM_ATTENTION_BACKEND": "FLASHINFER"},
    )


@pytest.mark.parametrize(
    "text",
    [
        'command: ["/bin/sh", "-c"]\nargs: ["vllm serve a/b --port 1"]\n',
        'args: ["vllm", "serve", "a/b", "--port", "1"]\n',
        'CMD ["vllm", "serve", "a/b", "--port", "1"]\n',
        'command:\n- vllm\n- serve\nargs:\n- "a/b"\n- "--port 1"\n',
    ],
)
def test_other_lists_give_the_same_launch(text: str) -> None:
    assert read(text)[:2] == ("a/b", {"--port": 1})


def test_a_python_call_gives_its_keywords_as_options() -> None:
    text = """from vllm import LLM
llm = LLM(
    model="a/b",
    tensor_parallel_size=torch.cuda.device_count(),
    gpu_memory_utilization=0.95,  # most
    enforce_eager=True, quantization=None,
    limit_mm_per_prompt={"image": 12},
)
outputs = llm.generate(prompts)
"""
    launch = only(text)
    assert (launch.model, launch.ref.line) == ("a/b", 2)
    assert launch.flags == {
        "--model": "a/b",
        "--tensor-parallel-size": "torch.cuda.device_count()",
        "--gpu-memory-utilization": 0.95,
        "--enforce-eager": True,
        "--limit-mm-per-prompt": '{"image": 12}',
    }


def test_a_python_call_may_name_its_model_first_or_be_cut_off() -> None:
    assert read('llm = LLM("a/b", max_model_len=4096)')[:2] == ("a/b", {"--max-model-len": 4096})
    assert read("llm = LLM(model='a/b', max_num_seqs=4, ...")[:2] == ("a/b", {"--model": "a/b", "--max-num-seqs": 4})


def test_two_launches_come_in_order() -> None:
    found = find("llm = LLM(model='x')\n\nvllm serve y\n\npython -m vllm.entrypoints.openai.api_server --model z\n", "s", 11, FLAGS)
    assert [(launch.model, launch.ref.line) for launch in found] == [("x", 11), ("y", 13), ("z", 15)]


@pytest.mark.parametrize(
    "text",
    [
        "When I start vllm serve it crashes after a minute.",
        "usage: vllm serve [model_tag] [options]",
        "vllm serve: error: unrecognized arguments: --foo",
        "vllm serve --help",
        "vllm serve crashes at start",
        "(APIServer pid=1) INFO 11-30 13:46:13 [factories.py:89] Endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
        "class LLM(Base):",
        "    llm = LLM(",
        "docker run --rm hello-world",
        "args:\n  - --verbose\n  - --port=1\n",
        "INFO 11-12 10:04:31 [core.py:77] Initializing a V1 LLM engine (v0.10.2) with config: model='m'",
        "",
    ],
)
def test_other_text_is_no_launch(text: str) -> None:
    assert find(text, "s", 1, FLAGS) == []


def test_without_the_knowledge_table_spellings_stay() -> None:
    assert find("vllm serve m -tp 2", "s", 1)[0].flags == {"-tp": 2}


# --- the table -------------------------------------------------------------------------------------------------------------------------


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)) or (999,)


def test_conflicts_and_aliases_of_the_table_name_what_exists() -> None:
    names = {flag.name for flag in FLAGS}
    assert [c for flag in FLAGS for c in flag.conflicts if c.split()[0] not in names] == []
    assert [a for flag in FLAGS for a in flag.aliases if a in names] == []


def test_a_default_holds_only_while_its_option_lives() -> None:
    outside = [
        (flag.name, default.since, default.until)
        for flag in FLAGS
        for default in flag.defaults
        if version(default.since or "999")[:3] < version(flag.first_version)[:2] or version(default.until or "0") > version(flag.last_version)
    ]
    assert outside == []


def test_the_two_names_of_the_allocator_setting_have_their_own_ranges() -> None:
    by_name = {flag.name: flag for flag in FLAGS if flag.env}
    old, new = by_name["PYTORCH_CUDA_ALLOC_CONF"], by_name["PYTORCH_ALLOC_CONF"]
    assert (old.first_version, new.first_version, old.last_version, new.last_version) == ("0.2.7", "0.11.1", "open", "open")


def test_the_newer_name_is_not_offered_to_releases_before_it() -> None:
    flag = next(f for f in FLAGS if f.name == "PYTORCH_ALLOC_CONF")
    answers = [has_flag(release, flag.first_version, flag.last_version) for release in ("0.10.2", "0.11.1", "0.40.0", None)]
    assert answers == [False, True, True, None]


@pytest.mark.parametrize(
    "text",
    [
        "    image: vllm/vllm-openai\n    command: --model a/b --port 1\n",
        "    image: vllm/vllm-openai\n    command: --model a/b\n      --port 1\n    restart: always\n",
        '    entrypoint: ["python3","-m","vllm.entrypoints.openai.api_server"]\n    command: |\n      --model=a/b\n      --port=1\n',
        "    image: vllm/vllm-openai\n    command:\n    - --model\n    - a/b\n    - --port\n    - ${PORT:-1}\n",
    ],
)
def test_forms_of_a_compose_command_give_the_same_launch(text: str) -> None:
    assert read(text)[:2] == ("a/b", {"--model": "a/b", "--port": 1})


def test_variables_of_a_script_are_read_in_its_command() -> None:
    text = 'MODEL=a/b\nARGS="--max-model-len 4096 --port 1"\nvllm serve $MODEL ${ARGS}\n'
    (launch,) = find(text, "run.sh", 1, FLAGS)
    assert (launch.command, launch.model, launch.flags) == ("vllm serve $MODEL ${ARGS}", "a/b", {"--max-model-len": 4096, "--port": 1})


def test_a_shell_in_a_container_is_looked_into() -> None:
    text = 'args: ["serve a/b --port=1"]\ncommand: ["/bin/bash", "-lc"]\nimage: vllm/vllm-openai\n'
    assert read(text)[:2] == ("a/b", {"--port": 1})


@pytest.mark.parametrize(
    ("before", "behind", "section"),
    [
        ("    environment:\n      HF_TOKEN: x\n", "", "    environment:\n      HF_TOKEN: x"),
        ("", "    environment:\n    - A=1\n    - B=2\n    restart: no\n", "    environment:\n    - A=1\n    - B=2"),
        ("", "    env:\n    - name: A\n      value: x\n", "    env:\n    - name: A\n      value: x"),
        ("  other:\n    environment:\n      A: x\n  vllm:\n", "", ""),
        ("", "  other:\n    environment:\n      A: x\n", ""),
    ],
)
def test_the_variables_of_the_container_are_kept_as_written(before: str, behind: str, section: str) -> None:
    text = f"{before}    image: vllm/vllm-openai\n    command:\n    - --model\n    - a/b\n{behind}"
    (launch,) = find(text, "compose.yaml", 1, FLAGS)
    assert launch.variables == section
