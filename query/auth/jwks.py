"""The issuer's public keys by their ids, from a JWK set at a URL or in a file; an unknown id triggers a refresh."""

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
from typing_extensions import override

from shared.errors import ConfigInvalid, KeysUnavailable
from shared.service.files import WatchedFile
from shared.upstream.hosts import is_loopback

# A withdrawn key is refused after this time.
REFRESH_AFTER_S = 300.0
# Unknown key ids cause at most one request in this time, however many tokens strangers send.
RETRY_AFTER_S = 15.0
# While the issuer does not answer, its last keys stay valid for this long.
KEEP_FOR_S = 3_600.0

FETCH_WITHIN_S = 5.0
MAX_BYTES = 1 << 20

_OBJECT = TypeAdapter(dict[str, Any])

_log = structlog.get_logger()

Keys = Mapping[str, PyJWK]


class KeySource(Protocol):
    """Looks up the issuer's keys."""

    async def key(self, key_id: str) -> PyJWK | None:
        """Return the signing key of this id, None when the issuer has no such key.

        Raises:
            KeysUnavailable: the keys cannot be fetched now, and none are cached.
        """
        ...


def key_source(location: str) -> KeySource:
    """Return the keys at this URL or in this file.

    Raises:
        ConfigInvalid: the URL is neither https nor on this machine, or the file contains no JWK set.
    """
    if "://" not in location:
        return _FileKeys(Path(location).expanduser())
    if not _is_safe(location):
        raise ConfigInvalid("setting jwt_jwks: expected an https URL, since an attacker could replace the keys")
    return RemoteKeys(location)


class _FileKeys(KeySource):
    """The keys in a file, which may change."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: the file contains no JWK set.
        """
        self._file = WatchedFile(path, _read)

    @override
    async def key(self, key_id: str) -> PyJWK | None:
        return self._file.read().get(key_id)


class RemoteKeys(KeySource):
    """The keys at a URL, fetched on first use and again when they may have changed; requests share a fetch."""

    def __init__(self, url: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock_s = url, clock_s
        self._keys: Keys = {}
        self._fetched_at_s: float | None = None
        self._tried_at_s: float | None = None
        self._fetching = anyio.Lock()

    @override
    async def key(self, key_id: str) -> PyJWK | None:
        if self._needs_refresh(key_id):
            async with self._fetching:
                if self._needs_refresh(key_id):  # another request may have fetched them
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
    """Return the body at the URL, within limits of time and size; redirects are not followed."""
    limits = httpx2.Timeout(FETCH_WITHIN_S)
    with anyio.fail_after(FETCH_WITHIN_S):
        async with (
            httpx2.AsyncClient(timeout=limits, follow_redirects=False) as client,
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
    """Return the signature keys that have an id.

    Raises:
        ValueError: the document is no JWK set, or has no usable key.
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
    """Return whether the connection to the issuer cannot be tampered with."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
