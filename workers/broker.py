"""A Redis transport that survives a message that is no message.

kombu lets one list item that is not JSON, or not a message, end the whole worker, the item lost with it.
Here such an item is handed to `on_garbage` and the worker goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from json import JSONDecodeError
from queue import Empty
from typing import Any, cast

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, Transport

OnGarbage = Callable[[str, str], None]
"""Called with the reason and the item."""


def survive_garbage(on_garbage: OnGarbage) -> None:
    """Make the `redis://` and `rediss://` brokers of this process pass garbage to `on_garbage` and go on."""

    class GuardedChannel(Channel):
        def _brpop_read(self, **options: Any) -> Any:
            read = cast("Callable[..., Any]", super()._brpop_read)  # type: ignore[misc]  # the stubs leave it out
            return _or_empty(lambda: read(**options), on_garbage)

        def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002  # kombu's Redis takes none
            read = super()._get
            return _or_empty(lambda: read(queue), on_garbage)

    class GuardedTransport(Transport):
        Channel = GuardedChannel

        def _deliver(self, message: Any, queue: str | None) -> None:
            if _is_message(message):
                super()._deliver(message, queue)
            else:
                on_garbage("expected a Celery message with delivery properties", str(message))

    aliases = cast("dict[str, Any]", TRANSPORT_ALIASES)  # a callable is allowed, and called
    for scheme in ("redis", "rediss"):
        aliases[scheme] = lambda: GuardedTransport


def _or_empty(read: Callable[[], Any], on_garbage: OnGarbage) -> Any:
    """Return what was read; where it cannot be decoded, report it and say that the queue was empty this time."""
    try:
        return read()
    except JSONDecodeError as error:
        on_garbage(f"expected JSON: {error.msg}", error.doc)
    except UnicodeDecodeError as error:
        on_garbage("expected UTF-8", error.object.decode("utf-8", "replace"))
    raise Empty


def _is_message(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    properties = cast("dict[str, Any]", message).get("properties")
    return isinstance(properties, dict) and "delivery_tag" in properties and "delivery_info" in properties
