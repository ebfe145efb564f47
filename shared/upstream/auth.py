"""How a server is authenticated to: what its entry or the operator says, and what the server asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Literal, Self, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

if TYPE_CHECKING:
    import httpx2

PROJECT_OWNER = "directory "
"""Begins the owner of what the clients of one directory share; no caller's name has a space."""

CLIENT_OWNER = "client "
"""Begins the owner of what one client of callers without tokens has."""

SERVICE = ""
"""The caller of requests that the service makes for itself, such as listings, and of its own sign-in."""


@dataclass(frozen=True, slots=True)
class Requester:
    """For whom a server is contacted: a caller with the headers of its request, by lower-case name; or the service.

    `session` is the owner of the caller's sessions with servers. `directory` is the project that its client is in.
    """

    caller: str = SERVICE
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    session: str = SERVICE
    directory: str | None = None

    @property
    def project(self) -> str:
        """Return the owner of a process that clients of one directory share; empty without a directory."""
        return f"{PROJECT_OWNER}{self.directory}" if self.directory else SERVICE


LISTING = Requester()


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer of a server that wants a sign-in, or one with more scopes: 401 or 403, and `WWW-Authenticate`."""

    status: int
    header: str = ""

    @property
    def scope(self) -> str | None:
        """Return the scopes that the server names."""
        return _field(self.header, "scope")

    @property
    def wants_more_scopes(self) -> bool:
        """Return whether the token lacks a scope."""
        is_forbidden = self.status == HTTPStatus.FORBIDDEN
        return is_forbidden and _field(self.header, "error") == "insufficient_scope"

    @property
    def wants_sign_in(self) -> bool:
        """Return whether the server names its resource metadata, or the kind of token that OAuth has."""
        return self.status == HTTPStatus.UNAUTHORIZED and self.header.lower().startswith(("bearer", "dpop"))

    def for_scopes(self, scopes: str | None) -> Challenge:
        """Return the challenge with these scopes in place of its own, if there are any.

        A token that lacks a scope needs those of the challenge too.
        """
        if not scopes:
            return self
        if self.wants_more_scopes and self.scope:
            scopes = f"{scopes} {self.scope}"
        # the SDK takes the first `scope` of the header
        scheme, _, rest = (self.header or "Bearer").partition(" ")
        return Challenge(self.status, f'{scheme} scope="{scopes}"{", " if rest else ""}{rest}')

    def with_scopes(self, *others: str | None) -> Challenge:
        """Return the challenge with these scopes beside its own."""
        words = [word for scopes in (self.scope, *others) if scopes for word in scopes.split()]
        return Challenge(self.status, self.header).for_scopes(" ".join(dict.fromkeys(words)))

    def response(self, request: httpx2.Request | None = None) -> httpx2.Response:
        """Return it as the response to a request."""
        import httpx2  # noqa: PLC0415  # 0.1 s, for commands that only read an mcp.json

        headers = {"www-authenticate": self.header} if self.header else {}
        return httpx2.Response(self.status, headers=headers, content=b"", request=request)


class OAuthClient(BaseModel):
    """A client that is registered already, as an entry names it: the spellings of Claude Code, Cursor and others."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    client_id: str | None = Field(None, validation_alias=AliasChoices("clientId", "client_id", "CLIENT_ID"))
    client_secret: str | None = Field(
        None, validation_alias=AliasChoices("clientSecret", "client_secret", "CLIENT_SECRET"), repr=False
    )
    scopes: str | None = Field(None, validation_alias=AliasChoices("scopes", "scope"))
    callback_port: int | None = Field(
        None, ge=1, le=65_535, validation_alias=AliasChoices("callbackPort", "callback_port")
    )

    @field_validator("scopes", mode="before")
    @classmethod
    def _joined(cls, value: object) -> object:
        return " ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else value


# Headers of the caller's own connection, of its identity, and of the protocol.
_NEVER_PASSED = re.compile(
    r"(proxy-)?authorization|cookie|host|connection|upgrade|te|trailer|transfer-encoding|expect|via|forwarded|origin"
    r"|referer|user-agent|accept(-.*)?|content-.*|(x-)?forwarded-.*|mcp-.*|toolscale-.*|last-event-id|sec-.*",
    re.IGNORECASE,
)


class Auth(BaseModel):
    """Whose token the requests to a server carry: `service`, or `caller` for calls; or headers of the caller's request.

    `credential` names the file of a machine identity, which signs the service in. With `listing` `first-caller`, the
    service lists tools as the caller who signed in first, where it has no sign-in of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["service", "caller", "passthrough"] = "service"
    headers: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,100}$")], ...] = ()
    credential: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,100}$")] | None = None
    listing: Literal["service", "first-caller"] = "service"

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if (self.type == "passthrough") != bool(self.headers):
            raise ValueError("expected `headers` with the type passthrough, and only with it")
        if self.listing == "first-caller" and self.type != "caller":
            raise ValueError("expected the type caller with the listing first-caller")
        if never := [name for name in self.headers if _NEVER_PASSED.fullmatch(name)]:
            raise ValueError(f"the header {never[0]} of a caller is never passed on")
        return self


OF_SERVICE = Auth()


UNREGISTERED = OAuthClient.model_validate({})


class MachineIdentity(BaseModel):
    """The content of a credential file: a client of its own, with a secret or a private key (PEM)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str
    client_id: str
    client_secret: str | None = Field(default=None, repr=False)
    private_key: str | None = Field(default=None, repr=False)
    algorithm: str = "RS256"
    scopes: str | None = None
    token_endpoint_auth_method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"


def _field(header: str, name: str) -> str | None:
    """Return a parameter of a `WWW-Authenticate` header, quoted or not."""
    found = re.search(rf'\b{name}=(?:"([^"]*)"|([^\s,]+))', header)
    return (found[1] or found[2]) if found else None
