"""The notification processes that share the servers: each has a place in Redis that expires without its heartbeat."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from shared.errors import IntentsUnavailable
from shared.service.redis import connect, redis_errors

if TYPE_CHECKING:
    import redis

    from shared.settings import Settings

MEMBERS = "toolscale:listeners"
# Several polls: a member that misses one or two keeps its servers.
EXPIRY_S = 10.0

# Redis's clock, so that all members agree on the expired ones.
_HEARTBEAT = """
local now = redis.call('TIME')
local now_s = now[1] + now[2] / 1000000
redis.call('ZADD', KEYS[1], now_s + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now_s)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class Membership(Protocol):
    """The place of this process among those that share the servers. Both methods raise IntentsUnavailable."""

    member: str

    def heartbeat(self) -> frozenset[str]:
        """Join, or stay for another `EXPIRY_S`; return all members, which include this one."""
        ...

    def leave(self) -> None:
        """Leave at once, so that the other members take over without a wait."""
        ...


class SoleMember(Membership):
    """The only process, of the embedded composition."""

    member = "sole"

    @override
    def heartbeat(self) -> frozenset[str]:
        return frozenset({self.member})

    @override
    def leave(self) -> None:
        """Do nothing."""


class RedisMembership(Membership):
    """A place among the members in Redis, under a new random name."""

    def __init__(self, client: redis.Redis, expiry_s: float = EXPIRY_S) -> None:
        self.member = uuid.uuid4().hex
        self._redis = client
        self._expiry_s = expiry_s
        self._heartbeat = client.register_script(_HEARTBEAT)

    @override
    def heartbeat(self) -> frozenset[str]:
        with redis_errors(IntentsUnavailable):
            return frozenset(map(str, self._heartbeat(keys=[MEMBERS], args=[self.member, self._expiry_s])))

    @override
    def leave(self) -> None:
        with redis_errors(IntentsUnavailable):
            self._redis.zrem(MEMBERS, self.member)


def membership_of(settings: Settings) -> Membership:
    """Return the place of this process, in the Redis of the intents if there is one."""
    return RedisMembership(connect(settings.redis_url)) if settings.redis_url else SoleMember()
