"""Callers by JSON Web Tokens of one issuer, checked as RFC 9068 requires: signature, issuer, audience and times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import httpx2
import jwt
import structlog
from anyio import CapacityLimiter
from jwt import PyJWK, PyJWKClient, PyJWKClientError, PyJWKSet
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import override

from query.caller import PERMISSIONS, Caller
from shared.errors import AuthenticationFailed, ConfigInvalid, KeysUnavailable
from shared.service.files import WatchedFile
from shared.upstream.hosts import is_loopback
from shared.validation import first_invalid

# Most issuers type access tokens as "JWT", and their other tokens differently.
TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
# Signatures by key pairs only: a process that verifies tokens must not be able to sign them. The issuer's keys decide
# among them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REQUIRED = ["exp", "iss", "aud", "sub"]

# A withdrawn key is refused after this time.
REFRESH_AFTER_S = 300.0
# Unknown key ids cause at most one request in this time, however many tokens strangers send.
RETRY_AFTER_S = 15.0
# While the issuer does not answer, its last keys stay valid for this long.
KEEP_FOR_S = 3_600.0
FETCH_WITHIN_S = 5.0
MAX_BYTES = 1 << 20

KeyOf = Callable[[str], PyJWK | None]
"""Returns the issuer's key of an id, None if it has none. May block, and raise KeysUnavailable."""

_OBJECT = TypeAdapter(dict[str, Any])

_log = structlog.get_logger()


class Claims(BaseModel):
    """The claims that describe a caller; missing groups, or a missing scope (RFC 8693), mean none."""

    model_config = ConfigDict(strict=True)

    sub: str
    scope: str | list[str] | None = None
    groups: list[str] | None = None
    toolset: str | None = None
    budget_tokens: int | None = None

    def caller(self, admin_group: str | None) -> Caller:
        """Return the caller; its name begins with `jwt:`, as that of no static token can."""
        groups = frozenset(self.groups or ())
        granted = self.scope.split() if isinstance(self.scope, str) else self.scope or ()
        return Caller(
            name=f"jwt:{self.sub}",
            groups=None if admin_group in groups else groups,
            permissions=PERMISSIONS & frozenset(granted),
            toolset=self.toolset,
            budget_tokens=self.budget_tokens,
        )


@dataclass(frozen=True, slots=True)
class JwtTokens:
    """Callers of tokens from exactly this issuer, for this audience among others."""

    issuer: str
    audience: str
    key_of: KeyOf
    admin_group: str | None = None
    leeway_s: float = 30.0  # the issuer's clock may differ from ours
    # threads of their own: while the issuer is slow, tokens wait for its keys, and nothing else does
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(4))

    async def caller(self, token: str) -> Caller:
        """Return the caller that this token was issued to.

        Raises:
            AuthenticationFailed: the issuer did not sign this token for us, or it is not valid now.
            KeysUnavailable: the issuer's keys cannot be fetched.
        """
        return await anyio.to_thread.run_sync(self._caller, token, limiter=self.threads)

    def _caller(self, token: str) -> Caller:
        try:
            header = jwt.get_unverified_header(token)
            if str(header.get("typ", "JWT")).lower() not in TYPES:
                raise AuthenticationFailed("the JWT is of a type that is no access token")
            algorithm = header.get("alg")
            if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
                raise AuthenticationFailed("the JWT is signed by an algorithm that is not accepted")
            key = self.key_of(str(header.get("kid")))
            if key is None:
                raise AuthenticationFailed("the JWT is signed by a key that its issuer does not have")
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                issuer=self.issuer,
                audience=self.audience,
                leeway=self.leeway_s,
                options={"require": REQUIRED, "enforce_minimum_key_length": True},
            )
            return Claims.model_validate(claims).caller(self.admin_group)
        except ValidationError as error:  # the cause would quote the claim
            claim = first_invalid(error)[0][0]
            raise AuthenticationFailed(f"the claim {claim} is of the wrong type") from None
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise AuthenticationFailed(f"the JWT was not accepted: {type(error).__name__}") from None


def keys_at(location: str) -> KeyOf:
    """Return the lookup of the signing keys in the JWK set at this URL, or in this file, which may change.

    Raises:
        ConfigInvalid: the URL is neither https nor on this machine, or the file contains no JWK set.
    """
    if "://" not in location:
        file = WatchedFile(Path(location).expanduser(), _read)
        return lambda key_id: PyJWKClient.match_kid(file.read().keys, key_id)
    parts = urlsplit(location)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ConfigInvalid("setting jwt_jwks: expected an https URL, since an attacker could replace the keys")
    return IssuerKeys(location).key


class IssuerKeys(PyJWKClient):
    """The keys at a URL: fetched on first use, and again every five minutes or for an unknown id."""

    def __init__(self, url: str) -> None:
        super().__init__(url, lifespan=REFRESH_AFTER_S, cooldown_duration=0)
        self._last: PyJWKSet | None = None
        self._fetched_at_s = self._tried_at_s = -math.inf

    def key(self, key_id: str) -> PyJWK | None:
        """Return the key of this id, None if the issuer has none; threads that ask meanwhile share a fetch.

        Raises:
            KeysUnavailable: the keys cannot be fetched now, and none are cached.
        """
        try:
            return self.get_signing_key(key_id)
        except PyJWKClientError:
            return None

    @override
    def fetch_data(self) -> PyJWKSet:
        """Return the keys as they are now, or the last ones: after a try that was just made, or while one fails."""
        now_s = time.monotonic()
        if now_s - self._tried_at_s >= RETRY_AFTER_S:
            self._tried_at_s = now_s
            try:
                self._last = _key_set(_downloaded(self.uri))
                self._fetched_at_s = now_s
            except (httpx2.HTTPError, ValueError) as error:
                _log.warning("keys_fetch_failed", reason=str(error) or type(error).__name__)
        if self._last is None or now_s - self._fetched_at_s > KEEP_FOR_S:
            raise KeysUnavailable("the issuer's keys cannot be fetched")
        return self._last


def _downloaded(url: str) -> bytes:
    """Return the body at the URL, within limits of time and size; redirects are not followed.

    Raises:
        httpx2.HTTPError: the issuer does not answer with success.
        ValueError: the body is too large or too slow.
    """
    deadline_s = time.monotonic() + FETCH_WITHIN_S
    with (
        httpx2.Client(timeout=FETCH_WITHIN_S, follow_redirects=False) as client,
        client.stream("GET", url, headers={"accept-encoding": "identity"}) as response,
    ):
        response.raise_for_status()
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_BYTES or time.monotonic() > deadline_s:
                raise ValueError(f"expected at most {MAX_BYTES} bytes within {FETCH_WITHIN_S:g} s")
        return bytes(body)


def _read(path: Path) -> PyJWKSet:
    try:
        return _key_set(path.read_bytes())
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigInvalid(f"{path}: {error}") from error


def _key_set(document: bytes) -> PyJWKSet:
    """Return the keys for signatures that have an id.

    Raises:
        ValueError: the document is no JWK set, or has no such key.
    """
    try:
        key_set = PyJWKSet.from_dict(_OBJECT.validate_json(document))
    except (jwt.PyJWTError, ValidationError) as error:
        raise ValueError("expected a JWK set") from error
    key_set.keys = [key for key in key_set.keys if key.key_id and key.public_key_use in {"sig", None}]
    if not key_set.keys:
        raise ValueError("expected a JWK set with a key for signatures that has an id")
    return key_set
