"""Callers by their bearer tokens: from the operator's file, or signed by the issuer."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from query.auth.tokens import StaticTokens
from shared.errors import AuthenticationFailed, ConfigInvalid
from shared.service.logging import LineLimit

if TYPE_CHECKING:
    from query.auth.jwts import JwtTokens
    from query.caller import Caller
    from shared.settings import Settings

# Longer tokens are refused unread.
MAX_TOKEN_CHARACTERS = 16_384

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Resource:
    """The OAuth resource of this service: its public URL and its issuer."""

    url: str
    issuer: str


@dataclass(frozen=True, slots=True)
class Authentication:
    """The accepted kinds of tokens; `resource` is set if JWTs are accepted."""

    static: StaticTokens | None = None
    jwts: JwtTokens | None = None
    resource: Resource | None = None
    refusals: LineLimit = field(default_factory=LineLimit)

    async def caller(self, token: str) -> Caller:
        """Return the caller of this token.

        Raises:
            AuthenticationFailed: the token is invalid.
            KeysUnavailable: the token may be valid, but cannot be checked now.
        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise AuthenticationFailed("the token is too long")
        if not token.isascii():  # no token has others, and encoding a lone surrogate fails
            raise AuthenticationFailed("the token has characters that no token has")
        static_caller = self.static.caller(token) if self.static else None
        if static_caller:
            return static_caller
        if self.jwts and token.count(".") == 2:  # noqa: PLR2004  # between the three parts of a JWT
            return await self.jwts.caller(token)
        raise AuthenticationFailed("the token is unknown")

    def log_refusal(self, reason: str, client: str | None) -> None:
        """Log the refusal of a caller at this address, within a limit of lines; the next one counts those left out."""
        left_out = self.refusals.admit()
        if left_out is not None:
            _log.warning("authentication_failed", reason=reason, client=client, left_out=left_out)


def bearer_token(authorization: str) -> str | None:
    """Return the token of an Authorization header; None for one of another scheme, and without one."""
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def bearer_or_basic_token(authorization: str) -> str | None:
    """Return the token of an Authorization header: a bearer token, or the password, else user name, of HTTP Basic."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return bearer_token(authorization)
    try:
        name, _, password = base64.b64decode(value.strip(), validate=True).decode("ascii").partition(":")
    except ValueError:
        return None
    return password or name


def authentication_of(settings: Settings) -> Authentication | None:
    """Return the authentication of these settings, None if they configure none.

    Raises:
        ConfigInvalid: a file is invalid, or a setting for JWTs is missing.
    """
    static = StaticTokens(settings.tokens_file) if settings.tokens_file else None
    if settings.jwt_issuer is None:
        return Authentication(static) if static else None
    from query.auth.jwts import JwtTokens, keys_at  # noqa: PLC0415  # 50 ms to import, only for JWTs

    url = _needed(settings.public_url, "public_url")
    jwts = JwtTokens(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience or url,
        key_of=keys_at(_needed(settings.jwt_jwks, "jwt_jwks")),
        admin_group=settings.jwt_admin_group,
    )
    return Authentication(static, jwts, Resource(url, settings.jwt_issuer))


def _needed(value: str | None, name: str) -> str:
    if value is None:
        raise ConfigInvalid(f"setting {name}: JWTs are accepted once TOOLSCALE_{name.upper()} is set as well")
    return value
