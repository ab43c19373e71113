"""What a report must not give away, and what it must go on saying."""

# ruff: noqa: E501  (lines of logs)

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest

from tests.redact.corpus import SHAPES, Case, corpus, crash_log
from vllm_doctor.model.report import Change, Line, Report, RunReport, Tool
from vllm_doctor.model.secrecy import is_secret_name
from vllm_doctor.pipeline import analyze
from vllm_doctor.redact import clean, redact
from vllm_doctor.reports import RENDERERS, Style
from vllm_doctor.ruleset.load import load
from vllm_doctor.sources import Source, read

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
TOOL_ = Tool("vllm-doctor", "0", "0")


def report_on(text: str, redacted: bool) -> Report:
    data = text.encode()
    return analyze([Source("server.log", None, data, len(data))], redact=redacted)


def answer(report: Report) -> tuple[object, ...]:
    findings = [(f.id, f.variant, f.run, f.engine, f.severity, f.status, f.role, f.first_time, len(f.evidence)) for f in report.findings]
    return report.verdict, findings, [r.id for r in report.ruled_out], [n.id for n in report.not_checked], report.series


@lru_cache(maxsize=1)
def reports_of_the_corpus() -> list[tuple[Case, Report, Report]]:
    raw = [(c, report_on(crash_log(c), False)) for c in corpus()]
    return [(c, report, redact(report)) for c, report in raw]


def test_the_corpus_has_300_secrets_in_at_least_40_shapes() -> None:
    assert (len(corpus()), len(SHAPES) >= 40, corpus() == corpus()) == (300, True, True)


def test_every_secret_of_the_corpus_reaches_a_report_that_is_not_redacted() -> None:
    hidden = [c.shape for c, raw, _ in reports_of_the_corpus() if not any(json.dumps(s)[1:-1] in RENDERERS["json"](raw, Style()) for s in c.secrets)]
    assert hidden == []


@pytest.mark.parametrize("form", RENDERERS)
def test_no_secret_of_the_corpus_is_in_any_output(form: str) -> None:
    style = Style(detail=1)
    leaks = [(c.shape, s) for c, _, report in reports_of_the_corpus() for s in c.secrets if s in RENDERERS[form](report, style)]
    assert leaks == []


def test_the_corpus_is_diagnosed_the_same_with_and_without_redaction() -> None:
    assert [c.shape for c, raw, report in reports_of_the_corpus() if answer(raw) != answer(report)] == []


def test_analyze_redacts_unless_told_otherwise() -> None:
    case = corpus()[0]
    assert (report_on(crash_log(case), True), report_on(crash_log(case), False)) == reports_of_the_corpus()[0][:0:-1]


def test_cleaning_twice_changes_nothing() -> None:
    once = [clean(c.text) for c in corpus()]
    assert [clean(text) for text in once] == once


def cases() -> list[Path]:
    return sorted(p.parent for p in FIXTURES.glob("*/case.yaml"))


@pytest.mark.parametrize("case", cases(), ids=lambda p: p.name)
def test_a_fixture_is_diagnosed_the_same_with_and_without_redaction(case: Path) -> None:
    sources, issues = read([str(case)])
    raw = analyze(sources, extra_issues=issues, redact=False)
    report = redact(raw)
    assert answer(report) == answer(raw)
    assert (raw.redacted, report.redacted) == (False, True)


def lines(value: object) -> list[Line]:
    if isinstance(value, Line):
        return [value]
    if isinstance(value, msgspec.Struct):
        return [line for name in value.__struct_fields__ for line in lines(getattr(value, name))]
    if isinstance(value, list | tuple):
        return [line for item in value for line in lines(item)]
    return [line for item in value.values() for line in lines(item)] if isinstance(value, dict) else []


@pytest.mark.parametrize(
    "case", [p for p in cases() if p.name.startswith(("healthy", "log-", "prefix", "bench", "kv-", "oom-"))], ids=lambda p: p.name
)
def test_lines_without_secrets_are_quoted_as_they_are(case: Path) -> None:
    sources, issues = read([str(case)])
    found = analyze(sources, extra_issues=issues, redact=False)
    raw, report = lines(found), lines(redact(found))
    assert [(r.source.rpartition(case.name)[2], r.line) for r in report] == [(r.source.rpartition(case.name)[2], r.line) for r in raw]
    texts = [
        (a, b) for x, y in zip(raw, report, strict=True) for a, b in zip((*x.before, x.text, *x.after), (*y.before, y.text, *y.after), strict=True)
    ]
    assert texts
    # The fixtures hold one address that is not this machine's (from a range for documentation), and prompts in request lines.
    changed = [(a, b) for a, b in texts if a != b and a.replace("192.0.2.2", "ip-1") != b and "Received request" not in a]
    assert changed == []


READABLE = [
    "INFO 11-30 13:53:41 [api_server.py:1896] vLLM API server version 0.11.1rc2.dev15+gabc1234d.cu128",
    "INFO 04-16 14:35:27 [kv_cache_utils.py:864] GPU KV cache size: 524,288 tokens",
    "Maximum concurrency for 2,048 tokens per request: 256.00x",
    'vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen2.5-7B-Instruct"} 123456.0',
    "# gpu_blocks: 27899, # CPU blocks: 2048, num_gpu_blocks_override=None, max_tokens=256, max_num_batched_tokens=8192",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
    '  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 711, in run_engine_core',
    "/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127: nvidia-cublas-cu12==12.4.5.8 nvidia-cudnn-cu12==9.1.0.70",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit) localhost 127.0.0.1 ::1",
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus. 00000000:1B:00.0",
    "eos_token='</s>', pad_token_id=0, stop_token_ids=[151645], hf_overrides={}, hf_token=None, api_key=None, tokenizer_mode=auto",
    "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 41.0 tokens/s, Running: 11 reqs, Waiting: 13 reqs",
    "Dumping scheduler stats: SchedulerStats(num_running_reqs=12, num_waiting_reqs=3, kv_cache_usage=0.81, step_counter=0)",
    "For further information visit https://errors.pydantic.dev/2.11/v/list_type and https://docs.vllm.ai/en/latest/ and https://huggingface.co/Qwen",
    "cmpl-c04065be3dac40daa8f71aa14c902bdc-0: num_scheduled_tokens={cmpl-c04065be3dac40daa8f71aa14c902bdc-0: 32}",
    "(EngineCore_DP0 pid=10836) (APIServer pid=9359) [rank0]: std::exception c10::Error at::native",
    "set HF_TOKEN to your token, or pass --api-key $VLLM_API_KEY; curl -s http://HOST:PORT/metrics > metrics.txt",
    'INFO:     127.0.0.1:33920 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
    "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.19 GiB).",
    "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.20s/it] model-00001-of-00004.safetensors",
]


@pytest.mark.parametrize("text", READABLE, ids=lambda t: t[:40])
def test_what_vllm_says_stays_readable(text: str) -> None:
    assert clean(text) == text


CLEANED = [
    ("--api-key first-key-111 second-key-222 --port 8000", "--api-key *** *** --port 8000"),
    ("{'api_key': ['one', 'two'], 'port': 8000}", "{'api_key': [***], 'port': 8000}"),
    ("postgresql://vllm:p4ss@db.prod.corp:5432/usage", "postgresql://***@host-1:5432/usage"),
    ("node7-a at 10.1.2.3, then 10.1.2.4 and 10.1.2.3 again", "node7-a at ip-1, then ip-2 and ip-1 again"),
    ("alice@gpu-7:~$ cat /home/alice/x.log # on gpu-7", "user-1@host-1:~$ cat /home/user-1/x.log # on host-1"),
    ("Nov 30 13:54:03 gpu-7 kernel: oom; see logs/gpu-7.log", "Nov 30 13:54:03 host-1 kernel: oom; see logs/host-1.log"),
    ("api key = ak_abcdef123456, key=abc123def456ghi789", "api key = ***, key=***"),
    ("sshpass -p hunter2 ssh root@node9", "sshpass -p *** ssh user-1@host-1"),
    ("with prompt 'something private' and prompt: tell me all", "with prompt '***' and prompt: ***"),
    ("cache key: model.layers.0, key: 12, tokens: [101, 2023], num_tokens=5", "cache key: model.layers.0, key: 12, tokens: [***], num_tokens=5"),
    (r"ssh: connect to host gpu7 port 22; \\files9\share", r"ssh: connect to host host-2 port 22; \\host-1\share"),
    ("密码：hunter2secret", "密码：***"),
    ("prompt: 'a\\'b', params: SamplingParams(n=1)", "prompt: '***', params: SamplingParams(n=1)"),
    ('{"log":"prompt: \\"say \\\\\\"hi\\\\\\" now\\", params: X"}', '{"log":"prompt: \\"***\\", params: X"}'),
    ("half of a prompt', params: SamplingParams(n=1)", "***', params: SamplingParams(n=1)"),
    ("prompt: 'first\nsecond', params: SamplingParams(n=1)", "prompt: '***\n', params: SamplingParams(n=1)"),
    ("text=“smart quotes”, n=1", "text=“***”, n=1"),
    ("data:image/png;base64,iVBORw0KGgo= end", "data:image/png;base64,*** end"),
    ("token hf_ab…", "token hf_***…"),
]


@pytest.mark.parametrize(("text", "expected"), CLEANED, ids=lambda t: t[:30])
def test_what_is_masked_keeps_the_text_around_it(text: str, expected: str) -> None:
    assert clean(text) == expected


LEAKED = [
    # Several lines of a prompt, of which the last is not in the text. What vLLM's own logger wrote stays.
    (
        "Received request cmpl-1: prompt: 'Summarise:\nPatient Lee, it's bad\nERROR 11-30 13:54:03 [core.py:720] fatal\nLee",
        "Received request cmpl-1: prompt: '***\n***\nERROR 11-30 13:54:03 [core.py:720] fatal\n***",
    ),
    ("Generated response x: output: 'first\nsecond", "Generated response x: output: '***\n***"),
    ("prompt: 'it's Lee's letter', params: SamplingParams(n=1)", "prompt: '***', params: SamplingParams(n=1)"),
    # Variables of a pod.
    ('{"name":"HF_TOKEN","value":"zq81abc"}', '{"name":"HF_TOKEN","value":"***"}'),
    ('{\n  "name": "HF_TOKEN",\n  "value": "zq81"\n}', '{\n  "name": "HF_TOKEN",\n  "value": "***"\n}'),
    ('{\\"name\\":\\"HF_TOKEN\\",\\"value\\":\\"zq81\\"}', '{\\"name\\":\\"HF_TOKEN\\",\\"value\\":\\"***\\"}'),
    ('{"value":"zq81abc","name":"HF_TOKEN"}', '{"value":"***","name":"HF_TOKEN"}'),
    ("[{name: VLLM_API_KEY, value: zq81}, {name: PORT, value: 8000}]", "[{name: VLLM_API_KEY, value: ***}, {name: PORT, value: 8000}]"),
    ("- name: HF_TOKEN\n  value: zq81", "- name: HF_TOKEN\n  value: ***"),
    # Addresses that are secrets.
    ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=693a91f6-7abc-4bc4-97a0", "https://host-1/cgi-bin/webhook/send?key=***"),
    ("https://api.telegram.org/bot123456:ABC-zq81/sendMessage", "https://host-1/bot***/sendMessage"),
    ("https://hooks.zapier.com/hooks/catch/123456/abzq81/", "https://host-1/hooks/catch/***"),
    ("https://ptb.discord.com/api/v10/webhooks/12/zq81", "https://host-1/api/v10/webhooks/***"),
    ("https://oapi.dingtalk.com/robot/send?access_token=zq81aaaa", "https://oapi.dingtalk.com/robot/send?access_token=***"),
    ("https://hook.eu1.make.com/zq81abc", "https://host-1/***"),
    ("https://s.example/a?X-Goog-Signature=zq81abcdef&x=1", "https://host-1/a?X-Goog-Signature=***&x=1"),
    # What people asked, in other places than request lines.
    ('"GET /generate?prompt=tell%20zq81&n=1 HTTP/1.1"', '"GET /generate?prompt=***&n=1 HTTP/1.1"'),
    ("input_ids: tensor([[101, 2023],\n  [7, 8]])", "input_ids: tensor([***\n])"),
    ("my_ids: [1, 2, 811], block_ids: [3, 4], request_ids: ['a']", "my_ids: [***], block_ids: [3, 4], request_ids: ['a']"),
    ("got tensor([  101, 2023,\n   811], device='cuda:0')", "got tensor([***\n], device='cuda:0')"),
    ("用户提问：我得了什么病", "用户提问：***"),
    ("用户输入：zq81", "用户输入：***"),
    # Secrets in sentences and files.
    ("Invalid API key provided: zq81.", "Invalid API key provided: ***."),
    ("api key (zq81) rejected", "api key (***) rejected"),
    ("the password is: zqlet", "the password is: ***"),
    ("using password zqlet for bob", "using password *** for bob"),
    ("数据库密码 zq81，数据库密码：zqlet", "数据库密码 ***，数据库密码：***"),
    ("api_key＝zq81 password：zqlet", "api_key＝*** password：***"),
    ("api_key: |\n  zq81\n  zq82\nport: 8", "api_key: |\n  ***\n\nport: 8"),
    ('password = """\nzq81\n"""\nport = 1', 'password = "***\n\n"""\nport = 1'),
    ("vllm\x00serve\x00--api-key\x00zq81\x00--port\x008000", "vllm\x00serve\x00--api-key\x00***\x00--port\x008000"),
    (r"vllm\x00--api-key\x00zq81\x00--port\x008000\x00HF_TOKEN=zq82\x00A=1", r"vllm\x00--api-key\x00***\x00--port\x008000\x00HF_TOKEN=***\x00A=1"),
    ("routing_key=zq81", "routing_key=***"),
    ("machine x\n  login user\n  password zqlet\n", "machine x\n  login user\n  password ***\n"),
    ("db1:5432:usage:vllm:zq81", "db1:5432:usage:vllm:***"),
    ("wrote WANDB key " + "0123456789" * 4, "wrote WANDB key ***"),
    ('"private_key_id": "zq81abc"', '"private_key_id": "***"'),
    ("using encryption key deadbeef00112233", "using encryption key ***"),
    ("env:\n  - name: HF_TOKEN\n    # of the hub\n    value: zq81", "env:\n  - name: HF_TOKEN\n    # of the hub\n    value: ***"),
    ("input_ids: [811]", "input_ids: [***]"),
    ("提问：zq81", "提问：***"),
    ('api key "zqabc" is invalid', 'api key "***" is invalid'),
    ("Incorrect API key provided: zq81***", "Incorrect API key provided: ***"),
    ("password: |-\n    zq81 zq82\n    zq83\nuser: x", "password: |-\n    ***\n\nuser: x"),
    (r"--api-key\0zq81\0--port", r"--api-key\0***\0--port"),
    # Who and where.
    ("/mnt/nfs/users/zqlee/m /users/zqlee /data/home/zqlee", "/mnt/nfs/users/user-1/m /users/user-1 /data/home/user-1"),
    ("www.evil.example and evil-2.corp.com", "host-1 and host-2"),
]


@pytest.mark.parametrize(("text", "expected"), LEAKED, ids=lambda t: t[:30])
def test_secrets_in_less_usual_places_are_masked(text: str, expected: str) -> None:
    assert clean(text) == expected
    assert clean(expected) == expected


HARMLESS = [
    "API key is required; invalid api key; the API key was not provided",
    "Access denied (using password: YES); using password authentication; password file /etc/x",
    "tensor([1.5, 2.5]) tensor([0]) block_ids: [1, 2, 3] device_ids=[0, 1]",
    '{"name": "VLLM_USE_V1", "value": "1"}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}',
    "00:11:22:33 vllm/core.py:720:5:note: see 12:30:45:678:90",
    "令牌 数 128, 密码 未设置, 用户 提问",
]


@pytest.mark.parametrize("text", HARMLESS, ids=lambda t: t[:30])
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert clean(text) == text


def test_a_prompt_that_opens_in_the_line_before_is_masked_in_the_lines_after() -> None:
    from vllm_doctor.redact import _Cleaner

    line = msgspec.to_builtins(Line("a.log", 8, "Patient Lee", before=("Received request x: prompt: 'Summarise:",), after=("HIV positive",)))
    done = _Cleaner()
    cleaned = done.walk(line, done.text)
    assert (cleaned["before"], cleaned["text"], cleaned["after"]) == (["Received request x: prompt: '***"], "***", ["***"])


def test_names_tell_secrets_from_settings() -> None:
    secret = [
        "HF_TOKEN",
        "api_key",
        "--api-key",
        "x-api-key",
        "AWS_ACCESS_KEY_ID",
        "dbPassword",
        "Authorization",
        "AccountKey",
        "access_token",
        "REDIS_AUTH",
    ]
    plain = [
        "max_tokens",
        "eos_token",
        "stop_token_ids",
        "PWD",
        "ssl_keyfile",
        "tokenizer",
        "num_prompt_tokens",
        "secretKeyRef",
        "HF_TOKEN_PATH",
    ]
    assert [n for n in secret if not is_secret_name(n)] + [n for n in plain if is_secret_name(n)] == []


def test_no_option_of_vllm_that_is_known_is_taken_for_a_secret() -> None:
    flags = load().flags
    names = [name for flag in flags for name in (flag.name, *flag.aliases)]
    assert [n for n in names if is_secret_name(n)] == []
    for value in ("4096", "8k", "0.9", "true", "auto", "float16"):
        for name in names:
            for text in (f"vllm serve m {name} {value} --port 8000", f"{name}={value}", f"{{'{name.strip('-').replace('-', '_')}': {value}}}"):
                assert clean(text) == text


TOKENS = [
    "max_tokens=256, min_tokens: 8, prompt_tokens=12, kv_cache_tokens: 72336, num_batched_tokens=4096",
    "tokenizer='Qwen/Qwen2.5', token_budget=2048, stop_token_ids=[], num_speculative_tokens: auto",
    "--max-num-batched-tokens 8k --long-prefill-token-threshold 2048 --speculative-token-tree x1 --return-tokens-as-token-ids",
    "MAX_NEW_TOKEN=4096 VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE=163840",
]


@pytest.mark.parametrize("text", TOKENS)
def test_tokens_of_a_text_are_no_secrets(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("text", ["--api-key 58213", "--hf-token 58213", "VLLM_API_KEY=58213", "api_key: ['58213']", "--ssl-keyfile-password 5821"])
def test_a_number_under_a_name_that_is_a_secret_is_one(text: str) -> None:
    assert "5821" not in clean(text)


def test_options_and_commands_of_a_report_are_cleaned_by_their_names() -> None:
    run = RunReport(
        "run-1",
        "0.10.2",
        "V1",
        "/home/alice/m",
        (),
        {"api_key": ["k1"], "host": "10.0.0.7", "max_num_seqs": 64},
        "vllm serve m --api-key k1",
        None,
        None,
        "stopped",
    )
    report = redact(Report(tool=TOOL_, redacted=False, verdict="healthy", summary="peer 10.0.0.7", runs=(run,)))
    assert report.runs[0].flags == {"api_key": "***", "host": "ip-1", "max_num_seqs": 64}
    assert (report.runs[0].model, report.runs[0].launch_command, report.summary) == ("/home/user-1/m", "vllm serve m --api-key ***", "peer ip-1")


def test_a_change_of_a_secret_option_does_not_show_it() -> None:
    from vllm_doctor.redact import _Cleaner

    change = msgspec.to_builtins(Change("set", "--api-key", "old", "new"))
    cleaner = _Cleaner()
    assert cleaner.walk(change, cleaner.text) == {"action": "set", "flag": "--api-key", "from": "***", "to": "***"}


# fmt: off
ATTACKS = ['"', "\\", '\\"', "'", "prompt: '", "prompt: [", "prompt: x, params: ", "token_ids: [1,", "password = ", "api_key=", "--api-key ", "a.", "a-", "a@b.", "1.", "10.0.0.1 ",
           "::", "a:", "dead:", "eyJaaaaaaa.", "hf_", "sk-", "Bearer ", "http://a:", "http://a@", "-----BEGIN PRIVATE KEY-----", "/home/a/", "C:\\\\Users\\\\", "user=", "host: a",
           "[a-1]:29500 ", "<|im_start|>", "[INST]", "Received request x: prompt: y ", "Nov 30 13:54:03 a b: ", "a_key_", "([{", 'messages: [{"content": "', "\n", 'prompt: "\n',
           "-----BEGIN PRIVATE KEY-----\n", "name: A_KEY\nvalue: ", "ssh -a -b ", "AKIA", "\x00", "密码是", "cookie: ", "A" * 63 + "\n", "aa:", '"""', "'\"\"\"", "name: A_KEY value: b ", '"value":"b"', "api_key: |\n  x\n", "password ", "login a ", "hook.", "/hooks/", "?q=a&",
           "tensor([1, 2, ", "a_ids: [1,\n", "a:1234:", "wandb ", "api key ", "api key provided ", "www.a.", "用户提问：", "\\x00--api-key", "prompt: 'a'b"]  # fmt: skip
BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (240, 240))  # no stopwatch: it ends what would never end
from vllm_doctor.redact import clean
for size, attacks in ((1 << 14, {all}), (1 << 20, {worst})):
    for attack in attacks:
        clean((attack * (size // len(attack) + 1))[:size])
print("done")
"""


def test_hostile_text_costs_bounded_work() -> None:
    worst = ["prompt: '", "-----BEGIN PRIVATE KEY-----\n", 'prompt: "\n']
    code = BOUNDED.format(all=ATTACKS, worst=worst)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
