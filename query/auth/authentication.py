"""Callers by their bearer tokens: from the operator's file, or signed by the issuer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from query.auth.tokens import StaticTokens
from shared.errors import AuthenticationFailed, ConfigInvalid

if TYPE_CHECKING:
    from query.auth.jwts import JwtTokens
    from query.caller import Caller
    from shared.settings import Settings

# Longer tokens are refused unread.
MAX_TOKEN_CHARACTERS = 16_384


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

    async def caller(self, token: str) -> Caller:
        """Return the caller of this token.

        Raises:
            AuthenticationFailed: the token is invalid.
            KeysUnavailable: the token may be valid, but cannot be checked now.
        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise AuthenticationFailed("the token is too long")
        static_caller = self.static.caller(token) if self.static else None
        if static_caller:
            return static_caller
        if self.jwts and _looks_like_jwt(token):
            return await self.jwts.caller(token)
        raise AuthenticationFailed("the token is unknown")


def authentication_of(settings: Settings) -> Authentication | None:
    """Return the authentication of these settings, None if they configure none.

    Raises:
        ConfigInvalid: a file is invalid, or a setting for JWTs is missing.
    """
    static = StaticTokens(settings.tokens_file) if settings.tokens_file else None
    if settings.jwt_issuer is None:
        return Authentication(static) if static else None
    resource = Resource(_needed(settings.public_url, "public_url"), settings.jwt_issuer)
    return Authentication(static, _jwts(settings, resource), resource)


def _jwts(settings: Settings, resource: Resource) -> JwtTokens:
    from query.auth.jwks import key_source  # noqa: PLC0415  # 50 ms to import, only for JWTs
    from query.auth.jwts import Expected, JwtTokens  # noqa: PLC0415

    expected = Expected(issuer=resource.issuer, audience=settings.jwt_audience or resource.url)
    return JwtTokens(expected, key_source(_needed(settings.jwt_jwks, "jwt_jwks")), settings.jwt_admin_group)


def _needed(value: str | None, name: str) -> str:
    if value is None:
        raise ConfigInvalid(f"setting {name}: JWTs are accepted once TOOLSCALE_{name.upper()} is set as well")
    return value


def _looks_like_jwt(token: str) -> bool:
    """Return whether a token has a JWT's three parts."""
    return token.count(".") == 2  # noqa: PLR2004  # between three parts
