"""The HTTP binding of CloudEvents 1.0: parses the events of a request, in each of its three content modes."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
BINARY = "application/json"
MEDIA_TYPES = (STRUCTURED, BATCH, BINARY)

MAX_BATCH = 1_000
"""Events of one request; the response has a line for each of them."""

_PREFIX = "ce-"

Document = dict[str, Any] | str
"""An unvalidated event: a JSON object, or the text of the request if it is none."""


class BatchTooLong(ValueError):
    """A batch has too many events."""


def media_type(content_type: str) -> str:
    """Return the type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def documents(headers: Mapping[str, str], body: bytes) -> list[Document]:
    """Return the documents of a request of one of MEDIA_TYPES, in order: one, or those of a batch.

    The recorder validates them, and stores invalid ones as dead letters. `headers` have lower-case names.

    Raises:
        BatchTooLong: the batch has more than `MAX_BATCH` events.
    """
    content_mode = media_type(headers.get("content-type", ""))
    if content_mode == BINARY:
        return [_attributes(headers) | {"datacontenttype": BINARY, "data": _parsed(body)}]
    parsed: object = _parsed(body)
    if content_mode == BATCH and isinstance(parsed, list):
        batch = cast("list[object]", parsed)
        if len(batch) > MAX_BATCH:
            raise BatchTooLong(f"expected at most {MAX_BATCH} events, got {len(batch)}")
        return [_document(item) for item in batch]
    return [_document(parsed)]


def _attributes(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the `ce-*` headers; the binding escapes characters outside printable ASCII as %XX."""
    return {name.removeprefix(_PREFIX): unquote(value) for name, value in headers.items() if name.startswith(_PREFIX)}


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
    except RecursionError:  # the prefix prevents another attempt to parse it
        return "nested too deeply: " + body.decode("utf-8", "replace")


def _document(parsed: Any) -> Document:
    """Return an object unchanged, and any other value as text."""
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return parsed if isinstance(parsed, str) else reprlib.repr(parsed)
