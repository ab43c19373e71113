"""The command of the report: the first change that has a value, nothing else, and marked where it is not the user's own."""

from __future__ import annotations

import pytest

from tests.remedies.cases import FLAGS, RULES, server
from vllm_doctor.model.case import Case
from vllm_doctor.model.judgement import Advice
from vllm_doctor.model.observations import Launch, Ref, Scalar
from vllm_doctor.narrate import Narrator
from vllm_doctor.parsing.launch import find
from vllm_doctor.remedies.command import Rewritten, command_after

WITHOUT_VALUE = Advice("more-gpus", "set", "--tensor-parallel-size")
FOR_CLIENTS = Advice("cap-output-tokens", to=112)
SEQS = Advice("lower-max-num-seqs", "set", "--max-num-seqs", from_=64, to=5)
GONE = Advice("remove-blocks-override", "remove", "--num-gpu-blocks-override", from_=160)
SEGMENTS = Advice("expandable-segments", "set", "PYTORCH_CUDA_ALLOC_CONF", to="expandable_segments:True")

COMMAND = """vllm serve m \\
  --api-key sk-123456 \\
  --num-gpu-blocks-override 160 \\
  --max-num-seqs 64"""


def made(text: str, *advice: Advice) -> Rewritten | None:
    (launch,) = find(text, "launch.txt", 1, RULES.flags)
    return command_after(server(launch=launch), advice, list(FLAGS.values()))


def test_the_first_change_with_a_value_is_made_and_no_other() -> None:
    result = made(COMMAND, WITHOUT_VALUE, FOR_CLIENTS, GONE, SEQS)
    assert result is not None
    assert (result.remedy, result.put_together) == ("remove-blocks-override", False)
    assert result.after == "vllm serve m \\\n  --api-key *** \\\n  --max-num-seqs 64"


def test_the_difference_is_a_unified_diff_of_masked_commands() -> None:
    result = made(COMMAND, SEQS)
    assert result is not None
    assert result.diff.splitlines() == [
        "--- before",
        "+++ after",
        "@@ -1,4 +1,4 @@",
        " vllm serve m \\",
        "   --api-key *** \\",
        "   --num-gpu-blocks-override 160 \\",
        "-  --max-num-seqs 64",
        "+  --max-num-seqs 5",
    ]
    assert "sk-123456" not in result.before + result.after


def test_without_a_change_there_is_no_command() -> None:
    assert made(COMMAND, WITHOUT_VALUE, FOR_CLIENTS) is None


ARGUMENTS: dict[str, Scalar] = {
    "model": "org/m",
    "host": "0.0.0.0",
    "enable-prefix-caching": False,
    "enforce-eager": True,
    "served-model-name": "['a', 'b c']",
    "limit-mm-per-prompt": "{'image': 4}",
    "compilation-config": "{'mode': <CompilationMode.NONE: 0>}",
    "api-key": "***",
    "num-gpu-blocks-override": 160,
}


def test_a_command_is_put_together_from_the_arguments_in_the_log() -> None:
    run = server(facts={"model.name": "org/m"}, flags=ARGUMENTS)
    result = command_after(run, [GONE], list(FLAGS.values()))
    assert result is not None
    assert (result.put_together, result.left_out) == (True, ("--compilation-config",))
    assert result.after == " \\\n  ".join(
        [
            "vllm serve org/m",
            "--host 0.0.0.0",
            "--no-enable-prefix-caching",
            "--enforce-eager",
            "--served-model-name a 'b c'",
            "--limit-mm-per-prompt '{\"image\": 4}'",
            "--api-key ***",
        ]
    )


def test_all_arguments_of_an_old_log_with_its_defaults_are_no_command() -> None:
    run = server(facts={"model.name": "m"}, flags={"swap-space": 4, "num-gpu-blocks-override": 160}, argument_line="args: Namespace(")
    assert command_after(run, [GONE], list(FLAGS.values())) is None


def test_a_size_below_zero_is_left_out_of_a_command_unless_it_means_automatic() -> None:
    given: dict[str, Scalar] = {"max-model-len": -1, "max-num-seqs": -7, "cpu-offload-gb": -2.5, "max-logprobs": -3, "num-gpu-blocks-override": 160}
    result = command_after(server(facts={"model.name": "org/m"}, flags=given), [GONE], list(FLAGS.values()))
    assert result is not None
    assert result.after == "vllm serve org/m --max-model-len -1 --max-logprobs -3"
    assert result.left_out == ("--max-num-seqs", "--cpu-offload-gb")


def test_an_option_that_the_change_sets_is_not_told_as_left_out() -> None:
    run = server(facts={"model.name": "org/m"}, flags={"max-num-seqs": -7, "max-model-len": 4096})
    result = command_after(run, [SEQS], list(FLAGS.values()))
    assert result is not None
    assert (result.left_out, result.after) == ((), f"vllm serve org/m --max-model-len 4096 --max-num-seqs {SEQS.to}")


@pytest.mark.parametrize("figure", ["nan", float("nan"), float("inf")])
def test_what_is_no_number_is_left_out_of_a_command(figure: str | float) -> None:
    run = server(facts={"model.name": "org/m"}, flags={**ARGUMENTS, "gpu-memory-utilization": figure})
    result = command_after(run, [GONE], list(FLAGS.values()))
    assert result is not None
    assert "--gpu-memory-utilization" in result.left_out
    assert "gpu-memory-utilization" not in result.after


def test_a_command_that_was_put_together_says_so_in_a_comment() -> None:
    run = server(facts={"model.name": "m"}, flags={"num-gpu-blocks-override": 160})
    result = command_after(run, [GONE], list(FLAGS.values()))
    assert result is not None
    told = Narrator(Case(runs=(run,)), RULES, "en").command(run, result)
    assert told.after.splitlines() == [
        "# put together from the arguments that the log prints; environment and wrapper are not in it",
        "vllm serve m",
    ]
    assert Narrator(Case(runs=(run,)), RULES, "zh").command(run, result).after.splitlines()[0].startswith("# 根据日志打印的参数")


UNREADABLE = Launch("vllm serve m $(cat flags)", {"--max-num-seqs": 64}, {}, "m", Ref("run.sh", 1, ""), 'vllm serve m $(cat "flags')


def test_of_a_command_that_cannot_be_changed_safely_only_the_option_is_told() -> None:
    run = server(facts={"model.name": "m"}, flags={"max-num-seqs": 64, "port": 1}, launch=UNREADABLE)
    result = command_after(run, [SEQS], RULES.flags)
    assert result is not None
    assert (result.before, result.after, result.only_option, result.put_together) == ("--max-num-seqs 64", "--max-num-seqs 5", True, False)
    told = Narrator(Case(runs=(run,)), RULES, "en").command(run, result)
    assert told.after == "# only the option to change: the launch command itself cannot be changed safely here\n--max-num-seqs 5"
    assert Narrator(Case(runs=(run,)), RULES, "zh").command(run, result).after.startswith("# 仅给出需要改动的选项")


@pytest.mark.parametrize(
    ("text", "advice", "after"),
    [
        ('ARGS="--max-num-seqs 64"\nvllm serve m $ARGS --port 1', SEQS, "--max-num-seqs 5"),
        ('ARGS="--num-gpu-blocks-override 160"\nvllm serve m $ARGS', GONE, ""),
        ('CMD ["vllm", "serve", "m", "--max-num-seqs", "64"]', SEGMENTS, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("llm = LLM(model='m', **{'max_num_seqs': 64})\n)", SEGMENTS, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ],
)
def test_options_that_stand_elsewhere_are_not_dropped(text: str, advice: Advice, after: str) -> None:
    result = made(text, advice)
    assert result is not None
    assert (result.after, result.only_option) == (after, True)


def test_of_a_call_that_cannot_be_changed_the_keyword_is_told() -> None:
    launch = Launch("LLM(model=m, max_num_seqs=", {"--max-num-seqs": 64}, {}, "m", Ref("a.py", 1, ""), "LLM(model=m, max_num_seqs=")
    result = command_after(server(launch=launch), [SEQS], RULES.flags)
    assert result is not None
    assert (result.before, result.after) == ("max_num_seqs=64", "max_num_seqs=5")


COMPOSE = """    image: vllm/vllm-openai:v0.10.2
    command: --model m --max-num-seqs 64
    environment:
"""


@pytest.mark.parametrize(
    ("section", "before", "after"),
    [
        ("      HF_TOKEN: hf_x\n", "      HF_TOKEN: ***", '      HF_TOKEN: ***\n      PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True"'),
        (
            "    - HF_TOKEN=hf_x\n    - A=1\n",
            "    - HF_TOKEN=***\n    - A=1",
            "    - HF_TOKEN=***\n    - A=1\n    - PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        ('    - "PYTORCH_CUDA_ALLOC_CONF=x"\n', '    - "PYTORCH_CUDA_ALLOC_CONF=x"', '    - "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"'),
        (
            "    - name: HF_TOKEN\n      value: hf_x\n",
            "    - name: HF_TOKEN\n      value: ***",
            '    - name: HF_TOKEN\n      value: ***\n    - name: PYTORCH_CUDA_ALLOC_CONF\n      value: "expandable_segments:True"',
        ),
    ],
)
def test_a_variable_goes_into_the_section_of_the_container(section: str, before: str, after: str) -> None:
    result = made(COMPOSE + section, SEGMENTS)
    assert result is not None
    assert (result.before, result.after, result.only_option) == ("    environment:\n" + before, "    environment:\n" + after, False)
