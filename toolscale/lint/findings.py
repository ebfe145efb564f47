"""The rules of lint, and a finding."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from shared.errors import ConfigInvalid
from shared.quoting import printable

Level = Literal["note", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels of SARIF, the least severe first."""

RuleId = Literal[
    "invalid-tool",
    "missing-tool-description",
    "invisible-characters",
    "missing-parameter-description",
    "unclear-description",
    "similar-descriptions",
    "large-tool",
    "long-description",
    "large-parameter",
    "leaner-definition",
]

RULES: dict[RuleId, tuple[Level, str]] = {
    "invalid-tool": ("error", "The definition violates the protocol, so clients reject the tool."),
    "missing-tool-description": ("error", "The tool has no description."),
    "invisible-characters": ("warning", "Texts of the tool have invisible characters."),
    "missing-parameter-description": ("warning", "A required parameter has no description."),
    "unclear-description": ("warning", "The description adds no word to the tool's name."),
    "similar-descriptions": ("warning", "The description is almost equal to that of another tool."),
    "large-tool": ("note", "The tool has more tokens than most public tools."),
    "long-description": ("note", "The description has more tokens than most public descriptions."),
    "large-parameter": ("note", "A parameter has more tokens than most public parameters."),
    "leaner-definition": ("note", "A shorter definition accepts the same arguments."),
}
"""Each rule with its level and its meaning; an extreme size is a warning."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a tool, or one of its parameters, breaks."""

    rule: RuleId
    level: Level
    tool: str
    message: str
    parameter: str | None = None

    @property
    def place(self) -> str:
        """Return the tool, or `TOOL.PARAMETER`, with its invisible characters replaced."""
        return printable(self.tool if self.parameter is None else f"{self.tool}.{self.parameter}")


def broken(rule: RuleId, tool: str, message: str, parameter: str | None = None) -> Finding:
    """Return a finding with the usual level of its rule."""
    return Finding(rule, RULES[rule][0], tool, message, parameter)


def require_rules(ids: Collection[str]) -> None:
    """Raise ConfigInvalid for an id that no rule has."""
    for name in ids:
        if name not in RULES:
            known = get_close_matches(name, RULES, n=1) or [", ".join(RULES)]
            raise ConfigInvalid(f"--ignore: there is no rule {name!r}; known: {known[0]}")


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in the order of their levels; equal levels keep their order."""
    return sorted(findings, key=lambda finding: -LEVELS.index(finding.level))


def reaches(findings: Iterable[Finding], level: Level) -> bool:
    """Return whether any finding has this level or a higher one."""
    return any(LEVELS.index(finding.level) >= LEVELS.index(level) for finding in findings)
