"""The OAuth flows of the SDK, without a request of its own: authorization, refresh, and machine identities.

The SDK's provider yields each request of a flow: metadata, registration, tokens. Here every one of them is sent by a
client that connects only where the server's authorization server may be. The server's own answer, with which a flow
begins, is a `Challenge` of an earlier request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    create_oauth_metadata_request,
    handle_protected_resource_response,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, ValidationError

from shared.errors import ServerAuthRequired, ServerError, ServerFailed, ServerUnreachable
from shared.quoting import quoted
from shared.upstream.auth import SERVICE, UNREGISTERED, Challenge, MachineIdentity, OAuthClient
from shared.upstream.http import guarded_client
from shared.upstream.session import SessionState
from shared.upstream.sign_ins import SignIn
from shared.upstream.target import HttpTarget

if TYPE_CHECKING:
    from mcp.client.auth.oauth2 import OAuthContext

CLIENT_NAME = "Toolscale"
ANSWER_BYTES = 1 << 20
REQUEST_S = 20.0

# Any request without a token is refused, before it is read.
_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

# It logs tracebacks of errors whose texts are those of authorization servers, which may repeat a token.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)


@dataclass(slots=True)
class _Stored:
    """The SDK's storage of one flow: what it begins with, and what it has got."""

    client: OAuthClientInformationFull | None = field(default=None, repr=False)
    tokens: OAuthToken | None = field(default=None, repr=False)
    has_new: bool = False

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens, self.has_new = tokens, True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


DialIssuer = Callable[[str], HttpTarget]
"""Returns the target of a URL of an authorization server, checked; blocks, and raises a ServerError."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """What an authorization by a person needs: where the browser returns, and what happens with the two URLs.

    `show` gets the URL for the browser. `returned` waits for the parameters of the redirect. `scopes` are asked for
    beside those of the server.
    """

    redirect_url: str
    show: Callable[[str], Awaitable[None]]
    returned: Callable[[], Awaitable[AuthorizationCodeResult]]
    client_metadata_url: str | None = None
    scopes: str | None = None


@dataclass(frozen=True, slots=True)
class OAuthServer:
    """A server that wants tokens, and how its authorization server is reached."""

    server_id: str
    url: str
    dial_issuer: DialIssuer = field(repr=False)
    client: OAuthClient = UNREGISTERED

    async def authorize(
        self, caller: str, challenge: Challenge, before: SignIn | None, authorization: Authorization
    ) -> SignIn:
        """Return the sign-in of a person who agreed in the browser; `before` is that of an earlier time.

        Raises:
            ServerError: the authorization server does not answer, or refuses.
        """
        redirect_url = authorization.redirect_url
        challenge = challenge.for_scopes(self.client.scopes)
        # scopes that were granted stay: a sign-in for one tool must not take away another
        granted = before.tokens.scope if before and before.tokens else None
        if granted or authorization.scopes:
            usual = before.resource.scopes_supported if before and before.resource and not challenge.scope else None
            challenge = challenge.with_scopes(" ".join(usual or ()), granted, authorization.scopes)
        client = self._client(before, redirect_url, (challenge.scope or "").split())
        stored = _Stored(client, before.tokens if before else None)
        metadata = OAuthClientMetadata(
            client_name=CLIENT_NAME,
            redirect_uris=[AnyUrl(redirect_url)],
            application_type="native" if httpx2.URL(redirect_url).scheme == "http" else "web",
        )

        async def show(url: str) -> None:
            # the metadata of the authorization server is known from here on, and the client is used next
            own = self.client
            if own.client_secret and stored.client and stored.client.client_id == own.client_id:
                stored.client.token_endpoint_auth_method = _method_for_secret(provider.context.oauth_metadata)
            await authorization.show(url)

        provider = OAuthClientProvider(
            self.url, metadata, stored, show, authorization.returned, authorization.client_metadata_url
        )
        if before:
            _restore(provider.context, before)
        await self._run(provider, challenge)
        return self._sign_in(caller, stored, provider.context, since=time.time())

    async def refresh(self, sign_in: SignIn) -> SignIn | None:
        """Return the sign-in with new tokens, None if the authorization server refuses to refresh them.

        Raises:
            ServerError: the authorization server does not answer now.
        """
        if sign_in.tokens is None or not sign_in.tokens.refresh_token:
            return None
        client = sign_in.client
        if self.client.client_secret and self.client.client_id == client.client_id:  # it may have been replaced
            client = client.model_copy(update={"client_secret": self.client.client_secret})
        stored = _Stored(client, sign_in.tokens)
        metadata = OAuthClientMetadata(redirect_uris=sign_in.client.redirect_uris or [AnyUrl(self.url)])
        provider = OAuthClientProvider(self.url, metadata, stored)
        _restore(provider.context, sign_in)
        provider.context.token_expiry_time = 1.0  # long ago
        request = _request(self.url)
        flow = provider.async_auth_flow(request)
        try:
            outgoing, status = await anext(flow), 0
            while outgoing is not request:
                response = await self._send(outgoing)
                outgoing, status = await flow.asend(response), response.status_code
        finally:
            await flow.aclose()
        # by RFC 6749, a refused refresh has one of the first two; others come from proxies, or pass
        if status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.OK):
            raise ServerFailed(self.server_id, f"its authorization server answers HTTP {status} to a refresh")
        return self._sign_in(sign_in.caller, stored, provider.context, sign_in.since) if stored.has_new else None

    async def identify(self, machine: MachineIdentity, challenge: Challenge) -> SignIn:
        """Return the sign-in of a machine identity.

        Raises:
            ServerError: the authorization server does not answer, or refuses.
        """
        from mcp.client.auth.extensions.client_credentials import (  # noqa: PLC0415  # loads a library for JWTs
            ClientCredentialsOAuthProvider,
            PrivateKeyJWTOAuthProvider,
            SignedJWTParameters,
        )

        stored, scopes = _Stored(), machine.scopes or self.client.scopes
        provider: OAuthClientProvider
        if machine.private_key:
            signed = SignedJWTParameters(
                issuer=machine.client_id,
                subject=machine.client_id,
                signing_key=machine.private_key,
                signing_algorithm=machine.algorithm,
            )
            provider = PrivateKeyJWTOAuthProvider(
                self.url, stored, machine.client_id, signed.create_assertion_provider(), scopes, machine.issuer
            )
        else:
            provider = ClientCredentialsOAuthProvider(
                self.url,
                stored,
                machine.client_id,
                machine.client_secret or "",
                machine.token_endpoint_auth_method,
                scopes,
                machine.issuer,
            )
        await self._run(provider, challenge.for_scopes(scopes))
        stored.client = OAuthClientInformationFull(client_id=machine.client_id)  # the secret stays in its file
        sign_in = self._sign_in(SERVICE, stored, provider.context, since=time.time())
        return sign_in.model_copy(update={"challenge": challenge.header or "Bearer"})

    async def offers_sign_in(self) -> bool:
        """Return whether the server publishes its authorization server, as one does whose 401 says nothing of it."""
        for url in build_protected_resource_metadata_discovery_urls(None, self.url):
            with suppress(ServerError):
                answer = await self._send(create_oauth_metadata_request(url))
                if await handle_protected_resource_response(answer):
                    return True
        return False

    async def _run(self, provider: OAuthClientProvider, challenge: Challenge) -> None:
        """Run a flow from the server's challenge until it has tokens; the SDK then repeats the request, which ends it.

        Raises:
            ServerError: the flow failed.
        """
        request = _request(self.url)
        flow = provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while outgoing is not request:
                outgoing = await flow.asend(await self._send(outgoing))
            outgoing = await flow.asend(challenge.response(request))
            while outgoing is not request:
                outgoing = await flow.asend(await self._send(outgoing))
        except OAuthTokenError as error:
            raise ServerAuthRequired(self.server_id, "its authorization server gave no token") from error
        except OAuthRegistrationError as error:
            reason = (
                "its authorization server registers no client for this; register one there, and give the entry its "
                "`oauth.clientId`"
            )
            raise ServerAuthRequired(self.server_id, reason) from error
        except (OAuthFlowError, ValidationError, ValueError) as error:
            reason = f"the sign-in failed: {type(error).__name__}"
            if isinstance(error, OAuthFlowError) and "State" not in str(error):  # which would quote it
                reason = f"the sign-in failed: {quoted(str(error)[:300])}"
            raise ServerAuthRequired(self.server_id, reason) from error
        finally:
            await flow.aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        target = await anyio.to_thread.run_sync(self.dial_issuer, str(request.url))
        # the SDK follows a redirect within its origin, and takes any other for an absence
        return await self.send(request, target, returns_redirects=True)

    async def send(
        self, request: httpx2.Request, target: HttpTarget, *, returns_redirects: bool = False
    ) -> httpx2.Response:
        """Return the response to a request, sent only where this target is.

        Raises:
            ServerError: no response, or one that is rejected.
        """
        state = SessionState(self.server_id, anyio.CancelScope())
        try:
            async with guarded_client(
                target, ANSWER_BYTES, REQUEST_S, state, returns_redirects=returns_redirects
            ) as client:
                return await client.send(request)
        except ServerError:
            raise
        except httpx2.HTTPError as error:
            reason = f"{request.url.host} does not answer: {type(error).__name__}"
            raise ServerUnreachable(self.server_id, reason) from error

    def _client(self, before: SignIn | None, redirect_url: str, scopes: list[str]) -> OAuthClientInformationFull | None:
        """Return the client of the entry, or the one that was registered before for this redirect and these scopes."""
        known = before.client if before else None
        if self.client.client_id is None:
            has_redirect = known is not None and AnyUrl(redirect_url) in (known.redirect_uris or ())
            has_scopes = known is not None and (known.scope is None or set(scopes) <= set(known.scope.split()))
            return known if has_redirect and has_scopes else None
        if known and known.client_id == self.client.client_id:
            return known.model_copy(update={"client_secret": self.client.client_secret})  # bound to its issuer
        return OAuthClientInformationFull(
            client_id=self.client.client_id,
            client_secret=self.client.client_secret,
            redirect_uris=[AnyUrl(redirect_url)],
            token_endpoint_auth_method="none",
        )

    def _sign_in(self, caller: str, stored: _Stored, context: OAuthContext, since: float) -> SignIn:
        assert stored.client
        client, issuer = stored.client, context.oauth_metadata
        if client.issuer is None and issuer is not None:  # from now on the client's secret goes to no other one
            client = client.model_copy(update={"issuer": str(issuer.issuer)})
        return SignIn(
            server_id=self.server_id,
            caller=caller,
            url=self.url,
            client=client,
            tokens=stored.tokens,
            issuer=issuer,
            resource=context.protected_resource_metadata,
            since=since,
            renewed_at=time.time(),
        )


async def challenge_of(server: OAuthServer, target: HttpTarget) -> Challenge:
    """Return how a server answers a request without a token.

    Raises:
        ServerAuthRequired: it answers without a sign-in.
        ServerError: it does not answer.
    """
    headers = {MCP_PROTOCOL_VERSION_HEADER: LATEST_PROTOCOL_VERSION, "accept": "application/json, text/event-stream"}
    if target.transport == "sse":
        request = httpx2.Request("GET", server.url, headers=headers)
    else:
        request = httpx2.Request("POST", server.url, headers=headers, json=_PING)
    response = await server.send(request, replace(target, tokens=None))
    challenge = Challenge(response.status_code, response.headers.get("www-authenticate", ""))
    if challenge.status != HTTPStatus.UNAUTHORIZED:
        raise ServerAuthRequired(server.server_id, "answers without a sign-in")
    return challenge


def _method_for_secret(issuer: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """Return how a client with a secret authenticates; Basic is the default of RFC 8414."""
    supported = issuer.token_endpoint_auth_methods_supported if issuer else None
    is_post = supported is not None and "client_secret_basic" not in supported and "client_secret_post" in supported
    return "client_secret_post" if is_post else "client_secret_basic"


def _request(url: str) -> httpx2.Request:
    return httpx2.Request("POST", url, headers={MCP_PROTOCOL_VERSION_HEADER: LATEST_PROTOCOL_VERSION})


def _restore(context: OAuthContext, sign_in: SignIn) -> None:
    """Give a flow the metadata of an earlier one, by which it finds the token endpoint."""
    context.oauth_metadata, context.protected_resource_metadata = sign_in.issuer, sign_in.resource
    servers: Any = sign_in.resource.authorization_servers if sign_in.resource else ()
    context.auth_server_url = str(servers[0]) if servers else None
