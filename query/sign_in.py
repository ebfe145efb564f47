"""Sign-ins of people to servers that need one: a link for the browser, its return, and the tokens.

call_tool, page or command ─▶ `begin` ─▶ a flow waits ─▶ link ─▶ authorization server ─▶ callback ─▶ tokens

The flow waits in the process that began it. What the browser brings back passes through `Kept`, so the browser may
return to any replica. All of it is bound to the caller who asked: a link is good once, for LINK_S, and only for him.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import anyio
import structlog
from anyio.to_thread import run_sync
from mcp.shared.auth import AuthorizationCodeResult

from query.caller import is_operator
from query.kept import name_of, new_name
from shared.errors import (
    CallsExhausted,
    ConfigInvalid,
    CursorInvalid,
    CursorsUnavailable,
    ServerAuthRequired,
    ServerTimeout,
    ToolscaleError,
)
from shared.quoting import quoted
from shared.upstream.auth import SERVICE, Challenge
from shared.upstream.hosts import is_loopback
from shared.upstream.oauth import Authorization, challenge_of
from shared.upstream.target import HttpTarget
from shared.upstream.tokens import in_store

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from query.caller import Caller
    from query.kept import Kept
    from shared.catalog import ServerRecord
    from shared.upstream.auth import OAuthClient
    from shared.upstream.dial import Dialler
    from shared.upstream.oauth import OAuthServer
    from shared.upstream.sign_ins import SignIn, SignIns

SOURCE = "toolscale/sign-in"
"""Requests the listing of a server after a sign-in."""

LINK_S = 300.0
"""Seconds within which a person follows a link and comes back."""

PATH = "/oauth"
CALLBACK_PATH, START_PATH, CLIENT_PATH = f"{PATH}/callback", f"{PATH}/start", f"{PATH}/client.json"

_POLL_S = 0.25
# Until the authorization server has told where the browser goes.
_BEGIN_WITHIN_S = 30.0
_MOST_FLOWS, _MOST_OF_CALLER = 1_000, 20
_SHOWN_AGAIN_S = 60.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ticket:
    """A sign-in that began: `link` is for the caller's browser; `authorization_url` is where it leads."""

    name: str
    link: str
    authorization_url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a sign-in: still waiting, done, or the reason of its failure."""

    state: str
    reason: str = ""

    @property
    def is_waiting(self) -> bool:
        """Return whether nobody knows yet."""
        return self.state == "waiting"


@dataclass(slots=True)
class _Flow:
    """A running flow; its ticket may be shown again while its link is new and unused."""

    server_id: str
    owner: str
    redirect_url: str
    challenge: Challenge | None
    ticket: asyncio.Future[Ticket] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: asyncio.Task[None] | None = None
    began_s: float = field(default_factory=time.monotonic)
    is_used: bool = False

    def serves(self, redirect_url: str, challenge: Challenge | None) -> bool:
        """Return whether its ticket is good for this request too; the link of an older one would end too soon."""
        is_new = not self.is_used and time.monotonic() < self.began_s + _SHOWN_AGAIN_S
        return is_new and (self.redirect_url, self.challenge) == (redirect_url, challenge)

    def end(self) -> None:
        """End the flow."""
        if self.task:
            self.task.cancel()


class SignInFlows:
    """The sign-ins that began in this process. Only for one event loop.

    `public_address` is that of this service for browsers, where it is set; `is_local`: only this machine reaches it.
    `on_change` is called, in a thread, with a server whose list other tokens may change.
    """

    def __init__(
        self,
        dialler: Dialler,
        sign_ins: SignIns,
        kept: Kept,
        public_address: str | None,
        on_change: Callable[[str], None],
        *,
        is_local: bool,
    ) -> None:
        self._dialler, self._sign_ins, self._kept, self._on_change = dialler, sign_ins, kept, on_change
        self._public_address, self._is_local = public_address, is_local
        self._flows: dict[tuple[str, str, str], _Flow] = {}

    def owner(self, server: ServerRecord, caller: Caller) -> str:
        """Return whose sign-in a call of this caller needs: his own, or that of the service."""
        auth = self._dialler.options(server.server_id, server.labels).auth
        return caller.identity if auth.type == "caller" else SERVICE

    def client(self, server: ServerRecord) -> OAuthClient:
        """Return the registered client that the operator gives a server."""
        return self._dialler.options(server.server_id, server.labels).oauth

    def is_operator(self, request: HTTPConnection, caller: Caller) -> bool:
        """Return whether the caller may see and end the sign-ins of all, and make that of the service."""
        return is_operator(request, caller, is_local=self._is_local)

    def address(self, request: HTTPConnection) -> str:
        """Return the address of this service for a browser: the public one, or that of a request over loopback.

        Raises:
            ConfigInvalid: the service has no public URL, and the request came from another machine.
        """
        if self._public_address:
            return self._public_address
        host = request.headers.get("host", "")
        if is_loopback(urlsplit(f"//{host}").hostname or ""):
            return f"http://{host}"
        raise ConfigInvalid("sign-ins need setting public_url (TOOLSCALE_PUBLIC_URL), to which browsers return")

    def permitted_owner(
        self, server: ServerRecord, request: HTTPConnection, caller: Caller, *, for_service: bool = False
    ) -> str:
        """Return whose sign-in a call of this caller needs, if he may make it: that of the service is the operator's.

        `for_service`: the service's own, by which it lists the tools of a server that has tokens of callers too.

        Raises:
            ServerAuthRequired: he may not.
        """
        owner = SERVICE if for_service else self.owner(server, caller)
        if owner == SERVICE and not self.is_operator(request, caller):
            own = " --service" if self._dialler.options(server.server_id, server.labels).auth.type == "caller" else ""
            reason = f"needs a sign-in of its operator, who runs `toolscale login {server.server_id}{own}`"
            raise ServerAuthRequired(server.server_id, reason)
        return owner

    async def begin(
        self,
        server: ServerRecord,
        owner: str,
        caller: Caller,
        address: str,
        challenge: Challenge | None = None,
        scopes: str | None = None,
    ) -> Ticket:
        """Begin a sign-in, and return where the caller's browser goes; the same ticket as a moment ago while it is new.

        `scopes` are asked for beside those that the server names.
        `address` is that of this service for the browser, or the loopback URL of a command with a path. Of the
        sign-ins of an owner that a caller began, the last one counts.

        Raises:
            ServerError: the server needs no sign-in, or its authorization server does not answer or refuses.
            ConfigInvalid: there is no secret key.
            CallsExhausted: too many sign-ins wait.
        """
        redirect_url = address if urlsplit(address).path else address + CALLBACK_PATH
        key = server.server_id, owner, caller.identity
        if (flow := self._flows.get(key)) and flow.serves(redirect_url, challenge) and not scopes:
            return await self._ticket(flow)
        waiting = [each for each in self._flows if each[2] == caller.identity and each != key]
        if len(waiting) >= _MOST_OF_CALLER or len(self._flows) >= _MOST_FLOWS:
            raise CallsExhausted("too many sign-ins wait for their persons; try again in some minutes")
        await in_store(self._sign_ins.check_key)
        target = await run_sync(self._dialler.target, server.server_id, server.endpoint)
        if not isinstance(target, HttpTarget):
            raise ServerAuthRequired(server.server_id, "is started here, so nobody signs in to it")
        oauth = self._dialler.oauth_server(target, server.server_id, server.labels)
        found = challenge or await challenge_of(oauth, target)
        if flow := self._flows.get(key):
            flow.end()
        flow = self._flows[key] = _Flow(server.server_id, owner, redirect_url, challenge)
        flow.task = asyncio.create_task(self._run(flow, oauth, found, caller, address, scopes))
        flow.task.add_done_callback(partial(self._ended, key, flow))
        return await self._ticket(flow)

    @staticmethod
    async def _ticket(flow: _Flow) -> Ticket:
        with anyio.move_on_after(_BEGIN_WITHIN_S):
            return await asyncio.shield(flow.ticket)
        flow.end()
        raise ServerTimeout(flow.server_id, f"its authorization server did not answer within {_BEGIN_WITHIN_S:g} s")

    def _ended(self, key: tuple[str, str, str], flow: _Flow, task: asyncio.Task[None]) -> None:
        if self._flows.get(key) is flow:
            del self._flows[key]
        if not flow.ticket.done():
            flow.ticket.set_exception(ServerTimeout(flow.server_id, "its sign-in was ended by another one"))
            flow.ticket.exception()  # else asyncio logs it where nobody waits any more
        if not task.cancelled():
            task.result()

    def started(self, ticket: str, caller: Caller) -> str:
        """Return where the browser of this caller goes, once.

        Raises:
            CursorInvalid: the link was used, has expired, or is another caller's.
            CursorsUnavailable: the store does not answer.
        """
        url = self._kept.take(ticket, *_bound(caller, "link")).decode()
        for flow in list(self._flows.values()):
            if flow.ticket.done() and not flow.ticket.exception() and flow.ticket.result().name == ticket:
                flow.is_used = True
        return url

    def returned(self, parameters: str, caller: Caller) -> str:
        """Hand on what the authorization server sent by the browser, as the query of its redirect; return the ticket.

        Raises:
            CursorInvalid: no sign-in of this caller waits for it.
            CursorsUnavailable: the store does not answer.
        """
        given = {name: values[0] for name, values in parse_qs(parameters).items()}
        bound = _bound(caller, "state", given.get("state", ""))
        ticket = self._kept.take(name_of(*bound), *bound).decode()
        bound = _bound(caller, "returned", ticket)
        self._kept.put(json.dumps(given).encode(), *bound, name=name_of(*bound), ttl_s=LINK_S)
        return ticket

    def outcome(self, ticket: str, caller: Caller) -> Outcome:
        """Return what became of a sign-in of this caller.

        Raises:
            CursorsUnavailable: the store does not answer.
        """
        bound = _bound(caller, "outcome", ticket)
        try:
            return Outcome(**json.loads(self._kept.get(name_of(*bound), *bound)))
        except CursorInvalid:
            return Outcome("waiting")

    async def finished(self, ticket: str, caller: Caller, within_s: float) -> Outcome:
        """Return what became of a sign-in of this caller, or that it still waits after this time.

        Raises:
            CursorsUnavailable: the store does not answer.
        """
        outcome = await run_sync(self.outcome, ticket, caller)
        with anyio.move_on_after(within_s):
            while outcome.is_waiting:
                await anyio.sleep(_POLL_S)
                outcome = await run_sync(self.outcome, ticket, caller)
        return outcome

    async def _run(
        self, flow: _Flow, oauth: OAuthServer, challenge: Challenge, caller: Caller, address: str, scopes: str | None
    ) -> None:
        """Run a flow to its end; its outcome is kept for who asks."""
        name = new_name()

        async def show(url: str) -> None:
            state = parse_qs(urlsplit(url).query)["state"][0]
            bound = _bound(caller, "state", state)
            await run_sync(lambda: self._put(name.encode(), bound, name_of(*bound)))
            await run_sync(lambda: self._put(url.encode(), _bound(caller, "link"), name))
            flow.ticket.set_result(Ticket(name, f"{address}{START_PATH}/{name}", url))

        log = _log.bind(server=flow.server_id, caller=caller.name, owner=flow.owner or "service")
        outcome = Outcome("failed", "nobody came back in time")
        try:
            with anyio.move_on_after(LINK_S + _BEGIN_WITHIN_S):
                before = await in_store(self._sign_ins.get, flow.server_id, flow.owner)
                returned = self._returned_of(flow.server_id, caller, name)
                is_public = urlsplit(flow.redirect_url).scheme == "https"
                client_url = address + CLIENT_PATH if is_public else None
                authorization = Authorization(flow.redirect_url, show, returned, client_url, scopes)
                sign_in = await oauth.authorize(
                    flow.owner, challenge, before if before and before.url == oauth.url else None, authorization
                )
                await in_store(self._signed_in, sign_in)
                outcome = Outcome("signed in")
                log.info("signed_in")
        except ToolscaleError as error:
            outcome = Outcome("failed", str(error))
            log.warning("sign_in_failed", reason=str(error))
            if not flow.ticket.done():
                flow.ticket.set_exception(error)
                flow.ticket.exception()  # as above
        finally:
            bound = _bound(caller, "outcome", name)
            text = json.dumps({"state": outcome.state, "reason": outcome.reason}).encode()
            with anyio.CancelScope(shield=True), suppress(CursorsUnavailable):
                await run_sync(lambda: self._put(text, bound, name_of(*bound)))

    def _returned_of(self, server_id: str, caller: Caller, ticket: str) -> Callable[[], Any]:
        bound = _bound(caller, "returned", ticket)

        async def returned() -> AuthorizationCodeResult:
            while True:
                try:
                    given = json.loads(await run_sync(lambda: self._kept.take(name_of(*bound), *bound)))
                except (CursorInvalid, CursorsUnavailable):
                    await anyio.sleep(_POLL_S)
                    continue
                if "code" not in given:
                    why = quoted(str(given.get("error_description") or given.get("error") or "no code")[:200])
                    raise ServerAuthRequired(server_id, f"its authorization server refused the sign-in: {why}")
                return AuthorizationCodeResult(code=given["code"], state=given.get("state"), iss=given.get("iss"))

        return returned

    def _put(self, entry: bytes, bound: tuple[str, ...], name: str) -> None:
        self._kept.put(entry, *bound, name=name, ttl_s=LINK_S)

    def _signed_in(self, sign_in: SignIn) -> None:
        self._sign_ins.put(sign_in)
        self._on_change(sign_in.server_id)

    def end(self, server_id: str, owner: str) -> bool:
        """End a sign-in, and return whether there was one; blocks.

        Raises:
            SignInsUnavailable: the store does not answer.
        """
        was_there = self._sign_ins.end(server_id, owner)
        if was_there:
            self._on_change(server_id)
        return was_there


def _bound(caller: Caller, *about: str) -> tuple[str, ...]:
    return caller.identity, "sign-in", *about
