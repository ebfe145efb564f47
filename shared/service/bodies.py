"""The bodies of requests: a deadline for each, and one budget of bytes for all that are held at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from starlette.exceptions import HTTPException

from shared.service.connections import address_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BUDGET_BYTES = 64 << 20
"""Bytes of large bodies in a process; parsed, they take several times as many."""
SMALL_BYTES = 64 << 10
"""A body of this size does not count: the limit on connections bounds their sum."""
BODY_WITHIN_S = 10.0
"""Seconds to the end of a body, and one more for each BYTES_PER_S."""
BYTES_PER_S = 256 << 10

_RETRY_AFTER_S = 1
_OVER_BUDGET = "too many large requests are in progress; send this one again"
# As large as the largest body that a route accepts.
_DISCARDED_BYTES = 4 << 20


class BodyBudget:
    """The bytes of large bodies in memory: a holder has at most half of the budget."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._held: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all holders."""
        return self._held.total()

    def take(self, holder: str, size_bytes: int) -> bool:
        """Count these bytes for the holder and return True, or return False if they exceed the budget or its half."""
        is_over = self.held_bytes + size_bytes > self._budget_bytes
        if is_over or self._held[holder] + size_bytes > self._budget_bytes // 2:
            return False
        self._held[holder] += size_bytes
        return True

    def release(self, holder: str, size_bytes: int) -> None:
        """Count these bytes no longer."""
        self._held[holder] -= size_bytes
        if not self._held[holder]:
            del self._held[holder]


class BodyLimits:
    """ASGI: passes requests on; `receive` raises HTTPException where a body is too slow or exceeds the budget.

    The bytes of a body count until the request is answered: the application holds them, or the parsed values.
    """

    def __init__(self, app: ASGIApp, budget_bytes: int = BUDGET_BYTES, *, body_within_s: float = BODY_WITHIN_S) -> None:
        self._app = app
        self._budget = BodyBudget(budget_bytes)
        self._body_within_s = body_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with _body(self._budget, scope) as body:
            await self._app(scope, _limited(receive, body, self._body_within_s), send)


class _Body:
    """The body of one request as far as it was received; `holder` is known when its caller is."""

    def __init__(self, budget: BodyBudget, scope: Scope) -> None:
        self._budget = budget
        self._scope = scope
        self._holder: str | None = None
        self._counted_bytes = 0
        self._is_refused = False
        self.size_bytes = 0
        self.is_complete = False

    def add(self, message: Message) -> bool:
        """Count a message of the body, and return whether the budget allows the body so far."""
        self.size_bytes += len(message.get("body", b""))
        self.is_complete = not message.get("more_body", False)
        self._is_refused = self._is_refused or (self.size_bytes > SMALL_BYTES and not self._is_counted())
        return not self._is_refused

    def release(self) -> None:
        if self._holder is not None:
            self._budget.release(self._holder, self._counted_bytes)

    def _is_counted(self) -> bool:
        holder = self._holder = self._holder or _holder_of(self._scope)
        more_bytes = self.size_bytes - self._counted_bytes
        if not self._budget.take(holder, more_bytes):
            return False
        self._counted_bytes += more_bytes
        return True


@contextmanager
def _body(budget: BodyBudget, scope: Scope) -> Generator[_Body]:
    body = _Body(budget, scope)
    try:
        yield body
    finally:
        body.release()


def _limited(receive: Receive, body: _Body, within_s: float) -> Receive:
    """Return a `receive` that counts the messages of the body, until it is complete."""
    began_at_s: float | None = None

    async def receive_in_time() -> Message:
        nonlocal began_at_s
        now_s = anyio.current_time()
        began_at_s = now_s if began_at_s is None else began_at_s
        try:
            with anyio.fail_after(max(began_at_s + within_s + body.size_bytes / BYTES_PER_S - now_s, 0)):
                return await receive()
        except TimeoutError as error:
            reason = f"expected the body within {within_s:g} s, or {BYTES_PER_S} bytes of it a second"
            raise HTTPException(408, reason, {"Connection": "close"}) from error

    async def receive_within_limits() -> Message:
        if body.is_complete:
            return await receive()  # returns when the client disconnects
        while not body.add(message := await receive_in_time()):
            # many clients read the response only after they have sent the body
            if body.is_complete or body.size_bytes > _DISCARDED_BYTES:
                raise HTTPException(503, _OVER_BUDGET, {"Retry-After": str(_RETRY_AFTER_S)})
        return message

    return receive_within_limits


def _holder_of(scope: Scope) -> str:
    """Return the name of the caller, else the address of the client."""
    user = scope.get("user")  # of Starlette, once the caller is authenticated
    client = scope.get("client")
    return f"caller {user.display_name}" if user else address_of(client[0] if client else None)
