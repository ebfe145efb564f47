"""The access tokens of requests to servers: refreshed before they expire, by one process of all."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import anyio
import structlog
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from shared.errors import ServerError, ServerTimeout
from shared.upstream.auth import SERVICE, Challenge
from shared.upstream.sign_ins import LEASE_S, SignIn, SignIns, entry_name

if TYPE_CHECKING:
    from shared.upstream.auth import MachineIdentity
    from shared.upstream.oauth import OAuthServer

# A server that refuses a token which is that new does so for another reason than its age.
_NEW_S = 30.0
_POLL_S = 0.1

RENEWED_WITHIN_S = LEASE_S * 5 / 6
"""A slower authorization server would give tokens to two processes."""

# A silent store keeps its threads for seconds; those of all other work have to go on.
_THREADS = 16
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("sign_in_threads")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = structlog.get_logger()


async def in_store(read: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Return the result of `read`, called in a thread for the store of sign-ins."""
    try:
        limiter = _limiter.get()
    except LookupError:
        _limiter.set(limiter := anyio.CapacityLimiter(_THREADS))
    return await run_sync(read, *arguments, limiter=limiter)


class AccessTokens:
    """The access tokens of one caller for one server, or of the service.

    `machine` reads the machine identity that signs the service in by itself. With `borrows`, the service has, without
    a sign-in of its own, that of the caller who signed in first. `login` is the command that signs in.
    """

    def __init__(
        self,
        sign_ins: SignIns,
        server: OAuthServer,
        caller: str = SERVICE,
        machine: Callable[[], MachineIdentity] | None = None,
        *,
        borrows: bool = False,
        login: str = "",
    ) -> None:
        self.caller = caller
        self.login = login or f"toolscale login {server.server_id}"
        self._sign_ins, self._server, self._machine, self._borrows = sign_ins, server, machine, borrows
        self._identity: str | None = None

    async def identity(self) -> str:
        """Return a name of the sign-in, which a refresh keeps; from now on, the tokens are of this sign-in alone.

        Raises:
            SignInsUnavailable: the store does not answer.
        """
        self._identity = self._named(await self._read())
        return self._identity

    async def have_ended(self) -> bool:
        """Return whether the sign-in of `identity` was ended, or replaced by another.

        Raises: as `identity`.
        """
        return self._named(await self._read()) != self._identity

    async def current(self) -> str | None:
        """Return the access token, refreshed if it expires soon; None without a sign-in.

        Raises:
            ServerError: the authorization server does not answer, and the token has expired.
            SignInsUnavailable: the store does not answer.
        """
        sign_in = await self._read()
        if sign_in is not None and sign_in.is_due(time.time()):
            challenge = Challenge(HTTPStatus.UNAUTHORIZED, sign_in.challenge) if sign_in.challenge else None
            sign_in = await self._renewed(sign_in, challenge)
        return _token(sign_in)

    def is_signed_in(self) -> bool:
        """Return whether there is a sign-in for this URL; blocks.

        Raises:
            SignInsUnavailable: the store does not answer.
        """
        return _token(self._stored()) is not None

    async def after_refusal(self, refused: str | None, challenge: Challenge) -> str | None:
        """Return another token than the one that the server has just refused; None if only a person can get one.

        Raises: as `current`.
        """
        sign_in = await self._read()
        if _token(sign_in) not in (None, refused):
            return _token(sign_in)
        if sign_in is None and self._machine is None:
            return None
        # a token of the future is not new: the clock went back, or is that of another machine
        if sign_in and sign_in.tokens and abs(time.time() - sign_in.renewed_at) < _NEW_S:
            return None
        return _token(await self._renewed(sign_in, challenge))

    async def are_offered(self) -> bool:
        """Return whether the server publishes where tokens are given."""
        return await self._server.offers_sign_in()

    async def _read(self) -> SignIn | None:
        return await in_store(self._stored)

    def _stored(self) -> SignIn | None:
        """Return the sign-in for this URL: tokens of a server that has moved go to no other place."""
        server_id, url = self._server.server_id, self._server.url
        sign_in = self._sign_ins.get(server_id, self.caller)
        if (sign_in is None or sign_in.tokens is None) and self._borrows:
            others = [each for each in self._sign_ins.all() if (each.server_id, each.url) == (server_id, url)]
            sign_in = min(others, key=lambda each: each.since, default=None)
        if sign_in is None or sign_in.url != url or self._identity not in (None, self._named(sign_in)):
            return None
        return sign_in

    def _named(self, sign_in: SignIn | None) -> str:
        if self._machine and (sign_in is None or sign_in.challenge):
            return "machine"  # it signs in by itself, each time as the same
        return f"{sign_in.caller} {sign_in.since}" if sign_in and sign_in.tokens else ""

    async def _renewed(self, before: SignIn | None, challenge: Challenge | None) -> SignIn | None:
        """Return the sign-in with new tokens; another process may be the one that gets them."""
        async with self._lease(before.caller if before else self.caller, before) as is_held:
            now = await self._read()
            if not is_held or now != before:
                return now
            reason = f"its authorization server gave no token within {RENEWED_WITHIN_S:g} s"
            failure: ServerError = ServerTimeout(self._server.server_id, reason)
            try:
                # the authorization server gives each refresh token once: a cancelled call must not lose the next one
                with anyio.CancelScope(shield=True), anyio.fail_after(RENEWED_WITHIN_S):
                    return await self._renew(before, challenge)
            except ServerError as error:
                failure = error
            except TimeoutError:
                pass
            if before and before.expires_at and time.time() < before.expires_at:
                return before  # the next request tries again
            raise failure

    async def _renew(self, before: SignIn | None, challenge: Challenge | None) -> SignIn | None:
        """Return the sign-in with new tokens, which are stored; None where a person has to sign in again."""
        after = await self._server.refresh(before) if before and before.tokens else None
        if after is None and self._machine and challenge and (before is None or before.caller == SERVICE):
            after = await self._server.identify(await in_store(self._machine), challenge)
        if after:
            await in_store(self._put, before, after)
            return await self._read()
        if before and before.tokens and before.tokens.refresh_token:
            _log.warning("sign_in_ended", server=before.server_id, caller=before.caller or None)
            await in_store(self._sign_ins.replace, before, before.model_copy(update={"tokens": None}))
        return None

    def _put(self, before: SignIn | None, after: SignIn) -> None:
        if before is None:
            self._sign_ins.put(after)
        else:
            self._sign_ins.replace(before, after)

    @asynccontextmanager
    async def _lease(self, owner: str, before: SignIn | None) -> AsyncGenerator[bool]:
        """Hold the lease of a sign-in, or wait until another process has changed it: False.

        Raises:
            ServerTimeout: neither came in time.
        """
        name, holder, entries = entry_name(self._server.server_id, owner), uuid.uuid4().hex, self._sign_ins.entries
        deadline = anyio.current_time() + 2 * LEASE_S
        while not await in_store(entries.try_lease, name, holder):
            await anyio.sleep(_POLL_S)
            if await self._read() != before:
                yield False
                return
            if anyio.current_time() > deadline:
                raise ServerTimeout(self._server.server_id, "its access token is being refreshed for too long")
        try:
            yield True
        finally:
            with anyio.CancelScope(shield=True):
                await in_store(entries.release, name, holder)


def _token(sign_in: SignIn | None) -> str | None:
    return sign_in.tokens.access_token if sign_in and sign_in.tokens else None
