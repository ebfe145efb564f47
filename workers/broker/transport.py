"""A Redis transport that survives invalid messages.

In kombu, a list item that is no JSON message ends the whole worker and is lost. Celery does the same with an
unexpected task message. This transport passes such an item to `on_invalid`, and the worker continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import structlog
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, SentinelTransport, Transport
from kombu.utils.json import dumps, loads
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.broker.message import MessageRefused, check_message, check_task

MAX_MESSAGE_BYTES = 1 << 20
QUEUE_LIMIT = 10_000
"""Messages that wait or are taken, at which a process of ours sends no further ones; a sweep sends them later."""

_PUT = """
if redis.call('LLEN', KEYS[1]) + redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[1]) then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[2])
return 1
"""

_log = structlog.get_logger()

OnInvalidItem = Callable[[str, str], None]
"""Called with the reason and the item."""


def guard_transport(on_invalid: OnInvalidItem) -> None:
    """Make the Redis brokers of this process, also with Sentinels, pass invalid items to `on_invalid`."""
    aliases = cast("dict[str, Any]", TRANSPORT_ALIASES)  # a callable is allowed, and called
    alone, with_sentinels = _guarded(Transport, on_invalid), _guarded(SentinelTransport, on_invalid)
    aliases |= {"redis": lambda: alone, "rediss": lambda: alone, "sentinel": lambda: with_sentinels}


class _LimitedQueue(Channel):
    """A channel that sends no task to a full queue, except a retried one, whose event may not be recorded yet.

    It keeps its client: kombu makes one for each command, with all callbacks.
    """

    _kept_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        create, channel = cast("Any", super())._create_client, cast("Any", self)
        if asynchronous:
            return create(asynchronous)
        if self._kept_client is None or self._kept_client.connection_pool is not channel.pool:
            self._kept_client = create(asynchronous)
        return self._kept_client

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        headers = message.get("headers", {})
        if _is_between_workers(queue) or headers.get("retries"):
            cast("Any", super())._put(queue, message, **options)
            return
        channel = cast("Any", self)
        with channel.conn_or_acquire() as client:
            is_put = client.eval(_PUT, 2, queue, channel.unacked_key, QUEUE_LIMIT, dumps(message))
        if not is_put:
            _log.warning("message_not_sent", task=headers.get("task"), limit=QUEUE_LIMIT)


def _guarded(transport: Any, on_invalid: OnInvalidItem) -> type[Transport]:
    """Return a subclass of this transport that passes invalid items to `on_invalid`."""

    def checked_pop(reply: Any, **_: Any) -> Any:
        return _checked_pop(reply, on_invalid)

    def checked_item(reply: Any, **_: Any) -> Any:
        return _checked_item(reply, on_invalid)

    class _GuardedChannel(_LimitedQueue, transport.Channel):  # type: ignore[misc]  # chosen by the caller
        def _create_client(self, asynchronous: bool = False) -> Any:
            _assert_open(self)
            client = super()._create_client(asynchronous)
            # the only hook that gets an item before kombu parses it
            client.set_response_callback("BRPOP", checked_pop)
            client.set_response_callback("RPOP", checked_item)
            return client

    class _GuardedTransport(transport):  # type: ignore[misc]
        Channel = _GuardedChannel

        def _deliver(self, message: Any, queue: str | None) -> None:
            try:
                (check_message if _is_between_workers(queue or "") else check_task)(message)
            except MessageRefused as error:
                on_invalid(f"expected a Celery message: {error}", _text(message))
            else:
                super()._deliver(message, queue)

    return _GuardedTransport


def _assert_open(channel: Channel) -> None:
    """Raise the error by which kombu recognises a lost connection; its own AttributeError ends the worker.

    After Redis was lost, kombu acknowledges messages on closed channels, and closes channels again.
    """
    connection = cast("Any", channel).connection
    if connection is None or connection.client is None:
        raise RedisConnectionError("the connection of this channel was closed")


def _checked_pop(reply: Any, on_invalid: OnInvalidItem) -> Any:
    """Return the reply of a blocking pop; for an invalid item None, as after a timeout."""
    if not reply:
        return None
    key, item = reply
    return None if _checked_item(item, on_invalid) is None else (key, item)


def _checked_item(item: Any, on_invalid: OnInvalidItem) -> Any:
    """Return the item; report an invalid item and return None, as for an empty queue."""
    if not isinstance(item, bytes):
        return item
    if reason := _parse_problem(item):
        on_invalid(reason, item[:MAX_MESSAGE_BYTES].decode("utf-8", "replace"))
        return None
    return item


def _parse_problem(item: bytes) -> str | None:
    if len(item) > MAX_MESSAGE_BYTES:
        return f"expected at most {MAX_MESSAGE_BYTES} bytes, got {len(item)}"
    try:
        loads(item)
    except RecursionError:
        return "expected JSON: it is nested too deeply"
    except UnicodeDecodeError:
        return "expected UTF-8"
    except (
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ) as error:  # ArithmeticError comes from kombu's typed values
        return f"expected JSON: {error}"
    return None


def _text(message: object) -> str:
    try:
        return str(message)
    except RecursionError:
        return "(nested too deeply to be shown)"


def _is_between_workers(queue: str) -> bool:
    """Return whether a queue carries Celery's remote control or events, not tasks."""
    return queue.endswith("celery.pidbox") or queue.startswith("celeryev")
