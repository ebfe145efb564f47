"""Who asks, and what they may see and do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from shared.catalog import Scope
from shared.toolset import Selection

Permission = Literal["catalog:read", "tools:call", "toolsets:write"]
PERMISSIONS: frozenset[Permission] = frozenset(get_args(Permission))
# What a caller needs to find tools and to use them.
USING: frozenset[Permission] = frozenset({"catalog:read", "tools:call"})


@dataclass(frozen=True, slots=True)
class Caller:
    """One that is known by `name` and may see the tools of its `groups`; None: of all groups, and of none.

    `toolset` names the tools that it sees alone and is offered directly; `within` are these, once they were looked up.
    Definitions that cost it more than `budget_tokens` together are warned of, more than `limit_tokens` left out.
    """

    name: str
    groups: frozenset[str] | None = None
    permissions: frozenset[Permission] = PERMISSIONS
    toolset: str | None = None
    budget_tokens: int | None = None
    limit_tokens: int | None = None
    selection: Selection | None = None

    @property
    def scope(self) -> Scope:
        """Return all that this caller may see: what any answer to it is made of, and counted against.

        A server without groups is in the scope of a caller without restriction alone.
        """
        # a toolset that was not looked up, or is not there, shows nothing
        selection = Selection() if self.toolset and self.selection is None else self.selection
        return Scope(groups=self.groups, within=selection)


# Whoever reaches a service without authentication, which only listens on loopback.
ANYONE = Caller("anyone")


def operator(groups: frozenset[str] | None = None, toolset: str | None = None) -> Caller:
    """Return whoever started this process over stdio, who reads the operator's files anyway."""
    return Caller("operator", groups, toolset=toolset)
