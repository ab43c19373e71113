"""What `plan` says of starting, and what it advises: surely, perhaps or not; room outside the budget; lengths that are of use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from vllm_doctor.capacity.command import options_of
from vllm_doctor.capacity.defaults import limits_of
from vllm_doctor.capacity.estimates import context
from vllm_doctor.capacity.generations import generation_of
from vllm_doctor.capacity.kv import windows
from vllm_doctor.capacity.names import find_gpu, find_model
from vllm_doctor.capacity.plan import Plan, plan
from vllm_doctor.capacity.setup import GIB, Setup
from vllm_doctor.capacity.size import size
from vllm_doctor.capacity.solving import Quantity, Wish, cautious, certainty, hopeful, least_length, longest_length, starts_with
from vllm_doctor.capacity.ways import applied
from vllm_doctor.cli import run
from vllm_doctor.reports.plan import as_text
from vllm_doctor.ruleset.load import load_knowledge

KNOWLEDGE = load_knowledge()


def setup(model: str, card: str, **more: object) -> Setup:
    found, gpu = find_model(model, KNOWLEDGE), find_gpu(card, KNOWLEDGE)
    assert found.model is not None
    fields: dict[str, object] = {"quantization": found.quantization, **more}
    return Setup(model=found.model, gpu=gpu.gpu, total_bytes=round((gpu.total_gib or 0) * GIB), **fields)  # type: ignore[arg-type]


def text_of(answer: Plan, wish: Wish | None = None, language: str = "en") -> str:
    return " ".join(as_text([("card", answer)], "a/model", wish or Wish(), language=language, width=100).split())


def codes(answer: Plan) -> list[str]:
    return [code for code, _ in answer.notes]


def shares(answer: Plan) -> list[Setup]:
    """Every set-up that the plan advises with a utilisation above the one in force."""
    found = [answer.setup] if answer.solved and answer.solved[0] == "gpu-memory-utilization" and answer.solved[1] else []
    for way in answer.ways:
        if "--gpu-memory-utilization" in way.flags:
            options = {
                name[2:].replace("-", "_"): float(value) if "." in value else int(value) for name, value in way.flags.items() if value[0].isdigit()
            }
            found.append(structs.replace(answer.setup, **options))
    return found


# -- room outside the budget

QWEN, SMALL = "Qwen2.5-7B-Instruct", ("Llama-3.1-8B-Instruct", "L4")
CROWDED: tuple[tuple[Setup, Wish], ...] = (
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2"), Wish(14)),
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.4.2"), Wish(13)),
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.19.1"), Wish(16)),
    (setup("Qwen2.5-14B-Instruct-AWQ", "RTX 3090", max_model_len=8192, version="0.6.3"), Wish(6)),
    (setup(*SMALL, version="0.10.2"), Wish()),
    (setup(*SMALL, version="0.14.1"), Wish()),
    (setup("Qwen3-32B-AWQ", "RTX 3090", version="0.8.5"), Wish()),
)


@pytest.mark.parametrize(("given", "wish"), CROWDED)
def test_an_advised_utilisation_leaves_the_graphs_and_the_context_their_room(given: Setup, wish: Wish) -> None:
    advised = [*shares(plan(given, wish)), *shares(plan(given, wish, "gpu-memory-utilization"))]
    for changed in advised:
        budget = size(changed)
        assert not budget.graphs_in_budget
        charged = generation_of(changed.version, limits_of(changed).engine).charges_outside  # the context is in the budget then
        own = 0 if charged else context(changed).span[1]
        assert budget.total - budget.budget >= budget.graphs.span[1] + own, changed.gpu_memory_utilization


def test_some_utilisation_is_advised_where_there_is_room() -> None:
    """Few slots, short steps: small graphs leave more to the budget than 0.9 of it, and less than all."""
    advised = [s.gpu_memory_utilization for s in shares(plan(*CROWDED[6]))]
    assert advised
    assert all(0.9 < (share or 0) < 0.97 for share in advised)


def test_a_utilisation_that_leaves_too_little_is_the_middle_estimate_only() -> None:
    answer = plan(CROWDED[0][0], Wish(14), "gpu-memory-utilization")
    assert answer.solved == ("gpu-memory-utilization", "")
    assert answer.solved_middle == "0.93"
    budget = size(structs.replace(answer.setup, gpu_memory_utilization=0.93))
    assert budget.headroom >= 0


def test_from_0_20_the_budget_holds_the_graphs_and_a_utilisation_may_be_higher() -> None:
    answer = plan(setup(QWEN, "RTX 4090", max_model_len=8192, version="0.20.2"), Wish(13), "gpu-memory-utilization")
    assert answer.solved is not None
    assert 0.94 <= float(answer.solved[1]) <= 0.97


@pytest.mark.parametrize(("language", "first"), [("en", "It may start: CUDA graphs of about 550 MiB"), ("zh", "可能可以启动：约 550 MiB")])
def test_graphs_without_room_are_the_answer_and_no_other_cause_is_claimed(language: str, first: str) -> None:
    crowded = setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2", gpu_memory_utilization=0.97)
    answer = plan(crowded, Wish(10))
    assert (answer.certainty, answer.command_sure, codes(answer)[:2]) == ("maybe", False, ["graphs-outside", "room-in-kv"])
    text = text_of(answer, language=language)
    assert text.startswith(first)
    assert "another cause" not in text
    assert ("this may start:" if language == "en" else "下列命令可能可以启动：") in text


def test_a_budget_of_all_that_is_free_may_start() -> None:
    answer = plan(setup(QWEN, "RTX 4090", max_model_len=8192, version="0.33.0", gpu_memory_utilization=0.99))
    assert (answer.certainty, codes(answer)[0]) == ("maybe", "free-near-budget")
    assert text_of(answer).startswith("It may start: the budget of 23.3 GiB is about what is free (23.3 GiB).")


# -- surely, perhaps, not

SURE = setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2")
PERHAPS = setup("Llama-3.1-70B-Instruct", "A100 80GB", tensor_parallel_size=2, version="0.33.0")
EDGE = structs.replace(PERHAPS, max_model_len=(longest_length(PERHAPS, cautious) or 0) + 4096)
NEVER = structs.replace(PERHAPS, max_model_len=(longest_length(PERHAPS, hopeful) or 0) + 16)


@pytest.mark.parametrize(
    ("given", "kind", "english", "chinese", "head"),
    [
        (SURE, "surely", "It starts: ", "可以启动：", "start it with:"),
        (EDGE, "maybe", "It may start with a length of ", "以 ", "this surely starts:"),
        (NEVER, "no", "It does not start with a length of ", "以 ", "this surely starts:"),
    ],
)
def test_one_sentence_says_whether_it_starts(given: Setup, kind: str, english: str, chinese: str, head: str) -> None:
    answer = plan(given)
    assert answer.certainty == kind
    assert (cautious(given).starts, hopeful(given).starts) == {"surely": (True, True), "maybe": (False, True), "no": (False, False)}[kind]
    assert text_of(answer).startswith(english)
    assert text_of(answer, language="zh").startswith(chinese)
    assert f" {head} vllm serve " in text_of(answer)
    assert answer.command_sure


def test_where_it_may_start_the_middle_estimate_and_the_sure_length_are_told() -> None:
    values = dict(plan(EDGE).notes)["may-not-start"]
    assert (values["longest"], values["safe"]) == (longest_length(EDGE), longest_length(EDGE, cautious))
    assert plan(EDGE).flags["--max-model-len"] == str(values["safe"])
    assert "可能可以启动" in text_of(plan(EDGE), language="zh")


def test_what_does_not_start_does_not_at_the_favourable_end_either() -> None:
    values = dict(plan(NEVER).notes)["below-max-len"]
    assert values["most"] == longest_length(NEVER, hopeful) == (NEVER.max_model_len or 0) - 16


def test_no_flat_no_while_the_range_reaches_above_zero() -> None:
    """Middle estimate below zero, upper end above: the 70B on one card of a size between the two."""
    for gib in range(130, 170):
        given = setup("Llama-3.1-70B-Instruct", "A100 80GB", version="0.33.0", max_model_len=2048)
        given = structs.replace(given, gpu=None, total_bytes=gib * GIB)
        budget = size(given)
        if budget.kv.bytes <= 0 < budget.kv.span[1] and hopeful(given).starts:
            answer = plan(given)
            assert (answer.certainty, codes(answer)[0]) == ("maybe", "may-not-start")
            assert "by the middle one no length fits" in text_of(answer)
            return
    pytest.fail("no such size")


# -- requests longer than --max-model-len

LONG = Wish(20, 6000, 4000)


def test_a_request_longer_than_max_model_len_is_refused_and_the_command_says_so() -> None:
    answer = plan(setup(QWEN, "RTX 4090", max_model_len=8192, version="0.33.0"), LONG)
    assert answer.notes[0] == ("wish-above-length", {"tokens": 10_000, "limit": 8192, "command": 10_000})
    assert answer.flags["--max-model-len"] == "10000"
    assert text_of(answer, LONG).startswith("A request of 10,000 tokens is refused with --max-model-len 8,192: the command below sets 10,000.")
    assert text_of(answer, LONG, "zh").startswith("--max-model-len 8,192")
    assert not starts_with(answer.setup, Wish(1, 6000, 4000))
    assert all(int(way.flags["--max-model-len"]) >= 10_000 for way in answer.ways)


def test_a_longer_limit_that_does_not_start_is_not_promised() -> None:
    answer = plan(setup("Llama-3.1-8B-Instruct", "L4", max_model_len=8192, version="0.10.2"), Wish(1, 100_000, 1000))
    assert dict(answer.notes)["wish-above-length"] == {"tokens": 101_000, "limit": 8192, "command": 0}
    assert "a longer limit does not start" in text_of(answer)


@pytest.mark.parametrize("limit", [10_000, 16_384, None])
def test_a_request_that_is_admitted_is_not_called_refused(limit: int | None) -> None:
    assert "wish-above-length" not in codes(plan(setup(QWEN, "RTX 4090", max_model_len=limit, version="0.33.0"), LONG))


def test_a_question_is_answered_for_the_length_that_the_wish_needs() -> None:
    wish = Wish(4, 6000, 4000)
    answer = plan(setup(QWEN, "RTX 4090", max_model_len=8192, version="0.33.0"), wish, "gpu-memory-utilization")
    assert answer.setup.max_model_len == 10_000
    assert starts_with(answer.setup, wish)
    assert dict(answer.notes)["wish-above-length"] == {"tokens": 10_000, "limit": 8192, "command": 10_000}


# -- lengths of use


def test_a_length_too_short_to_be_of_use_comes_after_the_other_ways_and_the_middle_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--model", "Qwen3-32B-AWQ", "--gpu", "3090", "--vllm-version", "0.8.5", "--solve", "max-model-len"]
    assert run([*arguments, "--format", "json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)["plan"]
    value, middle = int(answer["solved"]["value"]), int(answer["solved"]["middle"])
    assert value < 2048 < middle
    flags = answer["ways"][0]["flags"]
    for language in ("en", "zh"):
        assert run([*arguments, "--lang", language]) == 0
        first = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
        told = [first.index(text) for text in (f"--max-model-len {flags['--max-model-len']}", f"{middle:,}", f" {value:,} ")]
        assert told == sorted(told)
        assert "Use --max-model-len" not in first


def test_many_at_once_are_offered_ways_to_a_length_of_use_not_to_a_long_one() -> None:
    answer = plan(setup(QWEN, "RTX 4090", version="0.33.0"), Wish(200), "max-model-len")
    assert answer.solved_short
    assert answer.ways
    assert all(way.requests >= 200 and way.tokens_per_request == 2048 == int(way.flags["--max-model-len"]) for way in answer.ways)


def test_no_smaller_share_is_advised_where_nobody_else_holds_memory() -> None:
    answer = plan(setup("Qwen2.5-7B-Instruct-AWQ", "T4", version="0.6.3"), Wish(8))
    assert all(float(way.flags.get("--gpu-memory-utilization", "0.9")) >= 0.9 for way in answer.ways)


@pytest.mark.parametrize(
    ("wish", "middle", "own", "least"),
    [
        (Wish(), 6000, 40_960, 2048),
        (Wish(), 30_000, 40_960, 3000),
        (Wish(), 300, 512, 512),
        (Wish(None, 700, 100), 30_000, 40_960, 800),
    ],
)
def test_the_shortest_length_of_use(wish: Wish, middle: int, own: int, least: int) -> None:
    given = setup(QWEN, "RTX 4090")
    assert least_length(structs.replace(given, model=structs.replace(given.model, max_position_embeddings=own)), wish, middle) == least


# -- layers with a window


def test_the_bytes_of_a_token_beyond_the_window_explain_the_room() -> None:
    given = setup("gpt-oss-120b", "H100", tensor_parallel_size=2, version="0.19.1")
    assert windows(given, limits_of(given)) == (18, 36, 128, 18 * 1024)
    budget = size(given)
    assert budget.kv_bytes_per_token == 36 * 1024
    answer = plan(given)
    assert dict(answer.notes)["sliding-window"] == {"layers": 18, "total": 36, "window": 128, "each": 36 * 1024, "further": 18 * 1024}
    assert "18 of 36 layers keep a window of 128 tokens only: 36.0 KiB per token" in text_of(answer)
    assert "36 层中有 18 层只保留 128" in text_of(answer, language="zh")
    long = 100_000
    fits = plan(given, Wish(None, long, 0)).fits["wanted"].requests
    assert fits * long * 18 * 1024 == pytest.approx(budget.kv.bytes, rel=0.1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt-oss-120b", {"disable_hybrid_kv_cache_manager": True, "version": "0.19.1"}),
        ("gemma-2-9b", {"version": "0.6.3"}),
        (QWEN, {"version": "0.19.1"}),
    ],
)
def test_where_every_layer_keeps_all_tokens_there_is_nothing_to_explain(name: str, options: dict[str, object]) -> None:
    assert "sliding-window" not in codes(plan(setup(name, "H100", tensor_parallel_size=2, max_model_len=8192, **options)))


def test_a_command_that_is_called_sure_is_sure() -> None:
    for given, wish in CROWDED:
        answer = plan(given, wish)
        flags = answer.flags
        started = structs.replace(
            given,
            max_model_len=int(flags["--max-model-len"]) if "--max-model-len" in flags else None,
            max_num_seqs=int(flags["--max-num-seqs"]) if "--max-num-seqs" in flags else None,
        )
        assert answer.command_sure == (certainty(started) == "surely")


# -- the command agrees with what is said first


def test_a_value_by_the_middle_estimate_only_is_in_the_command_which_may_start() -> None:
    question: Quantity = "gpu-memory-utilization"
    answer = plan(setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2"), Wish(14), question)
    assert answer.solved == (question, "")
    assert answer.solved_middle == answer.flags["--gpu-memory-utilization"] == "0.93"
    assert answer.flags["--max-model-len"] == "8192"
    assert not answer.command_sure
    assert "this may start: vllm serve a/model --gpu-memory-utilization 0.93 --max-model-len 8192" in text_of(answer)


def test_the_command_is_that_of_the_better_way_where_the_solved_length_is_of_no_use() -> None:
    answer = plan(setup("Qwen3-32B-AWQ", "RTX 3090", version="0.8.5"), Wish(), "max-model-len")
    assert answer.solved_short
    assert not answer.ways[0].checkpoint
    assert {**answer.flags, **answer.ways[0].flags} == answer.flags
    assert answer.command_starts
    assert answer.command_sure
    again = applied(setup("Qwen3-32B-AWQ", "RTX 3090", version="0.8.5"), answer.ways[0])
    assert certainty(again) == "surely"
    assert answer.flags == options_of(again)


def test_no_command_has_a_length_of_no_use_where_only_another_checkpoint_helps() -> None:
    answer = plan(setup(QWEN, "RTX 4090", version="0.33.0"), Wish(200), "max-model-len")
    assert answer.solved_short
    assert answer.command_starts == (not answer.ways[0].checkpoint)


# -- every way holds when it is planned again

FULL: tuple[tuple[Setup, Wish], ...] = (
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2", gpu_memory_utilization=0.97), Wish(14)),
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2", gpu_memory_utilization=0.97), Wish(10)),
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.10.2", gpu_memory_utilization=0.97, quantization="fp8"), Wish(14)),
    (setup(QWEN, "RTX 4090", max_model_len=8192, version="0.4.2", gpu_memory_utilization=0.98), Wish(8)),
)


@pytest.mark.parametrize(("given", "wish"), FULL)
def test_every_way_surely_starts_and_holds_the_wish_with_room_for_its_graphs(given: Setup, wish: Wish) -> None:
    answer = plan(given, wish)
    assert answer.ways
    for way in answer.ways:
        changed = applied(given, way)
        assert (way.kind, certainty(changed), starts_with(changed, wish)) == (way.kind, "surely", True)
        assert not plan(changed, wish).ways


def test_where_only_room_outside_the_budget_lacks_a_lower_share_is_a_way() -> None:
    for given, wish in FULL[1:]:
        assert "graphs-outside" in codes(plan(given, wish))
        share = next(way for way in plan(given, wish).ways if way.kind == "utilization")
        assert 0.9 <= float(share.flags["--gpu-memory-utilization"]) < (given.gpu_memory_utilization or 0)


def test_a_lower_share_is_not_advised_where_it_holds_too_little() -> None:
    said = {wish.concurrency: "Lower the utilization" in text_of(plan(given, wish), wish) for given, wish in FULL[:2]}
    assert said == {14: False, 10: True}


def test_the_fewest_gpus_surely_leave_room_for_graphs_outside_the_budget() -> None:
    answer = plan(FULL[0][0], Wish(14), "tp")
    assert (answer.solved, answer.solved_middle) == (("tp", ""), "1")
    assert not answer.command_sure


# -- what is refused


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (setup("Qwen3-8B", "P40", max_model_len=8192), "old-card"),
        (setup("Qwen3-8B", "RTX 4090", version="0.6.3", max_model_len=8192), "old-version"),
    ],
)
def test_nothing_is_said_to_fit_in_what_is_refused(given: Setup, why: str) -> None:
    answer = plan(given)
    assert why in codes(answer)
    told = text_of(answer)
    assert "It does not start: vLLM" in told
    assert "144.0 KiB of KV cache per token " in told
    assert not [phrase for phrase in ("room for", "at once", "binds first", "vllm serve") if phrase in told]


def test_a_refused_card_has_no_figures_of_what_fits_beside_one_that_is_not() -> None:
    cards = [(card, plan(setup("Qwen3-8B", card, max_model_len=8192))) for card in ("P40", "RTX 4090")]
    columns = as_text(cards, "Qwen3-8B", Wish()).splitlines()
    room, fits = (next(line.split() for line in columns if head in line) for head in ("room for", "requests at once,"))
    assert (room[2], fits[-2]) == ("-", "-")
    assert float(fits[-1]) > 1
