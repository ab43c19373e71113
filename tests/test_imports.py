"""Imports point one way (DESIGN section 3), so that a reader can follow bytes to report without turning back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "vllm_doctor"

ORDER = [
    {"model", "language", "versions"},
    {"ruleset"},
    {"parsing"},
    {"assemble"},
    {"signals", "capacity"},
    {"diagnosis"},
    {"remedies"},
    {"narrate"},
    {"large"},
    {"pipeline"},
    {"selftest"},
    {"reports"},
    {"web", "live", "fleet"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
SIDE = {"sources", "redact"}
"""Readers of the world and redaction import only model; the pipeline and what is above it may use them."""


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> set[str]:
    """Absolute names of our modules that a file imports at any depth."""
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    package = package.removesuffix(".__init__")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("vllm_doctor")}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            if name.startswith("vllm_doctor"):
                found |= {f"{name}.{a.name}" for a in node.names} if name == "vllm_doctor" else {name}
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in RANK or own in SIDE, f"{own} has no place in the layout"
    for target in imports_of(path):
        other = layer(target)
        if other in ("", own, "__version__", "model", "language", "versions"):
            continue
        if own in SIDE:
            pytest.fail(f"{path} imports {target}: {own} may import only model")
        if other in SIDE:
            assert RANK[own] >= RANK["large"], f"{path} imports {target}: only the pipeline and above read the world"
            continue
        if own == "model" and path.name == "report.py" and other == "reports":
            continue  # Report._repr_html_ renders itself
        assert RANK[other] < RANK[own], f"{path} imports {target}, which lies above it"


def test_the_package_imports_nothing_eagerly() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    eager = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) and getattr(n, "module", "") != "__future__"]
    assert [ast.unparse(n) for n in eager if "TYPE_CHECKING" not in ast.unparse(n)] == []
