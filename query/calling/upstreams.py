"""Requests to the servers that own the tools: another replica is tried where the first one fails.

A request that was certainly not sent may always be tried again. One that may have been carried out is sent again only
if its tool declares that a repetition changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import structlog

from query.calling.choice import CircuitBreaker, ReplicaChoice
from query.calling.connection import CallDeadline, Connection, ResultT, Send
from query.calling.dialogue import WaitingCalls
from query.calling.limits import Admission, CallLimits
from query.calling.sessions import Authenticate, CallResources, Dial, Sessions
from query.kept import Kept
from shared.catalog import ServerRecord
from shared.errors import (
    PERHAPS_CARRIED_OUT,
    CallsExhausted,
    Delivery,
    ReplicasFailed,
    ServerError,
    ServerUnreachable,
)
from shared.upstream.target import STDIO_START_TIMEOUT_S

if TYPE_CHECKING:
    from shared.catalog import ToolDefinition
    from shared.settings import Settings
    from shared.upstream.auth import Requester
    from shared.upstream.dial import Dialler

# One of these shares of the remaining time limits the connection to a replica, while others are left.
CONNECT_SHARES = 3
# A longer list of failures would fill the caller's context.
FAILURES_SHOWN = 10

_log = structlog.get_logger()


class Upstreams:
    """Sends calls of tools and reads of resources to the servers that own them. Only for one event loop at a time."""

    def __init__(
        self,
        resolve_target: Dial,
        limits: CallLimits,
        authenticate: Authenticate = lambda target, _server, _labels, _requester: target,
        kept: Kept | None = None,
        *,
        on_tools_changed: Callable[[str], None] = lambda _: None,
        has_replicas: bool = False,
    ) -> None:
        """The first call of a server opens the connection to it; `kept` has the sessions that replicas share.

        `on_tools_changed` and `has_replicas` are those of `Sessions`.
        """
        self.per_caller = limits.per_caller
        self.admission = Admission(limits.per_caller, limits.large_at_once)
        self.waiting = WaitingCalls()
        self._timeout_s = limits.timeout_s
        self._sessions = Sessions(
            resolve_target,
            authenticate,
            limits,
            self.admission,
            kept or Kept(),
            on_tools_changed=on_tools_changed,
            has_replicas=has_replicas,
        )
        self._has_replicas = has_replicas
        self._breaker = CircuitBreaker()
        self._choice = ReplicaChoice(self._breaker, keep_s=limits.idle_s)
        self._blocks = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """End all calls, connections and child processes with the block; with the last one, where blocks overlap."""
        self._blocks += 1
        self.loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._blocks -= 1
            if self._blocks == 0:
                self.loop = None
                self.waiting.end_all()
                with anyio.CancelScope(shield=True):  # a cancelled server must not leave a process behind
                    await self._sessions.aclose()

    @property
    def has_connections(self) -> bool:
        """Return whether a connection to a server is open, opens or ends."""
        return self._sessions.has_connections

    def listed(self, server: ServerRecord) -> AbstractAsyncContextManager[Connection]:
        """Return the connection to a stdio server for a listing; see `Sessions.listed`."""
        return self._sessions.listed(server)

    async def session_tool(self, name: str, server: ServerRecord, requester: Requester) -> ToolDefinition | None:
        """Return the tool that a server has in the session that a call of the requester would use; None without either.

        Raises:
            ServerError: there is no allowed target, or the session's tools cannot be listed.
        """
        return await self._sessions.tool_named(name, server, requester)

    async def call(
        self,
        send: Send[ResultT],
        replicas: Sequence[ServerRecord],
        resources: CallResources,
        *,
        is_repeatable: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[ResultT, str]:
        """Send a request to one of these replicas; return the result and the server that returned it.

        `is_repeatable`: the tool declares that it changes nothing, or that a repetition changes nothing more.
        `timeout_s` is the time for the request in place of the usual one.
        Cancellation is sent to the server.

        Raises:
            ReplicasFailed: several replicas exist, and none of those tried answered.
            ServerError: the only replica failed, or a replica answered with an error.
            CallsExhausted: too many large results in memory, or no connection is free and none leads to a replica.
        """
        resources = replace(resources, is_repeatable=is_repeatable)
        timeout_s = timeout_s or self._timeout_s
        limit = CallDeadline(timeout_s, anyio.current_time() + timeout_s)
        if len(replicas) == 1:
            return await self._attempt(send, replicas[0], resources, limit)
        self._start_probe(replicas)
        left: list[ServerRecord] = list(replicas)
        failures, stopped = list[ServerError](), ""
        while left and not stopped:
            try:
                return await self._attempt_best(send, left, resources, limit)
            except CallsExhausted as error:
                if not _is_unsent(failures):
                    error.delivery = Delivery.UNKNOWN
                raise
            except ServerError as error:
                if error.delivery is Delivery.ANSWERED:
                    raise
                failures.append(error)
            left = [replica for replica in left if replica.server_id != failures[-1].server_id]
            stopped = _reason_to_stop(failures[-1], limit.answer_by, is_repeatable=is_repeatable)
            if left and not stopped:
                resources.on_failover(failures[-1])
        others = "other replica was" if len(left) == 1 else "other replicas were"
        raise _replicas_failed(failures, f"{len(left)} {others} not tried, since {stopped}" if left else "")

    async def _attempt_best(
        self, send: Send[ResultT], replicas: Sequence[ServerRecord], resources: CallResources, limit: CallDeadline
    ) -> tuple[ResultT, str]:
        """Try the best of these replicas; if no connection is free for it, the best of those with a connection."""
        deadline = _deadline(limit, len(replicas))
        try:
            await self._recall(replicas, resources.session)
            replica = self._choice.choose(replicas, resources.session)
            return await self._attempt_observed(send, replica, resources, deadline)
        except CallsExhausted:
            requester, sessions = resources.requester, self._sessions
            connected = [other for other in replicas if sessions.has_connection(other.server_id, requester)]
            if deadline.is_connected or not connected:  # a connected call may have been sent
                raise
        replica = self._choice.choose(connected, resources.session)
        return await self._attempt_observed(send, replica, resources, _deadline(limit, len(replicas)))

    async def _attempt_observed(
        self, send: Send[ResultT], replica: ServerRecord, resources: CallResources, deadline: CallDeadline
    ) -> tuple[ResultT, str]:
        """Try one replica; the breaker and the next choice use the outcome."""
        began = anyio.current_time()
        try:
            answer = await self._attempt(send, replica, resources, deadline)
        except ServerError as error:
            if error.delivery is Delivery.ANSWERED:
                await self._note_answer(replica, resources)
            else:
                self._breaker.failed(replica.server_id)
            raise
        except anyio.get_cancelled_exc_class():
            if self._sessions.note_cancellation(replica.server_id, began, resources.slot, resources.requester):
                self._choice.give_up(resources.session, replica)
            raise
        await self._note_answer(replica, resources)
        return answer

    async def _attempt(
        self, send: Send[ResultT], replica: ServerRecord, resources: CallResources, deadline: CallDeadline
    ) -> tuple[ResultT, str]:
        with self._choice.count_call(replica.server_id):
            return await self._sessions.call(replica, send, resources, deadline), replica.server_id

    async def _note_answer(self, replica: ServerRecord, resources: CallResources) -> None:
        self._breaker.succeeded(replica.server_id)
        if not self._sessions.may_have_state(replica.server_id, resources.requester):
            return
        if self._choice.remember(resources.session, replica) and self._has_replicas:
            # before the answer: the caller's next call may reach another process
            await self._sessions.kept.note_replica(resources.session, replica.catalog_digest, replica.server_id)

    async def _recall(self, replicas: Sequence[ServerRecord], session: str) -> None:
        """Learn which replica has the session of a caller, of which another process of this service knows."""
        is_possible = self._has_replicas and any(map(self._sessions.may_assign, replicas))
        if not is_possible or self._choice.remembers(session, replicas):
            return
        last = await self._sessions.kept.last_replica(session, replicas[0].catalog_digest)
        for replica in replicas:
            if replica.server_id == last:
                self._choice.remember(session, replica)

    def _start_probe(self, replicas: Sequence[ServerRecord]) -> None:
        """Open a connection, in the background, to an avoided replica whose time is over."""
        due = self._breaker.begin_probe(replica.server_id for replica in replicas)
        for replica in replicas:
            if replica.server_id == due:
                self._sessions.start(self._probe(replica))

    async def _probe(self, replica: ServerRecord) -> None:
        is_open: bool | None = None
        try:
            await self._sessions.open(replica)
            is_open = True
        except ServerError:
            is_open = False
        except CallsExhausted:
            pass  # no connection is free for a probe
        except Exception:  # noqa: BLE001  # nobody awaits this task
            _log.exception("connection_failed", server=replica.server_id)
        finally:
            self._breaker.end_probe(replica.server_id, is_open=is_open)


def upstreams_of(
    settings: Settings, dialler: Dialler, kept: Kept, on_tools_changed: Callable[[str], None] = lambda _: None
) -> Upstreams:
    """Return the upstreams with the operator's limits; the others are those of `Upstreams`."""
    limits = CallLimits(
        timeout_s=settings.call_timeout_s,
        start_timeout_s=STDIO_START_TIMEOUT_S,
        max_connections=settings.call_max_connections,
        per_caller=settings.call_max_per_caller,
    )
    return Upstreams(
        dialler.target,
        limits,
        dialler.authenticated,
        kept,
        on_tools_changed=on_tools_changed,
        has_replicas=settings.redis_url is not None,
    )


def _deadline(limit: CallDeadline, replicas_left: int) -> CallDeadline:
    """Return the limits of an attempt, which leaves time to connect to the other replicas."""
    now = anyio.current_time()
    shares = min(replicas_left, CONNECT_SHARES)
    return CallDeadline(limit.timeout_s, limit.answer_by, now + (limit.answer_by - now) / shares)


def _is_unsent(failures: Sequence[ServerError]) -> bool:
    return all(failure.delivery is Delivery.NOT_SENT for failure in failures)


def _reason_to_stop(failure: ServerError, answer_by: float, *, is_repeatable: bool) -> str:
    """Return why no other replica is tried after this failure; empty: one is."""
    if not is_repeatable and failure.delivery is not Delivery.NOT_SENT:
        return "the tool declares neither readOnlyHint nor idempotentHint"
    return "no time was left" if anyio.current_time() >= answer_by else ""


def _replicas_failed(failures: Sequence[ServerError], others: str) -> ReplicasFailed:
    """Return the error that names each tried replica, and states once whether the call may have been carried out.

    `others` states why further replicas were not tried; empty: there are none.
    """
    last, is_unsent = failures[-1], _is_unsent(failures)
    verdict = "was not carried out" if is_unsent else PERHAPS_CARRIED_OUT
    tried = "; ".join(f"{failure.server_id}: {failure.reason}" for failure in failures[:FAILURES_SHOWN])
    more = f"; and {len(failures) - FAILURES_SHOWN} more" if len(failures) > FAILURES_SHOWN else ""
    if others:
        ends_in_call = isinstance(last, ServerUnreachable) and last.in_mid_call and not more
        reason = f"{tried}{more}{', which' if ends_in_call else '; the call'} {verdict}; {others}"
    else:
        reason = f"the call {verdict}; no replica answered: {tried}{more}"
    failed = ReplicasFailed(last.server_id, reason)
    return failed.with_delivery(Delivery.NOT_SENT if is_unsent else Delivery.UNKNOWN)
