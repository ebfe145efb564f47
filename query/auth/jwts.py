"""JSON Web Tokens of one issuer, checked as RFC 9068 requires: signature, issuer, audience and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from query.auth.claims import caller_of_claims
from query.auth.jwks import KeySource
from query.caller import Caller
from shared.errors import AuthenticationFailed

# Most issuers type access tokens as "JWT", and their other tokens differently.
TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
# Signatures by key pairs only: a process that verifies tokens must not be able to sign them. The issuer's keys decide
# among them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REQUIRED = ["exp", "iss", "aud", "sub"]


@dataclass(frozen=True, slots=True)
class Expected:
    """Required claims: exactly this issuer, and this audience among others."""

    issuer: str
    audience: str
    leeway_s: float = 30.0  # the issuer's clock may differ from ours


@dataclass(frozen=True, slots=True)
class JwtTokens:
    """Callers from tokens that an issuer signed."""

    expected: Expected
    keys: KeySource
    admin_group: str | None = None

    async def caller(self, token: str) -> Caller:
        """Return the caller that this token was issued to.

        Raises:
            AuthenticationFailed: the issuer did not sign this token for us, or it is not valid now.
            KeysUnavailable: the issuer's keys cannot be fetched.
        """
        try:
            return caller_of_claims(await self._verified(token), self.admin_group)
        except jwt.PyJWTError as error:
            raise AuthenticationFailed(f"the JWT was not accepted: {type(error).__name__}") from None

    async def _verified(self, token: str) -> Mapping[str, Any]:
        header = jwt.get_unverified_header(token)
        if str(header.get("typ", "JWT")).lower() not in TYPES:
            raise AuthenticationFailed("the JWT is of a type that is no access token")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise AuthenticationFailed("the JWT is signed by an algorithm that is not accepted")
        key = await self.keys.key(str(header.get("kid")))
        if key is None:
            raise AuthenticationFailed("the JWT is signed by a key that its issuer does not have")
        return jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            issuer=self.expected.issuer,
            audience=self.expected.audience,
            leeway=self.expected.leeway_s,
            options={"require": REQUIRED, "enforce_minimum_key_length": True},
        )
