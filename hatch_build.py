"""Build hook: a wheel carries the rules checked and compiled, as `rules.json` and `knowledge.json` (models, cards) in `vllm_doctor/`;
a checkout goes on reading `rules/`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledRules(BuildHookInterface):  # type: ignore[type-arg]
    """Loads `rules/` as strictly as the product does, and stops the build with the located faults if there are any."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # a compiled copy would shadow the rules somebody is editing
        self.folder = tempfile.mkdtemp()  # never inside the checkout, for the same reason
        for name, content in self._compile().items():
            compiled = Path(self.folder) / name
            compiled.write_bytes(content)
            build_data["force_include"][str(compiled)] = f"vllm_doctor/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self.folder, ignore_errors=True)

    def _compile(self) -> dict[str, bytes]:
        sys.path.insert(0, self.root)
        try:
            import msgspec

            from vllm_doctor.ruleset.errors import RulesInvalid
            from vllm_doctor.ruleset.load import knowledge_folder, load_folder

            try:
                rules = Path(self.root) / "rules"
                return {"rules.json": msgspec.json.encode(load_folder(rules)), "knowledge.json": msgspec.json.encode(knowledge_folder(rules))}
            except RulesInvalid as faults:
                self.app.abort(f"rules/ has {len(faults.errors)} faults:\n{faults}")
                raise
        finally:
            sys.path.remove(self.root)
