"""Static bearer tokens: the operator's TOML file with a table per caller, which holds only the token's digest.

A token is long and random: a plain SHA-256 of it cannot be guessed, unlike that of a password.
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

# Identifies our tokens, for readers and for scanners of leaked secrets.
PREFIX = "toolscale_"

# A bare key of TOML, so that a name needs no quotes.
NAME = r"^[A-Za-z0-9_-]{1,64}$"

CallerName = Annotated[str, StringConstraints(pattern=NAME)]
Group = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TokenEntry(BaseModel):
    """One caller's table in the file; with the `groups` "*", the caller sees everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    groups: Literal["*"] | frozenset[Group]
    permissions: frozenset[Permission]
    toolset: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    enforce_budget: bool = False
    expires_at: AwareDatetime | None = None

    def caller(self, name: str) -> Caller:
        """Return the caller of this entry."""
        groups = None if self.groups == "*" else frozenset(self.groups)
        limit = self.budget_tokens if self.enforce_budget else None
        return Caller(name, groups, self.permissions, self.toolset, self.budget_tokens, limit)


_ENTRIES = TypeAdapter(dict[CallerName, TokenEntry])


class StaticTokens:
    """The callers in a file, which may change: a removed token is refused with the next request."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.time) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: the file is invalid.
        """
        self._file = WatchedFile(path, read_tokens)
        self._clock_s = clock_s

    def caller(self, token: str) -> Caller | None:
        """Return the caller of this token, None if the file has none.

        Raises:
            AuthenticationFailed: the token has expired.
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
        ConfigInvalid: the file is unreadable, is not TOML, or has an invalid entry; the error quotes nothing of it.
    """
    try:
        entries = _ENTRIES.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigInvalid(f"{path}: {first_problem(error)}") from None  # the cause would quote the file
    except ValueError:  # a TOML error quotes the text at its place, which may be a token
        raise ConfigInvalid(f"{path}: expected TOML in UTF-8") from None
    _refuse_doubles(path, entries)
    return entries


def new_token() -> str:
    """Return a new token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the digest of a token as the file has it, in hex digits."""
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
    """Return whether this is a valid caller's name: 1 to 64 letters, digits, `_` and `-`."""
    return re.fullmatch(NAME, text) is not None


def _matching(entries: Mapping[str, TokenEntry], token_digest: str) -> tuple[str, TokenEntry] | None:
    """Compare with every entry in constant time, so that the duration reveals nothing about them."""
    matching = [item for item in entries.items() if hmac.compare_digest(item[1].sha256, token_digest)]
    return matching[0] if matching else None


def _refuse_doubles(path: Path, entries: Mapping[str, TokenEntry]) -> None:
    owners: dict[str, str] = {}
    for name, entry in entries.items():
        if (other := owners.setdefault(entry.sha256, name)) != name:
            raise ConfigInvalid(f"{path}: {other} and {name} have the same token")


def _toml(value: str | list[str]) -> str:
    return json.dumps(value)  # JSON's strings and arrays of strings are also TOML
