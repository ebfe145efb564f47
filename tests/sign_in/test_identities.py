"""No call goes out under another identity, and no token comes to light: random sign-ins, expiries and revocations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.auth import OAuthClientInformationFull
from mcp.types import CallToolResult

from shared.upstream.auth import SERVICE, Auth
from shared.upstream.sign_ins import SecretKey, SignIn, SignIns, SqliteEntries
from tests.support.calling import text_of
from tests.support.http_callers import http_client
from tests.support.oauth_server import ProtectedServer, protected_server
from tests.support.signing_in import LINK, called, signing_in

pytestmark = pytest.mark.process

CALLERS = [f"caller{number}" for number in range(100)]
SERVERS = [f"server{number}" for number in range(20)]
# a third of the servers has one token for all
AUTH = {name: Auth(type="service" if number % 3 == 0 else "caller") for number, name in enumerate(SERVERS)}
USER = {"permissions": ["catalog:read", "tools:call"]}

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "call", "sign in", "expire", "revoke", "log out", "restart"]),
        # mostly the same few, so that steps meet
        st.sampled_from(CALLERS[:5]) | st.sampled_from(CALLERS),
        st.sampled_from(SERVERS[:4]) | st.sampled_from(SERVERS),
    ),
    min_size=10,
    max_size=40,
)


@pytest.fixture(scope="module")
def upstreams() -> Iterator[list[ProtectedServer]]:
    """Run two protected servers, with an authorization server each."""
    with protected_server() as first, protected_server() as second:
        yield [first, second]


def _owner(caller: str, server: str) -> str:
    return SERVICE if AUTH[server].type == "service" else caller


def _person(owner: str, server: str) -> str:
    return f"{owner or 'service'}@{server}"


@settings(max_examples=12, deadline=None)
@given(steps=STEPS)
def test_every_call_acts_as_its_caller_and_no_token_comes_to_light(
    upstreams: list[ProtectedServer],
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, str, str]],
) -> None:
    anyio.run(_run, upstreams, tmp_path_factory.mktemp("sign-ins"), steps)


async def _run(upstreams: list[ProtectedServer], directory: Path, steps: list[tuple[str, str, str]]) -> None:
    sign_ins = SignIns(SqliteEntries(directory / "sign-ins.sqlite3"), SecretKey(None, directory / "secret.key"))
    of = {name: upstreams[number % 2] for number, name in enumerate(SERVERS)}
    world = _World(sign_ins, of, {each.url: await _signed_in_template(each) for each in upstreams})
    urls = {name: upstream.url for name, upstream in of.items()}
    while steps:
        service = signing_in(directory, urls, sign_ins, dict.fromkeys(CALLERS, USER), AUTH)
        async with http_client(service.app):
            while steps:
                (what, caller, server), *steps = steps
                if what == "restart":
                    break
                if what == "call":
                    world.check(caller, server, await called(service, caller, f"{server}:whoami"))
                else:
                    world.play(what, _owner(caller, server), server)
    world.check_canaries(directory)


@dataclass
class _World:
    """What is true of the sign-ins, and all texts that came to light."""

    sign_ins: SignIns
    upstream_of: Mapping[str, ProtectedServer]
    templates: Mapping[str, SignIn]
    signed_in: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    shown: list[str] = field(default_factory=list[str])

    def play(self, what: str, owner: str, server: str) -> None:
        """Change the sign-in of an owner."""
        upstream = self.upstream_of[server]
        if what == "sign in":
            self.sign_ins.put(_signed_in(self.templates[upstream.url], upstream, server, owner))
            self.signed_in.add((server, owner))
        elif what == "expire":
            if found := self.sign_ins.get(server, owner):
                self.sign_ins.replace(found, found.model_copy(update={"renewed_at": time.time() - 3_600}))
        else:
            self.signed_in.discard((server, owner))
            if what == "revoke":
                upstream.people.revoke(_person(owner, server))
            else:
                self.sign_ins.end(server, owner)

    def check(self, caller: str, server: str, result: CallToolResult) -> None:
        """Check that a call acted as its owner, or as nobody."""
        owner, text = _owner(caller, server), text_of(result)
        self.shown.append(text)
        if (server, owner) in self.signed_in:
            assert text == _person(owner, server)
        else:
            assert result.is_error
            assert bool(LINK.search(text)) == (owner != SERVICE)

    def check_canaries(self, directory: Path) -> None:
        """Check that no token was stored or shown outside the encrypted store."""
        texts = [*self.shown, *map(repr, self.sign_ins.all())]
        stored = b"".join(file.read_bytes() for file in directory.iterdir())
        for upstream in {each.url: each for each in self.upstream_of.values()}.values():
            assert not any(token.encode() in stored for token in upstream.people.log)
            assert not any(token in text for token in upstream.people.log for text in texts)


async def _signed_in_template(upstream: ProtectedServer) -> SignIn:
    """Return a sign-in with the metadata of a server, by which its tokens are refreshed."""
    from tests.sign_in.test_tokens import agreed  # the steps of a browser

    return await agreed(upstream, "template", "template")


def _signed_in(template: SignIn, upstream: ProtectedServer, server: str, owner: str) -> SignIn:
    client = OAuthClientInformationFull.model_validate(template.client.model_dump())
    tokens = upstream.people.given(client, _person(owner, server), ["read"])
    now = time.time()
    changes = {"server_id": server, "caller": owner, "tokens": tokens, "since": now, "renewed_at": now}
    return template.model_copy(update=changes)
