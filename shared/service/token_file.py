"""Bearer tokens in an operator's TOML file: a table per holder, which has only the token's digest.

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
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from shared.errors import AuthenticationFailed, ConfigInvalid
from shared.service.files import WatchedFile
from shared.validation import first_problem

# Identifies our tokens, for readers and for scanners of leaked secrets.
PREFIX = "toolscale_"

# A bare key of TOML, so that a name needs no quotes.
NAME = r"^[A-Za-z0-9_-]{1,64}$"

HolderName = Annotated[str, StringConstraints(pattern=NAME)]


class TokenHolder(BaseModel):
    """The digest of a token, and its end; a subclass adds the rights of its holder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    expires_at: AwareDatetime | None = None


HolderT = TypeVar("HolderT", bound=TokenHolder)


class TokenFile(Generic[HolderT]):
    """The holders in a file, which may change: a removed token is refused with the next request."""

    def __init__(self, path: Path, holder: type[HolderT], clock_s: Callable[[], float] = time.time) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: the file is invalid.
        """
        self._file = WatchedFile(path, partial(read_token_file, holder=holder))
        self._clock_s = clock_s

    def find(self, token: str) -> tuple[str, HolderT] | None:
        """Return the name and the table of the token's holder, None if the file has none.

        Raises:
            AuthenticationFailed: the token has expired.
        """
        wanted = digest(token)
        # every table is compared, in constant time, so that the duration reveals nothing about them
        found = [item for item in self._file.read().items() if hmac.compare_digest(item[1].sha256, wanted)]
        if not found:
            return None
        name, holder = found[0]
        if holder.expires_at and holder.expires_at.timestamp() <= self._clock_s():
            raise AuthenticationFailed(f"the token of {name} has expired")
        return name, holder


def read_token_file(path: Path, holder: type[HolderT]) -> Mapping[str, HolderT]:
    """Return the tables of a token file by the holders' names.

    Raises:
        ConfigInvalid: the file is unreadable, is not TOML, or has an invalid table; the error quotes nothing of it.
    """
    tables: TypeAdapter[dict[str, HolderT]] = TypeAdapter(dict[HolderName, holder])  # type: ignore[valid-type]
    try:
        holders = tables.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigInvalid(f"{path}: {first_problem(error)}") from None  # the cause would quote the file
    except (ValueError, RecursionError):  # a TOML error quotes the text at its place, which may be a token
        raise ConfigInvalid(f"{path}: expected TOML in UTF-8") from None
    owners: dict[str, str] = {}
    for name, table in holders.items():
        if (other := owners.setdefault(table.sha256, name)) != name:
            raise ConfigInvalid(f"{path}: {other} and {name} have the same token")
    return holders


def new_token() -> str:
    """Return a new token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the digest of a token as the file has it, in hex digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def is_name(text: str) -> bool:
    """Return whether this is a valid holder's name: 1 to 64 letters, digits, `_` and `-`."""
    return re.fullmatch(NAME, text) is not None


def as_toml(value: str | list[str]) -> str:
    """Return a value of a table: JSON's strings and arrays of strings are also TOML."""
    return json.dumps(value)
