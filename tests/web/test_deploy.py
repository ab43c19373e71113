"""The examples under deploy/ start the server that there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import yaml

from vllm_doctor.cli.serve import command

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"


def started_with() -> list[list[str]]:
    """The arguments of `serve` in every example."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    cluster = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    docker = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert docker is not None
    return [
        yaml.safe_load(docker[1]),
        compose["services"]["doctor"]["command"],
        cluster[0]["spec"]["template"]["spec"]["containers"][0]["args"],
    ]


def test_the_examples_use_options_that_exist() -> None:
    parsed = [command.make_context("serve", arguments[1:]).params for arguments in started_with() if arguments[0] == "serve"]
    assert [(p["host"], p["base_path"], p["hosts"]) for p in parsed] == [
        ("0.0.0.0", "", ()),
        ("0.0.0.0", "", ("doctor.example.com",)),
        ("0.0.0.0", "/doctor", ("tools.example.com",)),
    ]


def test_the_container_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (\S+)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert users == ["10001"]


def test_the_documented_options_exist() -> None:
    text = (DEPLOY.parent / "docs" / "serve.md").read_text(encoding="utf-8")
    known = {name for p in command.params if isinstance(p, click.Option) for name in (*p.opts, *p.secondary_opts)}
    named = set(re.findall(r"`(--?[a-z][a-z-]*)", text))
    assert named
    assert named - known == set()
