"""Sign-ins, encrypted, in Redis or in a file of the data directory: the only place that has tokens.

A sign-in belongs to a server, its URL and a caller; that of the service has no caller. A value is replaced only if it
is still the one that was read, so a refresh never brings back a sign-in that was ended meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, cast

import structlog
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shared.errors import ConfigInvalid, SignInsUnavailable
from shared.service.files import make_private_directory, write_private
from shared.service.redis import RedisPause, connect

if TYPE_CHECKING:
    import redis

    from shared.settings import Settings

LEASE_S = 30.0
"""A killed process holds up the refreshes of a token for so many seconds."""

SHORTEST_KEY = 32
"""Characters of a key; setting secret_key has the same bound."""

_PAIR = TypeAdapter(Annotated[list[str], Field(min_length=2, max_length=2)])
PREFIX = "toolscale:sign-in:"
_LEASE_PREFIX = "toolscale:sign-in-lease:"
# At most this part of a token's life, and this many seconds, before it expires.
_EARLY_PART, _EARLY_S = 0.1, 60.0


class SignIn(BaseModel):
    """A caller's sign-in to a server at this URL: its client, and its tokens unless they were refused.

    `issuer` and `resource` are the metadata by which the tokens are refreshed; `challenge` is the server's header by
    which a machine identity gets new ones. Times are seconds since the epoch.
    """

    model_config = ConfigDict(frozen=True)

    server_id: str
    caller: str
    url: str = Field(repr=False)
    client: OAuthClientInformationFull = Field(repr=False)
    tokens: OAuthToken | None = Field(default=None, repr=False)
    issuer: OAuthMetadata | None = Field(default=None, repr=False)
    resource: ProtectedResourceMetadata | None = Field(default=None, repr=False)
    challenge: str = ""
    since: float = 0.0
    renewed_at: float = 0.0

    @property
    def expires_at(self) -> float | None:
        """Return when the access token expires, None if it does not say."""
        seconds = self.tokens.expires_in if self.tokens else None
        return None if seconds is None else self.renewed_at + seconds

    def is_due(self, now: float) -> bool:
        """Return whether the access token is to be replaced, and can be: it expires soon."""
        if self.tokens is None or self.tokens.expires_in is None or not (self.tokens.refresh_token or self.challenge):
            return False
        early_s = min(_EARLY_S, self.tokens.expires_in * _EARLY_PART)
        return now >= self.renewed_at + self.tokens.expires_in - early_s


class Entries(Protocol):
    """Values under names, with leases. Safe from several threads and processes.

    Each method raises SignInsUnavailable when the store does not answer.
    """

    def get(self, name: str) -> bytes | None:
        """Return a value, None where there is none."""
        ...

    def replace(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Replace the value `before`, None for none, and return whether it was still that."""
        ...

    def names(self) -> list[str]:
        """Return all names."""
        ...

    def try_lease(self, name: str, holder: str) -> bool:
        """Return whether the holder has the lease now; it ends after LEASE_S."""
        ...

    def release(self, name: str, holder: str) -> None:
        """End the holder's lease."""
        ...


class SignIns:
    """The sign-ins of an installation, encrypted by its secret key."""

    def __init__(self, entries: Entries, key: SecretKey) -> None:
        self.entries = entries
        self._key = key

    def get(self, server_id: str, caller: str) -> SignIn | None:
        """Return a caller's sign-in, None where there is none, or none that the secret key decrypts.

        Raises:
            SignInsUnavailable: the store does not answer.
        """
        return self._opened(self.entries.get(entry_name(server_id, caller)))

    def put(self, sign_in: SignIn) -> None:
        """Store a sign-in in place of the caller's earlier one.

        Raises:
            SignInsUnavailable: the store does not answer.
            ConfigInvalid: there is no secret key, and none can be made.
        """
        name, after = entry_name(sign_in.server_id, sign_in.caller), self._sealed(sign_in)
        while not self.entries.replace(name, self.entries.get(name), after):
            pass  # another process replaced it at the same time, and this sign-in is the later one

    def replace(self, before: SignIn, after: SignIn) -> bool:
        """Replace a sign-in if it is still that of before; return whether it was."""
        name = entry_name(before.server_id, before.caller)
        stored = self.entries.get(name)
        return self._opened(stored) == before and self.entries.replace(name, stored, self._sealed(after))

    def end(self, server_id: str, caller: str) -> bool:
        """Delete a sign-in, and return whether there was one."""
        name = entry_name(server_id, caller)
        while (stored := self.entries.get(name)) is not None:
            if self.entries.replace(name, stored, None):
                return True
        return False

    def check_key(self) -> None:
        """Return if a sign-in can be stored.

        Raises:
            ConfigInvalid: there is no secret key.
        """
        self._key.cipher(creates=True)

    def all(self) -> Iterator[SignIn]:
        """Yield all sign-ins with tokens, by server and caller."""
        for name in sorted(filter(_parts, self.entries.names()), key=_parts):
            sign_in = self._opened(self.entries.get(name))
            if sign_in and sign_in.tokens:
                yield sign_in

    def _sealed(self, sign_in: SignIn) -> bytes:
        return self._key.cipher(creates=True).encrypt(sign_in.model_dump_json().encode())

    def _opened(self, stored: bytes | None) -> SignIn | None:
        if stored is None:
            return None
        with suppress(InvalidToken, ValidationError, ConfigInvalid):  # of a key that is gone: sign in again
            return SignIn.model_validate_json(self._key.cipher(creates=False).decrypt(stored))
        return None


class SecretKey:
    """The key that encrypts sign-ins: `TOOLSCALE_SECRET_KEY`, or a private file, made when the first one is stored.

    Several keys are separated by commas: the first one encrypts, and all of them decrypt.
    """

    def __init__(self, keys: str | None, file: Path | None) -> None:
        self._keys, self._file = keys, file
        self._cipher: MultiFernet | None = None
        self._lock = threading.Lock()

    def cipher(self, *, creates: bool) -> MultiFernet:
        """Return the cipher; with `creates`, make the key file where it is missing.

        Raises:
            ConfigInvalid: there is no key.
        """
        with self._lock:
            if self._cipher is None:
                keys = self._keys or self._in_file(creates=creates)
                self._cipher = MultiFernet([Fernet(_derived(key.strip())) for key in keys.split(",")])
            return self._cipher

    def _in_file(self, *, creates: bool) -> str:
        if self._file is None:
            raise ConfigInvalid(
                "sign-ins need setting secret_key (TOOLSCALE_SECRET_KEY), the same for all workers and query services: "
                "32 characters or more, such as of `openssl rand -hex 32`"
            )
        try:
            if creates and not self._file.exists():
                self._make(self._file)
            key = self._file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigInvalid(f"{self._file}: the key of the sign-ins cannot be read") from error
        if len(key) < SHORTEST_KEY:
            raise ConfigInvalid(f"{self._file}: expected a key of {SHORTEST_KEY} characters; delete the file")
        return key

    @staticmethod
    def _make(file: Path) -> None:
        """Make the key file, whole at once; of two processes, the first one makes it."""
        make_private_directory(file.parent)
        own = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        write_private(own, Fernet.generate_key().decode())
        with suppress(FileExistsError):
            file.hardlink_to(own)
        own.unlink()


class RedisEntries:
    """Entries in Redis, for all processes."""

    def __init__(self, client: redis.Redis) -> None:
        """Use a client that does not decode responses."""
        self._client = client
        self._errors = RedisPause(SignInsUnavailable).errors

    def get(self, name: str) -> bytes | None:
        """Return a value."""
        with self._errors():
            return cast("bytes | None", self._client.get(PREFIX + name))

    def replace(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Replace a value in a transaction."""
        from redis.exceptions import WatchError  # noqa: PLC0415  # only where Redis is used

        key = PREFIX + name
        with self._errors(), self._client.pipeline() as pipe:
            pipe.watch(key)  # type: ignore[no-untyped-call]  # the package has no type for it
            if pipe.get(key) != before:
                return False
            pipe.multi()
            if after is None:
                pipe.delete(key)
            else:
                pipe.set(key, after)
            try:
                pipe.execute()
            except WatchError:
                return False
            return True

    def names(self) -> list[str]:
        """Return all names, by an iteration that does not block Redis."""
        with self._errors():
            keys = cast("Iterator[bytes]", self._client.scan_iter(match=f"{PREFIX}*", count=1000))
            return [key.decode("utf-8", "replace").removeprefix(PREFIX) for key in keys]

    def try_lease(self, name: str, holder: str) -> bool:
        """Hold the lease if it is free."""
        with self._errors():
            return bool(self._client.set(_LEASE_PREFIX + name, holder, nx=True, px=int(LEASE_S * 1000)))

    def release(self, name: str, holder: str) -> None:
        """Delete the lease; one that has just become another holder's expires without a refresh of its own."""
        with self._errors():
            if self._client.get(_LEASE_PREFIX + name) == holder.encode():
                self._client.delete(_LEASE_PREFIX + name)


_SCHEMA = """
CREATE TABLE IF NOT EXISTS sign_ins (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until REAL NOT NULL) STRICT;
"""


class SqliteEntries:
    """Entries in a private file, which is made with the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def get(self, name: str) -> bytes | None:
        """Return a value."""
        if self._db is None and not self._path.exists():
            return None
        with self._transaction() as db:
            row = db.execute("SELECT value FROM sign_ins WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def replace(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Replace a value in a transaction."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM sign_ins WHERE name = ?", (name,)).fetchone()
            if (row[0] if row else None) != before:
                return False
            if after is None:
                db.execute("DELETE FROM sign_ins WHERE name = ?", (name,))
            else:
                db.execute("INSERT OR REPLACE INTO sign_ins VALUES (?, ?)", (name, after))
            return True

    def names(self) -> list[str]:
        """Return all names."""
        if self._db is None and not self._path.exists():
            return []
        with self._transaction() as db:
            return [row[0] for row in db.execute("SELECT name FROM sign_ins")]

    def try_lease(self, name: str, holder: str) -> bool:
        """Hold the lease if it is free."""
        now = time.time()
        with self._transaction() as db:
            db.execute("DELETE FROM leases WHERE until <= ? OR until > ?", (now, now + 2 * LEASE_S))
            added = db.execute("INSERT OR IGNORE INTO leases VALUES (?, ?, ?)", (name, holder, now + LEASE_S))
            return added.rowcount > 0

    def release(self, name: str, holder: str) -> None:
        """Delete the lease."""
        with self._transaction() as db:
            db.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder))

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._db is None:
                    make_private_directory(self._path.parent)
                    self._path.touch(mode=0o600)
                    self._db = sqlite3.connect(self._path, timeout=10, check_same_thread=False, isolation_level=None)
                    self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
                self._db.execute("BEGIN IMMEDIATE")
                with self._db:
                    yield self._db
            except (sqlite3.Error, OSError) as error:
                raise SignInsUnavailable(f"{self._path}: {error}") from error


def open_sign_ins(settings: Settings) -> SignIns:
    """Return the sign-ins of these settings; nothing is opened before the first use."""
    if settings.redis_url is None:
        own = SecretKey(settings.secret_key, settings.data_dir / "secret.key")
        return SignIns(SqliteEntries(settings.data_dir / "sign-ins.sqlite3"), own)
    return SignIns(RedisEntries(connect(settings.redis_url, decode=False)), SecretKey(settings.secret_key, None))


def entry_name(server_id: str, caller: str) -> str:
    """Return the name of a sign-in's entry, which no other pair has."""
    return json.dumps([server_id, caller], separators=(",", ":"))


def _parts(name: str) -> list[str]:
    """Return the server and the caller of an entry; nothing, logged, for a name that is none of ours."""
    try:
        return _PAIR.validate_json(name)
    except ValidationError:
        structlog.get_logger().error("record_unreadable", kind="sign-in", record=name, reason="expected a name of ours")
        return []


def _derived(key: str) -> bytes:
    # a key of the setting may have any form; it is random, so one round of a hash suffices
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())
