"""Sign-ins with servers and authorization servers that differ in what they publish, and where."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from anyio.to_thread import run_sync
from mcp.shared.auth import AuthorizationCodeResult

from shared.errors import ServerAuthRequired, ServerError, ServerFailed, SignInRequired
from shared.upstream.auth import Auth, Challenge, OAuthClient
from shared.upstream.oauth import Authorization, OAuthServer, challenge_of
from shared.upstream.sign_ins import SecretKey, SignIn, SignIns, SqliteEntries
from shared.upstream.target import HttpTarget
from shared.upstream.tokens import AccessTokens
from tests.support.http_callers import http_client
from tests.support.scripted_issuer import ISSUER, RESOURCE, Answer, ScriptedIssuer, scripted_issuer
from tests.support.signing_in import called, link_in, signing_in
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = [pytest.mark.process, pytest.mark.anyio]

REDIRECT = "http://127.0.0.1:1/callback"
PUBLIC = "https://tools.example.org"
OWN = OAuthClient.model_validate({"clientId": "mine", "clientSecret": "of mine"})


@pytest.fixture
def issuer() -> Iterator[ScriptedIssuer]:
    """Run a server whose answers the test changes."""
    with scripted_issuer() as running:
        yield running


@pytest.fixture
def sign_ins(tmp_path: Path) -> SignIns:
    """Return sign-ins in a file."""
    return SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))


async def agreed(issuer: ScriptedIssuer, client: OAuthClient | None = None) -> SignIn:
    """Return the sign-in of a person who agrees."""
    state: list[str] = []

    async def show(url: str) -> None:
        state.extend(parse_qs(urlsplit(url).query)["state"])

    async def returned() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code="code", state=state[0])

    server = OAuthServer("srv", issuer.url, HttpTarget, client or OAuthClient.model_validate({}))
    challenge = await challenge_of(server, HttpTarget(issuer.url))
    return await server.authorize("ann", challenge, None, Authorization(REDIRECT, show, returned))


async def listing_error(issuer: ScriptedIssuer, sign_ins: SignIns) -> ServerError:
    """Return why the server cannot be listed without a sign-in."""
    tokens = AccessTokens(sign_ins, OAuthServer("srv", issuer.url, HttpTarget))
    target = HttpTarget(issuer.url, tokens=tokens)
    with pytest.raises(ServerError) as failed:
        await run_sync(fetch_tools_blocking, "srv", target, Limits(timeout_s=60))
    return failed.value


@pytest.mark.parametrize(
    ("methods", "is_basic"),
    [(None, True), (["client_secret_post", "client_secret_basic"], True), (["client_secret_post"], False)],
)
async def test_the_secret_of_an_entry_goes_as_the_authorization_server_takes_it(
    issuer: ScriptedIssuer, methods: list[str] | None, is_basic: bool
) -> None:
    if methods:
        issuer.publish(token_endpoint_auth_methods_supported=methods)

    await agreed(issuer, OWN)

    (request,) = issuer.requests("/token")
    basic = f"Basic {base64.b64encode(b'mine:of%20mine').decode()}"
    assert request.headers.get("authorization") == (basic if is_basic else None)
    assert request.form.get("client_secret") == (None if is_basic else "of mine")


async def test_metadata_is_found_behind_a_redirect_within_its_origin_alone(issuer: ScriptedIssuer) -> None:
    issuer.answers["/metadata"] = issuer.answers[ISSUER]
    issuer.answers[ISSUER] = Answer(307, {"Location": "/metadata"})
    # no metadata of the resource: a server that redirects what it does not have
    elsewhere = issuer.address.replace("127.0.0.1", "localhost")
    issuer.answers[RESOURCE] = Answer(302, {"Location": f"{elsewhere}/metadata"})

    sign_in = await agreed(issuer)

    assert sign_in.tokens
    assert len(issuer.requests("/metadata")) == 1


async def test_a_refusal_without_a_challenge_needs_a_sign_in_only_where_the_server_offers_one(
    issuer: ScriptedIssuer, sign_ins: SignIns
) -> None:
    issuer.answers["/mcp"] = Answer(401)
    offered = await listing_error(issuer, sign_ins)
    del issuer.answers[RESOURCE]
    not_offered = await listing_error(issuer, sign_ins)

    assert isinstance(offered, SignInRequired)
    assert isinstance(not_offered, ServerAuthRequired)
    assert not isinstance(not_offered, SignInRequired)


async def test_a_server_that_refuses_the_probe_and_knows_no_handshake_needs_a_sign_in(
    issuer: ScriptedIssuer, sign_ins: SignIns
) -> None:
    issuer.answers["/mcp server/discover"] = issuer.answers["/mcp"]
    issuer.answers["/mcp"] = Answer(400)

    assert isinstance(await listing_error(issuer, sign_ins), SignInRequired)
    assert len(issuer.requests("/mcp")) == 2


async def test_a_redirected_refresh_succeeds_within_its_origin_and_else_comes_later(issuer: ScriptedIssuer) -> None:
    sign_in, server = await agreed(issuer), OAuthServer("srv", issuer.url, HttpTarget)
    issuer.answers["/tokens"] = issuer.answers["/token"]

    issuer.answers["/token"] = Answer(307, {"Location": "/tokens"})
    refreshed = await server.refresh(sign_in)
    issuer.answers["/token"] = Answer(302, {"Location": "https://maintenance.example.org/"})
    with pytest.raises(ServerFailed):
        await server.refresh(sign_in)

    assert refreshed
    assert [each.form["grant_type"] for each in issuer.requests("/tokens")] == ["refresh_token"]


def test_the_scopes_of_an_entry_replace_those_of_a_first_challenge_and_extend_those_of_a_later_one() -> None:
    first = Challenge(401, 'Bearer scope="basic"').for_scopes("read")
    later = Challenge(403, 'Bearer error="insufficient_scope", scope="write"').for_scopes("read")

    assert (first.scope, later.scope) == ("read", "read write")
    assert later.wants_more_scopes


async def test_a_service_with_a_public_address_is_known_by_its_document_and_registers_nothing(
    issuer: ScriptedIssuer, sign_ins: SignIns, tmp_path: Path
) -> None:
    issuer.publish(client_id_metadata_document_supported=True)
    service = signing_in(tmp_path, {"srv": issuer.url}, sign_ins, {"boss": {}}, {"srv": Auth()}, public_url=PUBLIC)

    async with http_client(service.app) as http:
        link = link_in(await called(service, "boss", "srv:whoami"))
        start = await http.get(urlsplit(link).path, auth=("me", "boss"))
        client_id = parse_qs(urlsplit(start.headers["location"]).query)["client_id"][0]
        document = (await http.get(urlsplit(client_id).path)).json()

    assert client_id.startswith(PUBLIC)
    assert document["client_id"] == client_id
    assert document["redirect_uris"] == [f"{PUBLIC}/oauth/callback"]
    assert issuer.requests("/register") == []
