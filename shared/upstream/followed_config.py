"""The state of the followed `mcp.json`, stored by the process that follows it, for the page and the command line.

It is in Redis if REDIS_URL is set, else in the data directory. It expires, since a killed process cannot delete it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import override

from shared.errors import FollowedConfigUnavailable
from shared.service.files import write_private
from shared.service.redis import connect, redis_errors
from shared.upstream.mcp_json import EntryProblem

if TYPE_CHECKING:
    import redis

    from shared.settings import Settings

KEPT_S = 90
"""Seconds after which an unrepeated state expires; a follower repeats it every 30 seconds."""

STATE_BYTES = 256 << 10
"""The largest state in Redis; left-out entries beyond it are not shown."""

_SHOWN_KEYS = 5

FILE_NAME = "followed-mcp-json.json"
KEY = "toolscale:mcp-json"


class FollowedConfig(BaseModel):
    """The followed file, the number of its usable servers, and its left-out entries.

    `switched_off` counts entries that should not run, and `repeated` are keys that the file has twice.
    `problem` is the reason why the whole file is unusable now; `servers` and `left_out` are then of its last content.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    servers: int = 0
    left_out: tuple[EntryProblem, ...] = ()
    switched_off: int = 0
    repeated: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def summary(self) -> str:
        """Return the state as a sentence without the reasons."""
        if self.problem:
            return f"{self.problem}; the last usable content stays in use"
        left_out = f"; left out: {len(self.left_out)}" if self.left_out else ""
        off = f"; switched off: {self.switched_off}" if self.switched_off else ""
        repeated = f"; {repeated_keys(self.repeated)}" if self.repeated else ""
        return f"{self.path}: {self.servers} usable servers{left_out}{off}{repeated}"


def repeated_keys(keys: Sequence[str]) -> str:
    """Return a warning about keys that a file has twice."""
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return f"twice in the file, so that only the last one counts: {', '.join(keys[:_SHOWN_KEYS])}{more}"


class FollowedConfigStore(Protocol):
    """Stores the state of one `mcp.json`; every method raises FollowedConfigUnavailable if the store fails."""

    def put(self, state: FollowedConfig) -> None:
        """Store the state for KEPT_S seconds."""
        ...

    def get(self) -> FollowedConfig | None:
        """Return the state; None if no process follows a file."""
        ...

    def clear(self) -> None:
        """Delete the state: no process follows a file any more."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


def followed_config_store(settings: Settings) -> FollowedConfigStore:
    """Return the store of these settings; it connects on first use."""
    if settings.redis_url:
        return RedisFollowedConfig(connect(settings.redis_url))
    return FileFollowedConfig(settings.data_dir / FILE_NAME)


def read_followed_config(settings: Settings) -> FollowedConfig | None:
    """Return the state of the followed file; None if no process follows one.

    Raises:
        FollowedConfigUnavailable: the store does not answer.
    """
    with closing(followed_config_store(settings)) as store:
        return store.get()


class FileFollowedConfig(FollowedConfigStore):
    """The state in a file, which only its owner can read."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    @override
    def put(self, state: FollowedConfig) -> None:
        try:
            write_private(self._path, state.model_dump_json())
            os.utime(self._path, (self._clock(), self._clock()))
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def get(self) -> FollowedConfig | None:
        try:
            if abs(self._clock() - self._path.stat().st_mtime) > KEPT_S:  # also of the future: the clock went back
                return None
            return FollowedConfig.model_validate_json(self._path.read_text(encoding="utf-8"), extra="ignore")
        except FileNotFoundError:
            return None
        except ValidationError:
            return None  # another release wrote it
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def clear(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def close(self) -> None:
        """Do nothing: no file is open."""

    def _unavailable(self, error: OSError) -> FollowedConfigUnavailable:
        return FollowedConfigUnavailable(f"{self._path}: {error.strerror or error}")


class RedisFollowedConfig(FollowedConfigStore):
    """The state in a key that expires; with several followers, the last one to write wins."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    @override
    def put(self, state: FollowedConfig) -> None:
        while len((stored := state.model_dump_json()).encode()) > STATE_BYTES and state.left_out:
            state = state.model_copy(update={"left_out": state.left_out[: len(state.left_out) // 2]})
        with redis_errors(FollowedConfigUnavailable):
            self._client.set(KEY, stored, ex=KEPT_S)

    @override
    def get(self) -> FollowedConfig | None:
        with redis_errors(FollowedConfigUnavailable):
            stored = self._client.get(KEY)
        try:
            return FollowedConfig.model_validate_json(stored, extra="ignore") if isinstance(stored, str) else None
        except ValidationError:
            return None  # another release wrote it

    @override
    def clear(self) -> None:
        with redis_errors(FollowedConfigUnavailable):
            self._client.delete(KEY)

    @override
    def close(self) -> None:
        self._client.close()
