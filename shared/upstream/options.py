"""The options of one server, which only its operator sets: its tools, the time of a call, and whether it has state.

They are keys of its entry in the `mcp.json`, or of a table in the policy file; an event never sets them.

    {"mcpServers": {"mail": {"command": "mail-mcp", "excludeTools": ["delete_*"], "timeout": 120000}}}
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from shared.upstream.auth import OF_SERVICE, UNREGISTERED, Auth, OAuthClient

if TYPE_CHECKING:
    from shared.catalog import Listing

STATEFUL = "stateful"
"""The label of an entry whose server keeps state for a session: `"true"` or `"false"`."""

LONGEST_TIMEOUT_S = 3_600.0
"""As of the setting for all servers; clients allow days."""

# The fewest milliseconds of a client that counts in them: Claude Code ignores fewer, and Cline and Roo count seconds.
FEWEST_MS = 1_000

Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of one server; without any, all of its tools, and the time of all servers.

    `include_tools` and `exclude_tools` are names or shell patterns; None includes all tools, and an exclusion wins.
    """

    include_tools: tuple[str, ...] | None = None
    exclude_tools: tuple[str, ...] = ()
    timeout_s: float | None = None
    is_stateful: bool = False
    auth: Auth = OF_SERVICE
    oauth: OAuthClient = UNREGISTERED

    def offers(self, tool: str) -> bool:
        """Return whether this tool of the server may be found and called."""
        return (self.include_tools is None or _names(self.include_tools, tool)) and not _names(self.exclude_tools, tool)

    def selected(self, listing: Listing) -> Listing:
        """Return the list without the other tools; they are not reported as rejected either."""
        if self.include_tools is None and not self.exclude_tools:
            return listing
        return replace(
            listing,
            tools=tuple(tool for tool in listing.tools if self.offers(tool.name)),
            rejected=tuple(tool for tool in listing.rejected if self.offers(tool.name)),
            marked=tuple(filter(self.offers, listing.marked)),
        )


class OptionKeys(BaseModel):
    """The keys of options, which an entry and a table of the policy file have in common."""

    model_config = ConfigDict(frozen=True)

    include_tools: tuple[Text, ...] | None = Field(None, alias="includeTools")
    exclude_tools: tuple[Text, ...] = Field((), alias="excludeTools")
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, validation_alias=AliasChoices("timeout", "tool_timeout", "toolTimeout")
    )
    """Milliseconds; seconds if fewer than FEWEST_MS."""
    timeout_sec: Annotated[float, Field(gt=0)] | None = Field(None, alias="tool_timeout_sec")
    """Seconds, as Codex writes them."""
    auth: Auth = OF_SERVICE
    oauth: OAuthClient = UNREGISTERED

    @model_validator(mode="before")
    @classmethod
    def _client_of_cursor(cls, value: object) -> object:
        """Cursor has the client under `auth`; `oauth: false` of other clients means a header in its place."""
        if not isinstance(value, dict):
            return value
        keys = dict(cast("dict[str, object]", value))
        if isinstance(auth := keys.get("auth"), dict) and "CLIENT_ID" in auth:
            keys["oauth"] = keys.pop("auth")
        if isinstance(keys.get("oauth"), bool):
            del keys["oauth"]
        return keys

    def options(self, *, is_stateful: bool) -> ServerOptions:
        """Return the options of these keys."""
        return ServerOptions(
            self.include_tools, self.exclude_tools, self._timeout_s(), is_stateful, self.auth, self.oauth
        )

    def _timeout_s(self) -> float | None:
        timeout_s = self.timeout_sec
        if timeout_s is None and self.timeout is not None:
            timeout_s = self.timeout if self.timeout < FEWEST_MS else self.timeout / 1_000
        return None if timeout_s is None else min(timeout_s, LONGEST_TIMEOUT_S)


OPTION_KEYS = frozenset(
    (
        *("includeTools", "excludeTools", "timeout", "tool_timeout", "toolTimeout", "tool_timeout_sec"),
        *("auth", "oauth"),
    )
)
"""The keys of options as they are written."""


# Parts of clients' keys for tools. An approval without a question is no restriction: `autoApproveTools`.
_INCLUDING = ("allow", "available", "enable", "include", "permi", "white")
_EXCLUDING = ("black", "block", "den", "disable", "exclude", "filter", "hid")
_APPROVING = ("always", "approv", "auto", "trust")


def restricts_tools(key: str, value: object) -> bool:
    """Return whether an unknown key of an entry, with this value, may restrict the tools of its server."""
    letters = re.sub(r"[^a-z]", "", key.lower())
    if "tool" not in letters or any(part in letters for part in _APPROVING):
        return False
    includes = letters == "tools" or any(part in letters for part in _INCLUDING)
    if value in ([], {}):
        return includes
    return value not in (None, False, "*", ["*"]) and (includes or any(part in letters for part in _EXCLUDING))


def _names(patterns: tuple[str, ...], tool: str) -> bool:
    # a name may have characters of a pattern: what excludes it must not fail to match it
    return any(tool == pattern or fnmatchcase(tool, pattern) for pattern in patterns)
