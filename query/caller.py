"""Who asks, and what they may see and do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from shared.catalog import Scope

Permission = Literal["catalog:read", "tools:call"]
PERMISSIONS: frozenset[Permission] = frozenset(get_args(Permission))


@dataclass(frozen=True, slots=True)
class Caller:
    """One that is known by `name` and may see the tools of its `groups`; None: of all groups, and of none.

    `toolset` names the tools it is offered directly, `budget_tokens` what their definitions may cost it together.
    """

    name: str
    groups: frozenset[str] | None = None
    permissions: frozenset[Permission] = PERMISSIONS
    toolset: str | None = None
    budget_tokens: int | None = None

    @property
    def scope(self) -> Scope:
        """Return all that this caller may see: what any answer to it is made of, and counted against.

        A server without groups is in the scope of a caller without restriction alone.
        """
        return Scope(groups=self.groups)


# Whoever reaches a service without authentication, which only listens on loopback.
ANYONE = Caller("anyone")


def operator(groups: frozenset[str] | None = None) -> Caller:
    """Return whoever started this process over stdio, who reads the operator's files anyway."""
    return Caller("operator", groups)
