"""A seeded corpus: made-up secrets in the shapes in which logs, launch commands and pastes carry them.

`corpus(300)` gives the same 300 cases each time. A case is a text around one secret; `crash_log` puts it next to the death of an engine, so that
the secret is in a line, or in the neighbour of a line, that the report quotes.
"""

# ruff: noqa: E501  (lines of logs)

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from typing import NamedTuple


class Case(NamedTuple):
    """`secrets` must not be found in any output. `text` holds them, one or more lines."""

    shape: str
    text: str
    secrets: tuple[str, ...]


Draw = random.Random
LETTERS = string.ascii_letters + string.digits


def word(draw: Draw, size: int, letters: str = LETTERS) -> str:
    return draw.choice(string.ascii_lowercase) + "".join(draw.choices(letters, k=size - 2)) + draw.choice(string.digits)


def sentence(draw: Draw) -> str:
    """Something that a person would ask; its words are unlike anything that vLLM prints."""
    return " ".join("".join(draw.choices("aeioubcdfgmnprstvz", k=draw.randint(5, 9))) for _ in range(4))


def host(draw: Draw) -> str:
    return f"{draw.choice(['gpu', 'a100', 'dgx', 'infer'])}-{word(draw, 5, string.ascii_lowercase)}-{draw.randint(10, 99)}"


def user(draw: Draw) -> str:
    return "".join(draw.choices("bcdfgklmnprstvz", k=7))


def private_ip(draw: Draw) -> str:
    return draw.choice(["10.{}.{}.{}", "192.168.{1}.{2}", "172.20.{1}.{2}"]).format(*(draw.randint(2, 250) for _ in range(3)))


def public_ip(draw: Draw) -> str:
    return f"{draw.choice([52, 34, 121, 47])}.{draw.randint(2, 250)}.{draw.randint(2, 250)}.{draw.randint(2, 250)}"


def ids(draw: Draw) -> str:
    return ", ".join(str(draw.randint(30000, 151000)) for _ in range(9))


PARAMS = "SamplingParams(n=1, temperature=1.0, stop=[], stop_token_ids=[], max_tokens=256, min_tokens=0, guided_decoding=None)"


def _request(draw: Draw, template: str) -> tuple[str, str]:
    said = sentence(draw)
    return template.replace("@", said).replace("%PARAMS%", PARAMS), said


def _key(draw: Draw, template: str, size: int = 24) -> tuple[str, str]:
    key = word(draw, size)
    return template.replace("@", key), key


def _pem(draw: Draw) -> tuple[str, str]:
    body = ["".join(draw.choices(LETTERS + "+/", k=64)) for _ in range(2)]
    return "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *body, "-----END RSA PRIVATE KEY-----"]), body[0][:40]


def _jwt(draw: Draw) -> tuple[str, str]:
    def part(value: str) -> str:
        return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")

    head, claims, signature = part('{"alg":"HS256","typ":"JWT"}'), part(json.dumps({"sub": word(draw, 10)})), word(draw, 43)
    return f"GET /v1/models token {head}.{claims}.{signature}", signature


def _wrapped(draw: Draw) -> tuple[str, str]:
    said = sentence(draw)
    body = json.dumps({"messages": [{"role": "user", "content": f'{said} "quoted" \\ end'}], "model": "m"})
    return f"INFO 11-30 14:00:19 [middleware.py:10] body={json.dumps(body)}", said


def _service_account(draw: Draw) -> tuple[str, str]:
    key = word(draw, 60)
    return json.dumps({"type": "service_account", "private_key": f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n"}), key


RECEIVED = "INFO 11-30 14:00:19 [logger.py:39] Received request cmpl-9f86d081884c7d65-0: "
SHAPES: dict[str, Callable[[Draw], tuple[str, str]]] = {
    "option": lambda d: _key(d, "$ vllm serve Qwen/Qwen2-7B --port 8000 --api-key @ --max-model-len 8192"),
    "option with =": lambda d: _key(d, "$ vllm serve Qwen/Qwen2-7B --api-key=@ --max-num-seqs 64"),
    "options in YAML": lambda d: _key(d, "        - --api-key\n        - @\n        - --port"),
    "non-default args": lambda d: _key(d, "INFO 11-30 13:53:41 [utils.py:328] non-default args: {'model': 'm', 'api_key': ['@'], 'max_model_len': 2048}"),
    "Namespace": lambda d: _key(d, "INFO 11-30 13:53:41 api_server.py:219] args: Namespace(host=None, port=8000, api_key='@', lora_modules=None)"),
    "exported variable": lambda d: _key(d, "export OPENAI_API_KEY=@", 30),
    "docker variable": lambda d: _key(d, "docker run --gpus all -e HUGGING_FACE_HUB_TOKEN=@ -p 8000:8000 vllm/vllm-openai:v0.10.2", 30),
    "pod variable": lambda d: _key(d, "        - name: DB_PASSWORD\n          value: @"),
    "variable in JSON": lambda d: _key(d, '{"env": {"WANDB_API_KEY": "@", "VLLM_USE_V1": "1"}}', 40),
    "bearer": lambda d: _key(d, 'curl http://localhost:8000/v1/models -H "Authorization: Bearer @"'),
    "headers of a request": lambda d: _key(d, "ERROR request headers: [(b'host', b'localhost'), (b'authorization', b'Bearer @'), (b'accept', b'*/*')]"),
    "x-api-key": lambda d: _key(d, "DEBUG headers: {'x-api-key': '@', 'content-type': 'application/json'}"),
    "basic": lambda d: _key(d, "Authorization: Basic @=="),
    "cookie": lambda d: _key(d, "Cookie: session=@; theme=dark"),
    "curl -u": lambda d: _key(d, "curl -u svc:@ http://localhost:8000/metrics", 14),
    "query": lambda d: _key(d, 'INFO:     127.0.0.1:51738 - "GET /v1/models?api_key=@&x=1 HTTP/1.1" 200 OK'),
    "Hugging Face": lambda d: _key(d, "OSError: hf_@ is not a valid token for this repository", 34),
    "OpenAI": lambda d: _key(d, "ERROR Incorrect key provided: sk-proj-@.", 40),
    "AWS": lambda d: (lambda k: (f"botocore: signing with AKIA{k} failed", k))("".join(d.choices(string.ascii_uppercase + "234567", k=16))),
    "AWS secret": lambda d: _key(d, "AWS_SECRET_ACCESS_KEY=@", 40),
    "Google": lambda d: _key(d, "GET https://storage.googleapis.com/b/o?key=AIza@", 35),
    "Google service account": _service_account,
    "Azure": lambda d: _key(d, "DefaultEndpointsProtocol=https;AccountName=weights;AccountKey=@==;EndpointSuffix=core.windows.net", 86),
    "JWT": _jwt,
    "GitHub": lambda d: _key(d, "pip install git+https://ghp_@@github.com/acme/plugin.git".replace("@@", "@\x00"), 36),
    "Slack webhook": lambda d: _key(d, "POST https://hooks.slack.com/services/T012AB3CD/B012AB3CD/@ failed"),
    "Slack token": lambda d: _key(d, "slack_sdk: xoxb-123456789012-@ was revoked"),
    "Feishu webhook": lambda d: _key(d, "告警地址 https://open.feishu.cn/open-apis/bot/v2/hook/@", 32),
    "NVIDIA": lambda d: _key(d, "docker login nvcr.io: nvapi-@ refused", 64),
    "database": lambda d: _key(d, "sqlalchemy: cannot connect to postgresql://vllm:@\x00localhost:5432/usage", 14),
    "private key": _pem,
    "prompt": lambda d: _request(d, RECEIVED + "prompt: '@', params: %PARAMS%, prompt_token_ids: None, lora_request: None."),
    "prompt with quotes": lambda d: _request(d, RECEIVED + "prompt: \"it's @\", params: %PARAMS%, prompt_token_ids: [1, 2], lora_request: None."),
    "prompt with escapes": lambda d: _request(d, RECEIVED + "prompt: '<|im_start|>user\\nit\\'s @<|im_end|>\\n', params: %PARAMS%."),
    "prompt of 0.2.7": lambda d: _request(d, "INFO 11-30 14:00:19 async_llm_engine.py:371] Received request cmpl-1: prompt: '@', sampling params: %PARAMS%, prompt token ids: [1]."),
    "prompt cut off": lambda d: _request(d, RECEIVED + "prompt: 'please @"),
    "prompt in details": lambda d: _request(d, "DEBUG 11-30 14:00:19 [logger.py:40] Request chatcmpl-7 details: prompt: '@', prompt_token_ids: [5, 6], prompt_embeds shape: None."),
    "token ids": lambda d: (lambda i: (RECEIVED + f"prompt: 'x', params: {PARAMS}, prompt_token_ids: [{i}], lora_request: None.", i))(ids(d)),
    "response": lambda d: _request(d, "INFO 11-30 14:00:19 [logger.py:88] Generated response cmpl-2 (streaming complete): output: '@', output_token_ids: None, finish_reason: stop"),
    "dump": lambda d: (
        lambda i: (
            "ERROR 11-30 13:54:03 [dump_input.py:76] Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[NewRequestData("
            f"req_id=cmpl-1,prompt_token_ids=[{i}],mm_kwargs=[],block_ids=([1, 2],),num_computed_tokens=0)], total_num_scheduled_tokens=32)",
            i,
        )
    )(ids(d)),
    "output type": lambda d: _request(d, "RequestOutput(request_id=3, prompt='x', outputs=[CompletionOutput(index=0, text='@', token_ids=(1, 2), finish_reason=length)])"),
    "validation error": lambda d: _request(d, "  Input should be a valid list [type=list_type, input_value='@', input_type=str]"),
    "body": lambda d: _request(d, "curl -s localhost:8000/v1/completions -d '{\"model\": \"m\", \"prompt\": \"@\", \"max_tokens\": 16}'"),
    "body in a string": _wrapped,
    "e-mail": lambda d: (lambda u: (f"# asked by {u}@example.com", f"{u}@"))(user(d)),
    "home": lambda d: (lambda u: (f"OSError: /home/{u}/models/config.json is missing", u))(user(d)),
    "home on a Mac": lambda d: (lambda u: (f"  File \"/Users/{u}/vllm/core.py\", line 7, in run", u))(user(d)),
    "home on Windows": lambda d: (lambda u: (f"reading C:\\Users\\{u}\\models", u))(user(d)),
    "private address": lambda d: (lambda a: (f'INFO:     {a}:51738 - "POST /v1/completions HTTP/1.1" 200 OK', a))(private_ip(d)),
    "public address": lambda d: (lambda a: (f"INFO 11-30 13:53:41 [parallel_state.py:9] distributed_init_method=tcp://{a}:40125 backend=nccl", a))(public_ip(d)),
    "IPv6 address": lambda d: (lambda a: (f"ConnectionError: [{a}]:29500 is unreachable", a))(f"2001:db8:{d.randint(4097, 65535):x}::{d.randint(4097, 65535):x}"),
    "host of a system logger": lambda d: (lambda h: (f"Nov 30 13:54:03 {h} kernel: oom-kill: task=python", h))(host(d)),
    "host of NCCL": lambda d: (lambda h: (f"{h}:1234:5678 [0] NCCL INFO Bootstrap : Using eth0", h))(host(d)),
    "host in an address": lambda d: (lambda h: (f"requests: http://{h}.prod.corp:8000/v1/models timed out", h))(host(d)),
    "host of torch": lambda d: (lambda h: (f"[W socket.cpp:697] [c10d] The client socket has failed to connect to [{h}]:29500 (errno: 110)", h))(host(d)),
    "prompt of a shell": lambda d: (lambda u, h: (f"{u}@{h}:~$ vllm serve m", f"{u}@{h}"))(user(d), host(d)),
}  # fmt: skip


def corpus(count: int = 300, seed: int = 20261130) -> list[Case]:
    """`count` cases, every shape about equally often, the same ones each time."""
    draw = random.Random(seed)
    cases = []
    names = list(SHAPES)
    for number in range(count):
        shape = names[number % len(names)]
        text, secret = SHAPES[shape](draw)
        cases.append(Case(shape, text.replace("\x00", "@"), (secret,)))
    return cases


def crash_log(case: Case) -> str:
    """A server that dies right after the case's text."""
    return "\n".join(
        [
            "INFO 11-30 13:53:41 [api_server.py:1896] vLLM API server version 0.10.2",
            "INFO 11-30 13:53:58 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='m', dtype=torch.bfloat16",
            "INFO:     Application startup complete.",
            *case.text.split("\n"),
            "ERROR 11-30 13:54:03 [core.py:720] EngineCore encountered a fatal error.",
            "ERROR 11-30 13:54:03 [core.py:720] Traceback (most recent call last):",
            'ERROR 11-30 13:54:03 [core.py:720]   File "vllm/v1/engine/core.py", line 711, in run_engine_core',
            f"ERROR 11-30 13:54:03 [core.py:720] RuntimeError: {case.text.splitlines()[0].strip()}",
            "",
        ]
    )
