"""Static bearer tokens of callers: the operator's TOML file with a table per caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from query.caller import Caller, Permission
from shared.events import Groups
from shared.service.token_file import TokenFile, TokenHolder, read_token_file
from shared.service.token_file import as_toml as _toml


class TokenEntry(TokenHolder):
    """One caller's table in the file; with the `groups` "*", the caller sees everything."""

    groups: Groups
    permissions: frozenset[Permission]
    toolset: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    enforce_budget: bool = False

    def caller(self, name: str) -> Caller:
        """Return the caller of this entry."""
        groups = None if self.groups == "*" else frozenset(self.groups)
        limit = self.budget_tokens if self.enforce_budget else None
        return Caller(name, groups, self.permissions, self.toolset, self.budget_tokens, limit)


class StaticTokens:
    """The callers in a file, which may change: a removed token is refused with the next request."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.time) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: the file is invalid.
        """
        self._file = TokenFile(path, TokenEntry, clock_s)

    def caller(self, token: str) -> Caller | None:
        """Return the caller of this token, None if the file has none.

        Raises:
            AuthenticationFailed: the token has expired.
        """
        found = self._file.find(token)
        return found and found[1].caller(found[0])


def read_tokens(path: Path) -> Mapping[str, TokenEntry]:
    """Return the entries of a token file by the callers' names.

    Raises:
        ConfigInvalid: the file is unreadable, is not TOML, or has an invalid entry; the error quotes nothing of it.
    """
    return read_token_file(path, TokenEntry)


def as_toml(name: str, entry: TokenEntry) -> str:
    """Return the entry as the table to paste into the file."""
    lines = [f"[{name}]", f"sha256 = {_toml(entry.sha256)}"]
    lines += [f"groups = {_toml('*' if entry.groups == '*' else sorted(entry.groups))}"]
    lines += [f"permissions = {_toml(sorted(entry.permissions))}"]
    lines += [f"toolset = {_toml(entry.toolset)}"] if entry.toolset else []
    lines += [f"budget_tokens = {entry.budget_tokens}"] if entry.budget_tokens else []
    lines += ["enforce_budget = true"] if entry.enforce_budget else []
    lines += [f"expires_at = {entry.expires_at.isoformat(timespec='seconds')}"] if entry.expires_at else []
    return "\n".join(lines)
