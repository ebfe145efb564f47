"""Items that no worker can run, for the list that is Celery's queue in Redis, each with how its refusal begins."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from workers.tasks import ACCEPT_EVENT

EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "x",
    "type": "dev.toolscale.server.down",
    "data": {"server_id": "s"},
}
NOTHING_AFTER: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
PROPER_BODY: list[Any] = [[EVENT], {}, NOTHING_AFTER]


def message(decoded_body: object = PROPER_BODY, /, **changes: Any) -> dict[str, Any]:
    """Return a task message as Celery sends it, with these members changed."""
    task_id = str(uuid.uuid4())
    properties = {
        "delivery_tag": str(uuid.uuid4()),
        "delivery_info": {"exchange": "", "routing_key": "toolscale"},
        "body_encoding": "base64",
    }
    return {
        "body": base64.b64encode(json.dumps(decoded_body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": ACCEPT_EVENT, "id": task_id, "timelimit": [None, None], "retries": 0},
        "properties": properties,
        **changes,
    }


def with_header(name: str, value: object) -> dict[str, Any]:
    """Return a task message with this header."""
    proper = message()
    return {**proper, "headers": {**proper["headers"], name: value}}


def with_property(name: str, value: object) -> dict[str, Any]:
    """Return a task message with this property."""
    proper = message()
    return {**proper, "properties": {**proper["properties"], name: value}}


def without(name: str) -> dict[str, Any]:
    """Return a task message that lacks this member."""
    return {key: value for key, value in message().items() if key != name}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no properties": (without("properties"), "properties: "),
    "no body": (without("body"), "body: "),
    "no headers": (without("headers"), "headers: "),
    "headers a list": (message(headers=[]), "headers: "),
    "body the event itself": (message(EVENT), "body: expected a list"),
    "body a list of the event": (message([EVENT]), "body: expected a list"),
    "body a number": (message(5), "body: expected a list"),
    "body of wrong parts": (message(json.loads("[{}, [], null]")), "body.args: "),
    "body not base64": (message(body="a"), "body: expected base64"),
    "body not JSON": (message(body=base64.b64encode(b"{").decode()), "body: expected JSON"),
    "body not text": (message(body={"args": []}), "body: "),
    "body nested deeply": (message(body=base64.b64encode(b"[" * 200_000).decode()), "body: expected JSON"),
    "arguments nested deeply": (message(json.loads("[" * 200 + "]" * 200)), "body: "),
    "callbacks": (message([[EVENT], {}, {"callbacks": [{"task": "x"}]}]), "body.embedded.callbacks: "),
    "no delivery tag": (with_property("delivery_tag", None), "properties.delivery_tag: "),
    "delivery tag a list": (with_property("delivery_tag", []), "properties.delivery_tag: "),
    "delivery info null": (with_property("delivery_info", None), "properties.delivery_info: "),
    "delivery info empty": (with_property("delivery_info", {}), "properties.delivery_info.exchange: "),
    "unknown body encoding": (with_property("body_encoding", "rot13"), "properties.body_encoding: "),
    "id an object": (with_header("id", {}), "headers.id: "),
    "task a list": (with_header("task", []), "headers.task: "),
    "time limit a word": (with_header("timelimit", "soon"), "headers.timelimit: "),
    "time limit of words": (with_header("timelimit", ["a", "b"]), "headers.timelimit.0"),
    "time limit of one": (with_header("timelimit", [1]), "headers.timelimit: "),
    "eta no time": (with_header("eta", "tomorrow"), "headers.eta: "),
    "expiry out of range": (with_header("expires", "0001-01-01T00:00:00+14:00"), "headers.expires: "),
    "name an object": (with_header("shadow", {}), "headers.shadow: "),
    "compressed": (with_header("compression", "gzip"), "headers.compression: "),
    "header that hides a method": (with_header("get", 5), "headers: a header may not be named get"),
    "another content type": (message(**{"content-type": ["json"]}), "content-type: "),
    "another encoding": (message(**{"content-encoding": "rot13"}), "content-encoding: "),
}
"""Messages that are JSON and that Celery cannot take."""

GARBAGE: dict[str, tuple[str | bytes, str]] = {
    "text": ("not JSON", "expected JSON"),
    "no UTF-8": (b"\xff\xfe", "expected UTF-8"),
    "a list": ("[]", "expected a Celery message: message: "),
    "a number": ("42", "expected a Celery message: message: "),
    "nested deeply": ("[" * 200_000, "expected JSON: it is nested too deeply"),
    "a typed value that is none": ('{"__type__": "uuid", "__value__": 5}', "expected JSON"),
    "too large": ('"' + "a" * (1 << 20) + '"', "expected at most 1048576 bytes"),
    **{name: (json.dumps(item), f"expected a Celery message: {reason}") for name, (item, reason) in REFUSED.items()},
}
