"""Sign-ins of callers by links: whose they are, and what a call says meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from mcp.types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from shared.upstream.auth import Auth
from shared.upstream.sign_ins import SecretKey, SignIns, SqliteEntries
from tests.support.calling import text_of
from tests.support.http_callers import http_client
from tests.support.oauth_server import ProtectedServer, protected_server
from tests.support.signing_in import Service, agree, called, link_in, signing_in

pytestmark = [pytest.mark.process, pytest.mark.anyio]

USER = {"permissions": ["catalog:read", "tools:call"]}
CALLERS = {"ann": USER, "bob": USER, "boss": {}}


@pytest.fixture
def server() -> Iterator[ProtectedServer]:
    """Run the protected server."""
    with protected_server() as running:
        yield running


@pytest.fixture
def service(tmp_path: Path, server: ProtectedServer) -> Service:
    """Return a service whose server `mine` has tokens of callers, and `ours` that of the service."""
    sign_ins = SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))
    urls = {"mine": server.url, "ours": server.url}
    return signing_in(tmp_path, urls, sign_ins, CALLERS, {"mine": Auth(type="caller")}, ("whoami", "leak"))


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    """Run the service, and yield a browser without a caller."""
    async with http_client(service.app) as client:
        yield client


async def test_a_caller_signs_in_by_the_link_of_a_call_and_acts_as_himself(
    service: Service, http: httpx2.AsyncClient
) -> None:
    needs = await called(service, "ann", "mine:whoami")
    page = await agree(http, link_in(needs), "ann", "ann@example.org")
    works = await called(service, "ann", "mine:whoami")
    others = await called(service, "bob", "mine:whoami")

    assert needs.is_error
    assert "Signed in" in page.text
    assert text_of(works) == "ann@example.org"
    assert others.is_error
    link_in(others)
    assert service.resyncs == ["mine"]


async def test_a_client_that_can_open_links_shows_the_link_and_gets_the_result(
    service: Service, http: httpx2.AsyncClient
) -> None:
    opened: list[str] = []

    async def user(context: object, params: ElicitRequestParams) -> ElicitResult:
        del context
        assert isinstance(params, ElicitRequestURLParams)
        opened.append(params.url)
        await agree(http, params.url, "ann", "ann@example.org")
        return ElicitResult(action="accept")

    result = await called(service, "ann", "mine:whoami", user)

    assert text_of(result) == "ann@example.org"
    assert len(opened) == 1


async def test_a_server_that_no_sign_in_contents_is_given_up_after_two(
    service: Service, server: ProtectedServer, http: httpx2.AsyncClient
) -> None:
    server.people.withheld.add("write")
    opened: list[str] = []

    async def user(context: object, params: ElicitRequestParams) -> ElicitResult:
        del context
        assert isinstance(params, ElicitRequestURLParams)
        opened.append(params.url)
        await agree(http, params.url, "ann", "ann@example.org")
        return ElicitResult(action="accept")

    result = await called(service, "ann", "mine:leak", user)

    assert result.is_error
    assert len(opened) == 2
    assert link_in(result) not in opened


async def test_a_user_who_declines_the_link_gets_no_call(service: Service, http: httpx2.AsyncClient) -> None:
    del http

    async def user(context: object, params: ElicitRequestParams) -> ElicitResult:
        del context, params
        return ElicitResult(action="decline")

    result = await called(service, "ann", "mine:whoami", user)

    assert result.is_error
    assert "declined" in text_of(result)


async def test_a_link_is_good_once_and_for_its_caller_alone(service: Service, http: httpx2.AsyncClient) -> None:
    link = link_in(await called(service, "ann", "mine:whoami"))

    by_bob = await agree(http, link, "bob", "bob@example.org")
    by_nobody = await http.get(link)
    by_ann = await agree(http, link, "ann", "ann@example.org")
    again = await agree(http, link, "ann", "ann@example.org")

    assert (by_bob.status_code, by_nobody.status_code, again.status_code) == (404, 401, 404)
    assert "Signed in" in by_ann.text
    assert {each.caller for each in service.sign_ins.all()} == {"ann"}


async def test_a_stranger_who_agrees_for_a_caller_signs_nobody_in(service: Service, http: httpx2.AsyncClient) -> None:
    link = link_in(await called(service, "ann", "mine:whoami"))
    start = await http.get(link, auth=httpx2.BasicAuth("me", "ann"))

    # ann sends the address of the authorization server to bob, whose browser comes back as bob
    async with httpx2.AsyncClient() as browser:
        agreed = await browser.get(f"{start.headers['location']}&login_hint=bob@example.org")
    came = await http.get(agreed.headers["location"], auth=httpx2.BasicAuth("me", "bob"))

    assert came.status_code == 404
    assert list(service.sign_ins.all()) == []


async def test_calls_that_wait_for_the_same_sign_in_show_one_link(service: Service, http: httpx2.AsyncClient) -> None:
    del http
    first, second = [link_in(await called(service, "ann", "mine:whoami")) for _ in range(2)]

    assert first == second


async def test_the_sign_in_of_the_service_is_the_operators(service: Service, http: httpx2.AsyncClient) -> None:
    refused = await called(service, "ann", "ours:whoami")
    page = await agree(http, link_in(await called(service, "boss", "ours:whoami")), "boss", "robot@example.org")
    works = await called(service, "ann", "ours:whoami")

    assert refused.is_error
    assert "/oauth/" not in text_of(refused)
    assert "Signed in" in page.text
    assert text_of(works) == "robot@example.org"


async def test_a_server_that_wants_more_scopes_gets_a_link_that_asks_for_them(
    service: Service, server: ProtectedServer, http: httpx2.AsyncClient
) -> None:
    await agree(http, link_in(await called(service, "ann", "mine:whoami")), "ann", "ann@example.org")

    more = await called(service, "ann", "mine:leak")
    page = await agree(http, link_in(more), "ann", "ann@example.org")
    leaked = await called(service, "ann", "mine:leak")

    assert "Signed in" in page.text
    (sign_in,) = service.sign_ins.all()
    assert set(((sign_in.tokens and sign_in.tokens.scope) or "").split()) == {"read", "write"}
    assert 'scopes "write"' in text_of(more)
    assert leaked.is_error
    assert "cannot use ***" in text_of(leaked)
    assert not any(token in text_of(leaked) for token in server.people.log)


async def test_a_sign_in_that_ends_is_asked_for_again(
    service: Service, server: ProtectedServer, http: httpx2.AsyncClient
) -> None:
    await agree(http, link_in(await called(service, "ann", "mine:whoami")), "ann", "ann@example.org")

    server.people.revoke("ann@example.org")
    revoked = await called(service, "ann", "mine:whoami")
    await agree(http, link_in(revoked), "ann", "ann@example.org")
    again = await called(service, "ann", "mine:whoami")
    gone = await http.delete("/api/sign-ins?server=mine", headers={"authorization": "Bearer ann"})
    ended = await called(service, "ann", "mine:whoami")

    assert text_of(again) == "ann@example.org"
    assert gone.json() == {"ended": ["mine"]}
    link_in(ended)


async def test_callers_see_and_end_their_own_sign_ins_and_operators_all(
    service: Service, http: httpx2.AsyncClient
) -> None:
    for caller in ("ann", "bob"):
        await agree(http, link_in(await called(service, caller, "mine:whoami")), caller, f"{caller}@example.org")

    async def seen(token: str) -> set[str]:
        found = await http.get("/api/sign-ins", headers={"authorization": f"Bearer {token}"})
        return {each["caller"] for each in found.json()["sign_ins"]}

    assert (await seen("ann"), await seen("boss")) == ({"ann"}, {"ann", "bob"})
    stolen = await http.delete("/api/sign-ins?caller=bob", headers={"authorization": "Bearer ann"})
    ended = await http.delete("/api/sign-ins?caller=bob", headers={"authorization": "Bearer boss"})
    assert stolen.status_code == 403
    assert ended.json() == {"ended": ["mine"]}
    assert await seen("boss") == {"ann"}


async def test_a_refusal_in_the_browser_is_shown_with_its_reason(service: Service, http: httpx2.AsyncClient) -> None:
    link = link_in(await called(service, "ann", "mine:whoami"))
    start = await http.get(link, auth=httpx2.BasicAuth("me", "ann"))
    state = httpx2.URL(start.headers["location"]).params["state"]

    query = f"error=access_denied&error_description=no+thanks&state={state}"
    page = await http.get(f"/oauth/callback?{query}", auth=httpx2.BasicAuth("me", "ann"))

    assert "no thanks" in page.text
    assert list(service.sign_ins.all()) == []


async def test_the_service_lists_by_a_sign_in_of_its_own_where_callers_have_theirs(
    service: Service, http: httpx2.AsyncClient
) -> None:
    asked = {"redirect_url": "http://127.0.0.1:9/callback", "service": True}
    boss, ann = ({"authorization": f"Bearer {name}"} for name in ("boss", "ann"))

    refused = await http.post("/api/sign-ins/of/mine", json=asked, headers=ann)
    begun = await http.post("/api/sign-ins/of/mine", json=asked, headers=boss)
    async with httpx2.AsyncClient() as browser:
        agreed = await browser.get(f"{begun.json()['authorization_url']}&login_hint=robot")
    await http.post("/api/sign-ins/returned", json={"url": agreed.headers["location"]}, headers=boss)
    outcome = {"state": "waiting"}
    while outcome["state"] == "waiting":
        outcome = (await http.get(f"/api/sign-ins/outcomes/{begun.json()['ticket']}", headers=boss)).json()

    assert refused.status_code == 400
    assert outcome["state"] == "signed in"
    assert [each.caller for each in service.sign_ins.all()] == [""]
    link_in(await called(service, "boss", "mine:whoami"))  # his own calls need his own


async def test_a_caller_who_begins_many_sign_ins_stops_nobody_else(service: Service, http: httpx2.AsyncClient) -> None:
    for port in range(1_000, 1_040):
        asked = {"redirect_url": f"http://127.0.0.1:{port}/callback"}
        begun = await http.post("/api/sign-ins/of/mine", json=asked, headers={"authorization": "Bearer ann"})
        assert begun.status_code == 200

    link_in(await called(service, "bob", "mine:whoami"))
    # of many that she began for the same server, the last one counts
    assert len([task for task in asyncio.all_tasks() if "SignInFlows" in repr(task)]) == 2


async def test_a_later_sign_in_keeps_the_scopes_that_were_granted(service: Service, http: httpx2.AsyncClient) -> None:
    await agree(http, link_in(await called(service, "ann", "mine:whoami")), "ann", "ann@example.org")
    await agree(http, link_in(await called(service, "ann", "mine:leak")), "ann", "ann@example.org")

    begun = await http.post(
        "/api/sign-ins/of/mine",
        json={"redirect_url": "http://127.0.0.1:9/callback"},
        headers={"authorization": "Bearer ann"},
    )

    assert set(httpx2.URL(begun.json()["authorization_url"]).params["scope"].split()) == {"read", "write"}
