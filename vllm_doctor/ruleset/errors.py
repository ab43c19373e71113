"""Errors in rule files: always with file, line, reason and help."""

from __future__ import annotations


class RuleError(Exception):
    """One fault in a rule file."""

    def __init__(self, file: str, line: int, reason: str, help: str = "") -> None:
        super().__init__(f"{file}:{line}: {reason}" + (f" (help: {help})" if help else ""))
        self.file, self.line, self.reason, self.help = file, line, reason, help


class RulesInvalid(Exception):
    """All faults found in a rule set; the loader collects them instead of stopping at the first."""

    def __init__(self, errors: list[RuleError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors
