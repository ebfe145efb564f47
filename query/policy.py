"""The rules of the operator's policy file: for each call allow, ask or deny, and who may run scripts.

The first rule whose conditions all hold decides; without one, the call is allowed. Within a list, one entry suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.catalog import Annotation, annotations_of
from shared.service.files import WatchedFile
from shared.upstream.options import Text
from shared.upstream.server_rules import PolicyTables, read_policy_file

if TYPE_CHECKING:
    from query.caller import Caller
    from shared.catalog import ToolDefinition
    from shared.settings import Settings

Action = Literal["allow", "ask", "deny"]
# The group of a caller who sees everything, as in the token file.
EVERYTHING = "*"

Texts = Annotated[tuple[Text, ...], Field(min_length=1)]


class CallerConditions(BaseModel):
    """The conditions of a table on the caller; an absent one always holds. Callers are shell patterns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    callers: Texts | None = None
    groups: Texts | None = None

    def is_for(self, caller: Caller) -> bool:
        """Return whether the conditions on the caller hold."""
        # an issuer may name a group like the sign for everything
        groups = {EVERYTHING} if caller.groups is None else caller.groups - {EVERYTHING}
        return _matches(caller.name, self.callers) and (self.groups is None or not groups.isdisjoint(self.groups))


class Rule(CallerConditions):
    """One table of the file on calls. Servers and tools are shell patterns too."""

    servers: Texts | None = None
    tools: Texts | None = None
    annotations: Annotated[tuple[Annotation, ...], Field(min_length=1)] | None = None
    action: Action

    def covers(self, server_id: str, definition: ToolDefinition) -> bool:
        """Return whether the conditions on the server and the tool hold."""
        return (
            _matches(server_id, self.servers)
            and _matches(definition.name, self.tools)
            and (self.annotations is None or not annotations_of(definition).isdisjoint(self.annotations))
        )


@dataclass(frozen=True, slots=True)
class CallerRules:
    """The rules for one caller, in their order. Equal for callers whom the policy does not distinguish."""

    rules: tuple[Rule, ...] = ()

    @property
    def have_denials(self) -> bool:
        """Return whether a tool may be denied."""
        return any(rule.action == "deny" for rule in self.rules)

    def denies(self, server_id: str, definition: ToolDefinition) -> bool:
        """Return whether a call of this tool on this server is denied."""
        return self.action(server_id, definition) == "deny"

    def action(self, server_id: str, definition: ToolDefinition) -> Action:
        """Return the action for a call of this tool on this server."""
        for rule in self.rules:
            if rule.covers(server_id, definition):
                return rule.action
        return "allow"


class ScriptRule(CallerConditions):
    """One table of the file on `run_script`; the first whose conditions hold decides."""

    action: Literal["allow", "deny"]


class Policy(PolicyTables):
    """The content of the file; without rules, every call is allowed, and every script."""

    rules: tuple[Rule, ...] = ()
    scripts: tuple[ScriptRule, ...] = ()

    def of(self, caller: Caller) -> CallerRules:
        """Return the rules for this caller."""
        return CallerRules(tuple(rule for rule in self.rules if rule.is_for(caller)))

    def allows_scripts(self, caller: Caller) -> bool:
        """Return whether this caller may run scripts."""
        return next((rule.action for rule in self.scripts if rule.is_for(caller)), "allow") == "allow"


ReadPolicy = Callable[[], Policy]
"""Returns the policy as it is now. Safe to call from any thread."""


def no_policy() -> Policy:
    """Return a policy without rules."""
    return Policy()


def policy_reader(settings: Settings) -> ReadPolicy:
    """Return a function that reads the policy file of the settings again after a change.

    Raises:
        ConfigInvalid: the file is invalid.
    """
    return WatchedFile(settings.policy_file, read_policy).read if settings.policy_file else no_policy


def read_policy(path: Path) -> Policy:
    """Return the policy of a file.

    Raises:
        ConfigInvalid: the file is unreadable, is not TOML, or has an invalid table.
    """
    return read_policy_file(path, Policy)


def _matches(name: str, patterns: Sequence[str] | None) -> bool:
    # a name may have characters of a pattern, and a rule that denies it must not fail to match it
    return patterns is None or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
