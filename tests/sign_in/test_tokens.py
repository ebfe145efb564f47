"""Access tokens of requests, against an authorization server of the SDK behind a real port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from mcp.shared.auth import AuthorizationCodeResult

from shared.errors import ServerAuthRequired
from shared.upstream.auth import Challenge, OAuthClient
from shared.upstream.oauth import Authorization, OAuthServer, challenge_of
from shared.upstream.sign_ins import RedisEntries, SecretKey, SignIn, SignIns, SqliteEntries, entry_name
from shared.upstream.target import HttpTarget
from shared.upstream.tokens import AccessTokens
from tests.support.fake_redis import FakeRedisServer
from tests.support.oauth_server import People, ProtectedServer, protected_server
from tests.support.reference.redis_bounds import SIGN_IN_BYTES

pytestmark = [pytest.mark.process, pytest.mark.anyio]

REDIRECT = "http://127.0.0.1:1/callback"
STORM = 200


@pytest.fixture
def people() -> People:
    """Return the people of the authorization server."""
    return People()


@pytest.fixture
def server(people: People) -> Iterator[ProtectedServer]:
    """Run the protected server."""
    with protected_server(people) as running:
        yield running


@pytest.fixture
def sign_ins(tmp_path: Path) -> SignIns:
    """Return sign-ins in a file."""
    return SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))


@pytest.fixture(params=["file", "redis"])
def shared_sign_ins(request: pytest.FixtureRequest, tmp_path: Path) -> SignIns:
    """Return sign-ins of several processes."""
    if request.param == "file":
        return SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))
    return SignIns(RedisEntries(FakeRedisServer().client(decode_responses=False)), SecretKey("k" * 32, None))


def oauth(server: ProtectedServer, client: OAuthClient | None = None) -> OAuthServer:
    """Return the server as Toolscale reaches it."""
    given = client or OAuthClient.model_validate({})
    return OAuthServer("srv", server.url, lambda url: HttpTarget(url), given)


async def agreed(server: ProtectedServer, person: str, caller: str, before: SignIn | None = None) -> SignIn:
    """Return the sign-in of a person who agrees in the browser."""
    came: dict[str, str] = {}

    async def show(url: str) -> None:
        async with httpx2.AsyncClient() as browser:
            response = await browser.get(f"{url}&login_hint={person}")
        query = parse_qs(urlsplit(response.headers["location"]).query)
        came.update({name: values[0] for name, values in query.items()})

    async def returned() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=came["code"], state=came["state"], iss=came.get("iss"))

    challenge = await challenge_of(oauth(server), HttpTarget(server.url))
    return await oauth(server).authorize(caller, challenge, before, Authorization(REDIRECT, show, returned))


async def test_a_sign_in_gives_tokens_and_a_second_one_registers_no_client(
    server: ProtectedServer, people: People
) -> None:
    first = await agreed(server, "ann", "ann")
    second = await agreed(server, "ann", "ann", first)

    assert first.tokens is not None
    assert first.tokens.access_token in people.access
    assert second.client.client_id == first.client.client_id
    assert len(people.clients) == 1


async def test_a_sign_in_with_its_metadata_fits_into_its_bound(server: ProtectedServer) -> None:
    entries = RedisEntries(FakeRedisServer().client(decode_responses=False))
    sign_ins = SignIns(entries, SecretKey("k" * 32, None))

    sign_ins.put(await agreed(server, "ann", "ann"))

    (name,) = entries.names()
    assert len(entries.get(name) or b"") < SIGN_IN_BYTES


async def test_a_token_is_refreshed_before_it_expires(
    server: ProtectedServer, people: People, sign_ins: SignIns
) -> None:
    sign_in = await agreed(server, "ann", "ann")
    sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - people.lifetime_s + 30}))
    tokens = AccessTokens(sign_ins, oauth(server), "ann")

    token = await tokens.current()

    assert token in people.access
    assert token != (sign_in.tokens and sign_in.tokens.access_token)
    assert people.refreshes["ann"] == 1
    assert await tokens.current() == token


async def test_a_storm_of_requests_at_expiry_refreshes_once(
    server: ProtectedServer, people: People, shared_sign_ins: SignIns
) -> None:
    people.refresh_takes_s = 0.3
    sign_in = await agreed(server, "ann", "ann")
    shared_sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - people.lifetime_s + 1}))
    given: list[str | None] = []

    async def request() -> None:
        # as another process: it shares the store alone
        given.append(await AccessTokens(shared_sign_ins, oauth(server), "ann").current())

    async with anyio.create_task_group() as tasks:
        for _ in range(STORM):
            tasks.start_soon(request)

    assert people.refreshes["ann"] == 1
    assert len(given) == STORM
    assert set(given) == {given[0]}
    assert given[0] in people.access


async def test_a_refused_refresh_ends_the_sign_in(server: ProtectedServer, people: People, sign_ins: SignIns) -> None:
    sign_in = await agreed(server, "ann", "ann")
    sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - people.lifetime_s}))
    people.revoke("ann")
    tokens = AccessTokens(sign_ins, oauth(server), "ann")

    assert await tokens.current() is None
    assert not tokens.is_signed_in()
    assert list(sign_ins.all()) == []


async def test_a_refused_token_is_replaced_once(server: ProtectedServer, people: People, sign_ins: SignIns) -> None:
    sign_in = await agreed(server, "ann", "ann")
    sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - 60}))
    tokens, refused = AccessTokens(sign_ins, oauth(server), "ann"), Challenge(401, "Bearer")
    old = await tokens.current()

    new = await tokens.after_refusal(old, refused)

    assert new not in (None, old)
    assert await tokens.after_refusal(old, refused) == new  # another request with the old token
    assert await tokens.after_refusal(new, refused) is None  # a new token that is refused too: a person is needed
    assert people.refreshes["ann"] == 1


async def test_a_sign_in_serves_no_other_url_and_no_other_caller(server: ProtectedServer, sign_ins: SignIns) -> None:
    sign_ins.put(await agreed(server, "ann", "ann"))

    moved = OAuthServer("srv", "http://127.0.0.1:9/mcp", HttpTarget)
    assert await AccessTokens(sign_ins, moved, "ann").current() is None
    assert await AccessTokens(sign_ins, oauth(server), "bob").current() is None
    assert await AccessTokens(sign_ins, oauth(server)).current() is None


async def test_the_service_lists_as_the_first_caller_only_where_the_operator_allows_it(
    server: ProtectedServer, people: People, sign_ins: SignIns
) -> None:
    sign_ins.put((await agreed(server, "bob", "bob")).model_copy(update={"since": 2.0}))
    sign_ins.put((await agreed(server, "ann", "ann")).model_copy(update={"since": 1.0}))

    assert await AccessTokens(sign_ins, oauth(server)).current() is None
    borrowed = await AccessTokens(sign_ins, oauth(server), borrows=True).current()
    assert people.access[borrowed or ""].subject == "ann"


async def test_a_state_that_was_changed_is_refused(server: ProtectedServer) -> None:
    came: dict[str, str] = {}

    async def show(url: str) -> None:
        async with httpx2.AsyncClient() as browser:
            response = await browser.get(url)
        came["code"] = parse_qs(urlsplit(response.headers["location"]).query)["code"][0]

    async def returned() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=came["code"], state="of another flow")

    challenge = await challenge_of(oauth(server), HttpTarget(server.url))
    with pytest.raises(ServerAuthRequired) as refused:
        await oauth(server).authorize("ann", challenge, None, Authorization(REDIRECT, show, returned))
    assert "of another flow" not in str(refused.value)


async def test_a_process_that_gets_the_lease_after_another_one_refreshed_does_not_refresh_again(
    server: ProtectedServer, people: People, tmp_path: Path
) -> None:
    file, key = tmp_path / "sign-ins.sqlite3", SecretKey("k" * 32, None)
    sign_ins, sign_in = SignIns(SqliteEntries(file), key), await agreed(server, "ann", "ann")
    sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - people.lifetime_s + 1}))
    first = AccessTokens(sign_ins, oauth(server), "ann")

    class Late(SqliteEntries):
        def try_lease(self, name: str, holder: str) -> bool:
            anyio.from_thread.run(first.current)  # between the read and the lease of the second one
            return super().try_lease(name, holder)

    second = AccessTokens(SignIns(Late(file), key), oauth(server), "ann")

    assert await second.current() == await first.current()
    assert people.refreshes["ann"] == 1


async def test_a_request_that_is_cancelled_in_a_refresh_loses_no_token(
    server: ProtectedServer, people: People, sign_ins: SignIns
) -> None:
    people.refresh_takes_s = 0.3
    sign_in = await agreed(server, "ann", "ann")
    sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - people.lifetime_s}))
    tokens = AccessTokens(sign_ins, oauth(server), "ann")

    with anyio.CancelScope() as request:
        loop = asyncio.get_running_loop()
        people.on_refresh = lambda: loop.call_soon_threadsafe(request.cancel)
        await tokens.current()

    assert await tokens.current() in people.access
    assert people.refreshes["ann"] == 1


async def test_tokens_that_cannot_be_refreshed_are_used_to_their_end(
    server: ProtectedServer, people: People, sign_ins: SignIns
) -> None:
    sign_in = await agreed(server, "ann", "ann")
    assert sign_in.tokens
    alone = sign_in.tokens.model_copy(update={"refresh_token": None})
    sign_ins.put(sign_in.model_copy(update={"tokens": alone, "renewed_at": time.time() - people.lifetime_s + 5}))
    held = sign_ins.entries.try_lease(entry_name("srv", "ann"), "another process")

    with anyio.fail_after(5):  # no lease is waited for
        assert await AccessTokens(sign_ins, oauth(server), "ann").current() == alone.access_token
    assert held
