"""Guards between Celery and Redis: a worker outlives an item that is no message, and a lost connection.

In kombu, a list item that cannot be decoded ends the whole worker and is lost. Only Toolscale's services may write to
Redis, so nothing else of a message is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import structlog
from celery import signals
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import SentinelTransport, Transport
from kombu.utils.json import loads
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.errors import ToolscaleError
from shared.intents.intents import Intents

_LETTER_CHARACTERS = 1 << 20
_REASON_CHARACTERS = 500

OnInvalidItem = Callable[[str, str], None]
"""Called with the reason and the item."""


def keep_refused_messages(intents: Callable[[], Intents]) -> None:
    """Store items that are no messages, and messages of unknown tasks, as dead letters of this worker process."""

    def add_dead_letter(reason: str, body: str) -> None:
        reason = reason[:_REASON_CHARACTERS].encode(errors="replace").decode()  # the reason may quote half a character
        try:
            intents().add_dead_letter(reason, body)
        except ToolscaleError as error:
            structlog.get_logger().error("dead_letter_lost", reason=reason, error=str(error))
        else:
            structlog.get_logger().warning("message_refused", reason=reason)

    def on_unknown(name: str = "", message: Any = None, **_: Any) -> None:
        add_dead_letter(f"task: no task is named {name!r}", str(getattr(message, "body", "")))

    def on_rejected(message: Any = None, exc: object = None, **_: Any) -> None:
        add_dead_letter(f"message: {exc or 'not a Celery task message'}", str(getattr(message, "body", "")))

    guard_transport(add_dead_letter)
    signals.task_unknown.connect(on_unknown, weak=False)
    signals.task_rejected.connect(on_rejected, weak=False)


def guard_transport(on_invalid: OnInvalidItem) -> None:
    """Make the Redis brokers of this process, also with Sentinels, pass invalid items to `on_invalid`."""
    aliases = cast("dict[str, Any]", TRANSPORT_ALIASES)  # a callable is allowed, and called
    alone, with_sentinels = _guarded(Transport, on_invalid), _guarded(SentinelTransport, on_invalid)
    aliases |= {"redis": lambda: alone, "rediss": lambda: alone, "sentinel": lambda: with_sentinels}


def _guarded(transport: Any, on_invalid: OnInvalidItem) -> type[Transport]:
    """Return a subclass of this transport that passes invalid items to `on_invalid`."""

    def checked_item(reply: Any, **_: Any) -> Any:
        """Return the item; report an invalid one and return None, as for an empty queue."""
        if isinstance(reply, bytes) and (reason := _problem(reply)):
            on_invalid(reason, reply[:_LETTER_CHARACTERS].decode("utf-8", "replace"))
            return None
        return reply

    def checked_pop(reply: Any, **_: Any) -> Any:
        """Return the reply of a blocking pop; for an invalid item None, as after a timeout."""
        return reply if reply and checked_item(reply[1]) is not None else None

    class _GuardedChannel(transport.Channel):  # type: ignore[misc]  # chosen by the caller
        _kept_client: Any = None

        def _create_client(self, asynchronous: bool = False) -> Any:
            """Return a client with the checks: the only place that gets an item before kombu decodes it.

            kombu makes one for each command, which took a twelfth of a worker's time; a channel keeps its own.
            """
            connection = self.connection
            if connection is None or connection.client is None:
                # After Redis was lost, kombu acknowledges messages on closed channels. The AttributeError of that
                # would end the worker; it connects again after this error.
                raise RedisConnectionError("the connection of this channel was closed")
            if self._kept_client and not asynchronous and self._kept_client.connection_pool is self.pool:
                return self._kept_client
            create = cast("Callable[[bool], Any]", super()._create_client)
            client = create(asynchronous)
            client.set_response_callback("BRPOP", checked_pop)
            client.set_response_callback("RPOP", checked_item)
            if not asynchronous:
                self._kept_client = client
            return client

    class _GuardedTransport(transport):  # type: ignore[misc]
        Channel = _GuardedChannel

    return _GuardedTransport


def _problem(item: bytes) -> str | None:
    """Return why kombu could not decode an item, None if it could."""
    try:
        message = loads(item)
    except RecursionError:
        return "expected JSON: it is nested too deeply"
    except UnicodeDecodeError:
        return "expected UTF-8"
    # ArithmeticError comes from kombu's typed values
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        return f"expected JSON: {error}"
    properties = cast("dict[str, Any]", message).get("properties") if isinstance(message, dict) else None
    # the transport keeps a taken message under its delivery tag
    is_message = isinstance(properties, dict) and "delivery_tag" in properties
    return None if is_message else "expected a Celery message"
