"""Callers: their groups, permissions, toolsets and budgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from shared.catalog import Scope, Selection
from shared.upstream.auth import SERVICE

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

Permission = Literal["catalog:read", "tools:call", "toolsets:write", "operate"]
PERMISSIONS: frozenset[Permission] = frozenset(get_args(Permission))
OPERATOR = "toolscale.operator"
"""The key of the operator in the scope of a request that came with the secret of this process."""
# The permissions to find tools and to call them.
USING: frozenset[Permission] = frozenset({"catalog:read", "tools:call"})


@dataclass(frozen=True, slots=True)
class Caller:
    """A named caller that sees the tools of its `groups`; with None, of all servers, those without groups included.

    `toolset` restricts it to the tools of that name, which it can call directly. `selection` holds them after lookup.
    Without `has_token`, it is whoever reaches a service without authentication, or the operator over stdio.
    `client` tells its clients apart then: each has sessions of its own with servers. `directory` is that of a client.
    Definitions above `budget_tokens` together bring a warning; those above `limit_tokens` are left out.
    """

    name: str
    groups: frozenset[str] | None = None
    permissions: frozenset[Permission] = PERMISSIONS
    toolset: str | None = None
    budget_tokens: int | None = None
    limit_tokens: int | None = None
    selection: Selection | None = None
    has_token: bool = True
    client: str = field(default="", compare=False)
    directory: str | None = field(default=None, compare=False)

    @property
    def identity(self) -> str:
        """Return the name under which this caller signs in to servers: empty for the operator, as for the service.

        Without tokens, no caller differs from the operator.
        """
        return self.name if self.has_token else SERVICE

    @property
    def scope(self) -> Scope:
        """Return the scope of this caller: the source of its responses and of their baseline.

        Only a caller without restriction sees a server without groups.
        """
        # a toolset without lookup, or a missing one, shows nothing
        selection = Selection() if self.toolset and self.selection is None else self.selection
        return Scope(groups=self.groups, within=selection)


# The caller of a service without authentication, which listens only on loopback.
ANYONE = Caller("anyone", has_token=False)


def operator(
    groups: frozenset[str] | None = None, toolset: str | None = None, client: str = "", directory: str | None = None
) -> Caller:
    """Return the caller over stdio, who started this process and can read the operator's files."""
    return Caller("operator", groups, toolset=toolset, has_token=False, client=client, directory=directory)


def is_operator(request: HTTPConnection, caller: Caller, *, is_local: bool) -> bool:
    """Return whether the caller may do what needs the permission `operate`, for all groups."""
    if caller is ANYONE:
        # Without authentication, only this machine may operate. A web page of another port of it may not: its
        # browser sends a body of plain text to any address, with the origin of the page.
        origin = request.headers.get("origin")
        return is_local and (origin is None or origin.partition("://")[2] == request.headers.get("host"))
    return "operate" in caller.permissions and caller.groups is None and caller.toolset is None
