"""The HTTP binding of CloudEvents 1.0: which events a request carries, in each of its three modes."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

from pydantic import TypeAdapter

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
BINARY = "application/json"
MEDIA_TYPES = (STRUCTURED, BATCH, BINARY)

_PREFIX = "ce-"
_ANY_LIST = TypeAdapter(list[Any])

Document = dict[str, Any] | str
"""What should be an event: an object, or the text that was sent for one."""


def media_type(content_type: str) -> str:
    """Return the type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def documents(headers: Mapping[str, str], body: bytes) -> list[Document]:
    """Return what a request of one of MEDIA_TYPES carries, in order: one document, or those of a batch.

    Nothing is judged here: what is no event is refused where every event is, and kept as it came.
    `headers` have lower-case names.
    """
    content_mode = media_type(headers.get("content-type", ""))
    if content_mode == BINARY:
        return [_attributes(headers) | {"datacontenttype": BINARY, "data": _parsed(body)}]
    parsed = _parsed(body)
    if content_mode == BATCH and isinstance(parsed, list):
        return [_document(item) for item in _ANY_LIST.validate_python(parsed)]
    return [_document(parsed)]


def _attributes(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the `ce-*` headers; the binding writes what is not printable ASCII as %XX."""
    return {name.removeprefix(_PREFIX): unquote(value) for name, value in headers.items() if name.startswith(_PREFIX)}


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
    except RecursionError:  # the mark in front keeps others from parsing it again
        return "nested too deeply: " + body.decode("utf-8", "replace")


def _document(parsed: Any) -> Document:
    """Return an object as it is, and a text for anything else."""
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return parsed if isinstance(parsed, str) else reprlib.repr(parsed)
