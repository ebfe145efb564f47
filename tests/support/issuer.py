"""An issuer of JWTs with real keys, and its JWK set behind a real port."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.support.http_thread import SilentHandler, served

ISSUER = "https://login.example.org/realm"
AUDIENCE = "https://tools.example.org/mcp"


@dataclass
class Issuer:
    """Signs tokens by the key named `kid`; `keys` are those it publishes."""

    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict[str, ec.EllipticCurvePrivateKey])

    def rotate(self, kid: str) -> None:
        """Publish a new key in addition to the others."""
        self.keys[kid] = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> dict[str, Any]:
        """Return the public keys."""
        public = {kid: json.loads(ECAlgorithm.to_jwk(key.public_key())) for kid, key in self.keys.items()}
        return {"keys": [key | {"kid": kid, "use": "sig"} for kid, key in public.items()]}

    def token(self, kid: str, typ: Any = "at+jwt", **claims: Any) -> str:
        """Return a token that is good for an hour; a claim of None is left out."""
        said = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ann",
            "exp": time.time() + 3_600,
            "scope": "openid catalog:read tools:call",
        } | claims
        payload = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(payload, self.keys[kid], "ES256", headers={"kid": kid, "typ": typ})


def issuer(kid: str = "first") -> Issuer:
    """Return an issuer with one key."""
    made = Issuer()
    made.rotate(kid)
    return made


@dataclass
class Published:
    """Serves the issuer's keys at `url`, or `answer` if it is set. `fetched` counts the requests."""

    url: str
    fetched: int = 0
    answer: tuple[int, dict[str, str], bytes] | None = None


@contextmanager
def published(by: Issuer) -> Generator[Published]:
    """Serve the issuer's keys on loopback until the block ends."""
    found = Published("")

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            found.fetched += 1
            status, headers, body = found.answer or (200, {}, json.dumps(by.jwks()).encode())
            self.send_response(status)
            for name, value in (headers | {"content-length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        found.url = f"http://127.0.0.1:{server.server_port}/keys"
        yield found
