"""Static bearer tokens: a TOML file of the operator's with a table for each caller, and the token's digest alone.

A token is long and random, so that a plain SHA-256 of it cannot be searched for, as that of a password could.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from query.caller import Caller, Permission
from shared.errors import AuthenticationFailed, ConfigInvalid
from shared.validation import first_problem
from shared.watched_file import WatchedFile

# Marks a token as ours, for people and for programs that search repositories for leaked ones.
PREFIX = "toolscale_"

# A bare key of TOML, so that nothing of a name has to be quoted.
NAME = r"^[A-Za-z0-9_-]{1,64}$"

CallerName = Annotated[str, StringConstraints(pattern=NAME)]
Group = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TokenEntry(BaseModel):
    """One caller's table in the file. `groups` is "*" for one that sees everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    groups: Literal["*"] | frozenset[Group]
    permissions: frozenset[Permission]
    toolset: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    enforce_budget: bool = False
    expires_at: AwareDatetime | None = None

    def caller(self, name: str) -> Caller:
        """Return the caller that shows this token."""
        groups = None if self.groups == "*" else frozenset(self.groups)
        limit = self.budget_tokens if self.enforce_budget else None
        return Caller(name, groups, self.permissions, self.toolset, self.budget_tokens, limit)


_ENTRIES = TypeAdapter(dict[CallerName, TokenEntry])


class StaticTokens:
    """The callers of a file, which is followed: a token taken out of it is refused with the next request."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.time) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: it cannot be used.
        """
        self._file = WatchedFile(path, read_tokens)
        self._clock_s = clock_s

    def caller(self, token: str) -> Caller | None:
        """Return whose token this is, None when it is none of these.

        Raises:
            AuthenticationFailed: it has expired.
        """
        item = _matching(self._file.read(), digest(token))
        if item is None:
            return None
        name, entry = item
        if entry.expires_at and entry.expires_at.timestamp() <= self._clock_s():
            raise AuthenticationFailed(f"the token of {name} has expired")
        return entry.caller(name)


def read_tokens(path: Path) -> Mapping[str, TokenEntry]:
    """Return the entries of a token file by the callers' names.

    Raises:
        ConfigInvalid: it cannot be read, is not TOML, or an entry of it cannot be used; nothing in it is quoted.
    """
    try:
        entries = _ENTRIES.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigInvalid(f"{path}: {first_problem(error)}") from None  # the cause would quote the file
    except ValueError:  # a TOML error quotes no more than its place, but a token may be what is misplaced
        raise ConfigInvalid(f"{path}: expected TOML in UTF-8") from None
    _refuse_doubles(path, entries)
    return entries


def new_token() -> str:
    """Return a new token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return what the file holds of a token, in hex digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


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


def is_name(text: str) -> bool:
    """Return whether a caller may be called this: 1 to 64 letters, digits, `_` and `-`."""
    return re.fullmatch(NAME, text) is not None


def _matching(entries: Mapping[str, TokenEntry], token_digest: str) -> tuple[str, TokenEntry] | None:
    """Compare with every entry, each in constant time, so that how long it takes tells nothing about any."""
    matching = [item for item in entries.items() if hmac.compare_digest(item[1].sha256, token_digest)]
    return matching[0] if matching else None


def _refuse_doubles(path: Path, entries: Mapping[str, TokenEntry]) -> None:
    owners: dict[str, str] = {}
    for name, entry in entries.items():
        if (other := owners.setdefault(entry.sha256, name)) != name:
            raise ConfigInvalid(f"{path}: {other} and {name} have the same token")


def _toml(value: str | list[str]) -> str:
    return json.dumps(value)  # JSON's strings and arrays of strings are TOML's too
