"""Who asks, and what they may see and do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shared.catalog import Scope

Permission = Literal["catalog:read", "tools:call"]


@dataclass(frozen=True, slots=True)
class Caller:
    """One that is known by `name` and may see the tools of its `groups`; None: of all groups."""

    name: str
    groups: frozenset[str] | None = None
    permissions: frozenset[Permission] = frozenset({"catalog:read", "tools:call"})

    @property
    def scope(self) -> Scope:
        """Return all that this caller may see: what any answer to it is made of, and counted against."""
        return Scope(groups=self.groups)


# Whoever reaches a service without authentication, which only listens on loopback.
ANYONE = Caller("anyone")
