"""The server with well-behaved clients: the same answers as the command line, in both languages, and nothing kept."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.redact.corpus import corpus, crash_log
from tests.web.running import Running, command, running
from vllm_doctor.pipeline import analyze
from vllm_doctor.reports import RENDERERS, Style
from vllm_doctor.reports.html import _assets
from vllm_doctor.sources import Source

ROOT = Path(__file__).resolve().parent.parent.parent
LOG = (ROOT / "fixtures" / "kv-exhaustion-0.32" / "server.log").read_bytes()
OOM = (ROOT / "fixtures" / "oom-fragmentation-0.14" / "server.log").read_bytes()


@pytest.fixture(scope="module")
def here() -> Iterator[Running]:
    with running(hosts=("doctor.example",)) as server:
        yield server


def ids(report: dict[str, Any]) -> list[str]:
    return [f["id"] for f in report["findings"]]


def test_the_api_gives_the_report_of_the_command_line(here: Running) -> None:
    expected = RENDERERS["json"](analyze([Source("pasted", None, LOG, len(LOG), time.time())]), Style())
    assert here.post("/api/analyze", content=LOG).text == expected


@pytest.mark.parametrize(
    "options",
    [
        {"content": LOG, "headers": {"content-type": "application/x-www-form-urlencoded"}},
        {"data": {"paste": LOG.decode()}},
        {"data": {"paste": ""}, "files": [("files", ("server.log", LOG, "text/plain"))]},
        {"data": {"paste": LOG.decode()}, "files": [("files", ("empty.txt", b"", "text/plain"))]},
        {"json": {"inputs": [{"name": "server.log", "text": LOG.decode()}]}},
    ],
    ids=["curl --data-binary", "form without files", "a file", "paste and an empty file", "json"],
)
def test_every_way_of_sending_gives_the_same_findings(here: Running, options: dict[str, Any]) -> None:
    report = here.post("/api/analyze", **options).json()
    assert (report["verdict"], ids(report)[0], len(report["sources"])) == ("problem", "kv-cache-exhaustion", 1)


def test_files_and_archives_in_any_mix_become_sources(here: Running) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("logs/server.log", LOG)
    files = [("files", ("incident.zip", packed.getvalue())), ("files", ("a.log", OOM)), ("files", ("a.log", OOM))]
    report = here.post("/api/analyze", data={"paste": "vllm serve Qwen/Qwen2-7B --api-key s3cr3t-value-77\n"}, files=files).json()
    assert [s["name"] for s in report["sources"]] == ["pasted", "incident.zip/logs/server.log", "a.log", "a.log (2)"]
    assert "s3cr3t-value-77" not in json.dumps(report)


def test_a_paste_comes_back_as_the_report_page_with_downloads(here: Running) -> None:
    answer = here.post("/analyze?lang=zh", data={"paste": LOG.decode()})
    assert (answer.status_code, 'lang="zh-CN"' in answer.text) == (200, True)
    links = dict(re.findall(r'download="vllm-doctor-report\.(\w+)" href="data:[\w/;=-]+,([A-Za-z0-9+/=]+)"', answer.text))
    assert sorted(links) == ["html", "json", "md"]
    report = json.loads(base64.b64decode(links["json"]))
    assert (report["language"], ids(report)[0]) == ("zh", "kv-cache-exhaustion")
    assert base64.b64decode(links["html"]).decode().startswith("<!doctype html>")


def test_the_policy_of_a_report_page_names_its_own_script_and_nothing_inline(here: Running) -> None:
    answer = here.post("/analyze", data={"paste": LOG.decode()})
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assets = _assets()
    script = base64.b64encode(hashlib.sha256(f"{assets.chart_script}\n{assets.script}".encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{script}'"
    assert policy["style-src"].startswith("'self' 'sha256-")
    assert (policy["default-src"], policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'", "'none'")
    assert "unsafe-inline" not in str(policy)
    assert "http-equiv" not in answer.text.partition("<body>")[0]


@pytest.mark.parametrize("path", ["/", "/?lang=zh", "/sample", "/nothing", "/healthz", "/static/app.js", "/api/openapi.json"])
def test_every_answer_carries_the_headers_and_no_cookie(here: Running, path: str) -> None:
    headers = here.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == ("same-origin" if path.startswith("/?") or path == "/" else "no-referrer")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe-inline" not in headers["content-security-policy"]
    assert ("set-cookie" in headers, "server" in headers) == (False, False)


@pytest.mark.parametrize(
    ("path", "accepted", "language"),
    [
        ("/", "zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        ("/", "fr,en;q=0.5,zh;q=0.4", "en"),
        ("/?lang=zh", "en", "zh-CN"),
        ("/?lang=xx", "de", "en"),
        ("/", "zh;q=0", "en"),
    ],
)
def test_the_language_is_the_one_asked_for(here: Running, path: str, accepted: str, language: str) -> None:
    assert f'<html lang="{language}">' in here.get(path, headers={"accept-language": accepted}).text


def test_the_sample_is_one_click_away(here: Running) -> None:
    page = here.get("/sample")
    assert (page.status_code, "kv-cache-exhaustion" in page.text) == (200, True)
    assert 'href="/sample?lang=en"' in here.get("/").text


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"content": b""}, 422, "nothing-sent"),
        ({"content": b"\x7fELF\x01\x02\x03"}, 422, "nothing-readable"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "bad-form"),
        ({"content": b'{"inputs": [{"text": 5}]}', "headers": {"content-type": "application/json"}}, 400, "bad-form"),
        ({"content": b"no parts", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "bad-form"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "bad-form"),
    ],
)
def test_a_body_that_says_nothing_is_refused_with_a_reason(here: Running, options: dict[str, Any], status: int, code: str) -> None:
    answer = here.post("/api/analyze", **options)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    page = here.post("/analyze", **options)
    assert (page.status_code, answer.json()["error"]["message"] in page.text) == (status, True)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/analyze", 405), ("POST", "/", 405), ("GET", "/x/../etc/passwd", 404), ("GET", "/static/../app.py", 404)]
)
def test_other_addresses_are_refused(here: Running, method: str, path: str, status: int) -> None:
    assert httpx.request(method, here.address + path, trust_env=False).status_code == status


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"host": "localhost:1"}, True),
        ({"host": "doctor.example"}, True),
        ({"host": "DOCTOR.example.:443"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "doctor.example@evil.example"}, False),
        ({"host": ""}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost:9"}, False),
        ({"origin": "https://doctor.example", "host": "doctor.example"}, True),
        ({"origin": "https://doctor.example"}, True),
        ({"origin": "file://"}, False),
        ({"origin": "null"}, False),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, True),
    ],
    ids=str,
)
def test_only_this_servers_names_and_pages_may_post(here: Running, headers: dict[str, str], allowed: bool) -> None:
    status = here.post("/api/analyze", content=b"", headers=headers).status_code
    assert status == (422 if allowed else 403)


def test_a_foreign_name_cannot_even_read_the_form(here: Running) -> None:
    answer = here.get("/", headers={"host": "evil.example"})
    assert (answer.status_code, "--allow-host" in answer.text, "textarea" in answer.text) == (403, True, False)


@pytest.mark.parametrize("path", ["/doctor/", "/"])
def test_a_base_path_works_whether_or_not_the_proxy_removes_it(path: str) -> None:
    with running(base="/doctor") as server:
        page = server.get(path).text
        assert re.findall(r'(?:href|src|action)="(/[^"]*)"', page) != []
        assert [a for a in re.findall(r'(?:href|src|action)="(/[^"]*)"', page) if not a.startswith("/doctor/")] == []
        assert server.get(path + "static/app.css").status_code == 200


def test_the_api_keeps_to_its_own_description(here: Running) -> None:
    described = here.get("/api/openapi.json").json()
    schema = {"$ref": "#/components/schemas/Report", "components": described["components"]}
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(here.post("/api/analyze", content=LOG).json())
    error = here.post("/api/analyze", content=b"").json()
    Draft202012Validator(described["components"]["schemas"]["Error"]).validate(error)
    assert list(described["paths"]) == ["/api/analyze", "/healthz"]


def test_no_secret_comes_back_and_none_is_logged() -> None:
    cases = corpus()[:112]
    secrets = [s for c in cases for s in c.secrets]
    with command("-v") as (address, process), httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        for start in range(0, len(cases), 28):
            files = [("files", (f"{n}.log", crash_log(c).encode())) for n, c in enumerate(cases[start : start + 28])]
            page = client.post(f"/analyze?token={secrets[0]}", files=files, headers={"x-note": secrets[1]})
            assert page.status_code == 200
            downloads = b"".join(base64.b64decode(d) for d in re.findall(r'href="data:[\w/;=-]+,([A-Za-z0-9+/=]+)"', page.text)).decode()
            assert [s for s in secrets if s in page.text or s in downloads] == []
        client.get(f"/{secrets[3]}?key={secrets[4]}")
        client.get(f"/progress/{secrets[5]}")
        client.get("/", headers={"host": secrets[6]})
        client.request("ZZ" + secrets[7][:8].upper(), "/")
        client.post("/api/analyze", content=b"x", headers={"content-type": f"multipart/form-data; boundary={secrets[8]}"})
        process.terminate()
        assert process.stderr is not None
        logged = process.stderr.read()
    assert logged.count("POST analyze 200") == 4
    assert [s for s in secrets if s in logged] == []


def test_nothing_is_written_anywhere_while_it_serves(tmp_path: Path) -> None:
    with command(environment={"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}) as (address, process):
        big = LOG * 300
        assert httpx.post(address + "/analyze", files=[("files", ("big.log", big))], timeout=120, trust_env=False).status_code == 200
        opened = []
        for number in os.listdir(f"/proc/{process.pid}/fd"):
            with suppress(FileNotFoundError):  # a socket that was closed between the two looks
                opened.append(os.readlink(f"/proc/{process.pid}/fd/{number}"))
    assert list(tmp_path.rglob("*")) == []
    assert [o for o in opened if o.startswith("/") and not o.startswith(("/dev/", "/proc/"))] == []


CONFINED = """
import sys
from vllm_doctor.web.worker import confine
confine(1 << 30)
try:
    with open(sys.argv[1], "wb") as file:
        file.write(b"x")
    print("written")
except OSError:
    print("refused")
try:
    bytearray(2 << 30)
    print("got it")
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are tested where they are sure to exist")
def test_a_worker_can_write_no_file_and_has_bounded_memory(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", CONFINED, str(tmp_path / "x")], capture_output=True, text=True, check=True)
    assert result.stdout == "refused\nrefused\n"


def test_what_cannot_be_read_is_said_in_chinese(here: Running) -> None:
    answer = here.post("/api/analyze?lang=zh", files=[("files", ("a.bin", b"\x7fELF\x01\x02"))])
    assert (answer.status_code, answer.json()["error"]["details"]) == (422, ["a.bin：这不是文本"])


def test_pasted_text_without_years_is_of_this_time(here: Running) -> None:
    report = here.post("/api/analyze", content=b"INFO 01-02 13:53:41 [api_server.py:1896] vLLM API server version 0.10.2\n").json()
    assert "year-assumed" in [i["code"] for i in report["issues"]]
    assert report["sources"][0]["first_time"] > "2020"


def test_the_chinese_form_reads_as_chinese(here: Running) -> None:
    page = here.get("/?lang=zh").text
    assert "这个 vLLM 服务怎么了？" in page
    assert "或选择文件" in page
    assert '。<span id="drop-note"' in page
