"""The issuer's public keys by their ids, from a JWK set at a URL or in a file; a new key is found when it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2
import structlog
from jwt import PyJWK, PyJWKSet, PyJWTError
from pydantic import TypeAdapter, ValidationError

from shared.errors import ConfigInvalid, KeysUnavailable
from shared.upstream.hosts import is_loopback
from shared.watched_file import WatchedFile

# A key that its issuer withdrew is refused after this long; one that nobody has asked for yet is looked for at most
# this often, whatever strangers send.
REFRESH_AFTER_S = 300.0
RETRY_AFTER_S = 15.0
# While the issuer does not answer, keys known from before are good for this long.
KEEP_FOR_S = 3_600.0

FETCH_WITHIN_S = 5.0
MAX_BYTES = 1 << 20

_OBJECT = TypeAdapter(dict[str, Any])

_log = structlog.get_logger()

Keys = Mapping[str, PyJWK]


class KeySource(Protocol):
    """Where keys come from."""

    async def key(self, key_id: str) -> PyJWK | None:
        """Return the signing key of this id, None when the issuer has no such key.

        Raises:
            KeysUnavailable: none are known, and they cannot be fetched now.
        """
        ...


def key_source(location: str) -> KeySource:
    """Return the keys at this URL or in this file.

    Raises:
        ConfigInvalid: the URL is neither https nor on this machine, or the file holds no JWK set.
    """
    if "://" not in location:
        return FileKeys(Path(location).expanduser())
    if not _is_safe(location):
        raise ConfigInvalid("setting jwt_jwks: expected an https URL: whoever changes the keys on their way can sign")
    return RemoteKeys(location)


class FileKeys:
    """The keys of a file, which is followed."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: it holds no JWK set.
        """
        self._file = WatchedFile(path, _read)

    async def key(self, key_id: str) -> PyJWK | None:
        """Return the signing key of this id, None when there is none."""
        return self._file.read().get(key_id)


class RemoteKeys:
    """The keys at a URL, fetched when first needed and again when they may have changed, once at a time."""

    def __init__(self, url: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock_s = url, clock_s
        self._keys: Keys = {}
        self._fetched_at_s: float | None = None
        self._tried_at_s: float | None = None
        self._fetching = anyio.Lock()

    async def key(self, key_id: str) -> PyJWK | None:
        """Return the signing key of this id, None when the issuer has no such key.

        Raises:
            KeysUnavailable: none are known, and they cannot be fetched now.
        """
        if self._needs_refresh(key_id):
            async with self._fetching:
                if self._needs_refresh(key_id):  # another request may have fetched them meanwhile
                    await self._refresh()
        if self._fetched_at_s is None or self._clock_s() - self._fetched_at_s > KEEP_FOR_S:
            raise KeysUnavailable("the issuer's keys cannot be fetched")
        return self._keys.get(key_id)

    def _needs_refresh(self, key_id: str) -> bool:
        now_s = self._clock_s()
        is_old = self._fetched_at_s is None or now_s - self._fetched_at_s > REFRESH_AFTER_S
        may_try = self._tried_at_s is None or now_s - self._tried_at_s >= RETRY_AFTER_S
        return may_try and (is_old or key_id not in self._keys)

    async def _refresh(self) -> None:
        self._tried_at_s = self._clock_s()
        try:
            self._keys = _parsed(await _fetch(self._url))
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            _log.warning("keys_fetch_failed", reason=str(error) or type(error).__name__)
        else:
            self._fetched_at_s = self._clock_s()


async def _fetch(url: str) -> bytes:
    """Return what is at the URL: without following redirects, within limits of time and size."""
    limits = httpx2.Timeout(FETCH_WITHIN_S)
    with anyio.fail_after(FETCH_WITHIN_S):
        async with (
            httpx2.AsyncClient(timeout=limits, trust_env=False, follow_redirects=False) as client,
            client.stream("GET", url, headers={"accept-encoding": "identity"}) as response,
        ):
            if not response.is_success:
                raise ValueError(f"expected success, got status {response.status_code}")
            return await _body(response)


async def _body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES} bytes")
    return bytes(body)


def _read(path: Path) -> Keys:
    try:
        return _parsed(path.read_bytes())
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigInvalid(f"{path}: {error}") from error


def _parsed(document: bytes) -> Keys:
    """Return the keys for signatures that have an id; others are left out.

    Raises:
        ValueError: it is no JWK set, or none of its keys can be used.
    """
    try:
        key_set = PyJWKSet.from_dict(_OBJECT.validate_json(document))
    except (PyJWTError, ValidationError) as error:
        raise ValueError("expected a JWK set") from error
    keys = {key.key_id: key for key in key_set if key.key_id and key.public_key_use in {"sig", None}}
    if not keys:
        raise ValueError("expected a JWK set with a key for signatures that has an id")
    return keys


def _is_safe(url: str) -> bool:
    """Return whether nobody between the issuer and us can change what is there."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
