"""The models that validate each message before Celery receives it.

Celery trusts its broker: a header of an unexpected type ends the worker. The unacknowledged message then ends the next
worker, too. So these models check each message, and kombu's own decoders its body, before delivery.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from celery.app.task import Context
from kombu.exceptions import DecodeError
from kombu.serialization import loads
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from shared.validation import first_invalid

MAX_DEPTH = 100
_YEARS = range(1970, 2101)

Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Number = float | int
M = TypeVar("M", bound=BaseModel)
Nothing = Annotated[list[Any], Field(max_length=0)] | None


class MessageRefused(ValueError):
    """A message that Celery must not receive; the text names the field and the expected value."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _DeliveryInfo(_Part):
    """The queue to which a message returns when its worker dies."""

    exchange: str
    routing_key: str


class _Properties(_Part):
    """The properties that the transport needs."""

    delivery_tag: Text
    delivery_info: _DeliveryInfo
    body_encoding: Literal["base64", "utf-8"] | None = None
    priority: int | None = None
    reply_to: str | None = None
    correlation_id: str | None = None


class Message(_Part):
    """Any message, also one between workers."""

    body: str
    headers: dict[str, Any]
    properties: _Properties

    @property
    def decoded_body(self) -> bytes:
        """Return the body as bytes, decoded by its `body_encoding`.

        Raises:
            MessageRefused: the body has another encoding.
        """
        try:
            encoded = self.body.encode()
            return base64.b64decode(encoded) if self.properties.body_encoding == "base64" else encoded
        except (binascii.Error, UnicodeEncodeError) as error:
            raise MessageRefused(f"body: expected {self.properties.body_encoding}: {error}") from error


class _TaskHeaders(BaseModel):
    """The headers of Celery's message protocol 2. Other headers, such as `traceparent`, pass."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    task: Text
    id: Text
    lang: str | None = None
    shadow: Text | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    origin: str | None = None
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    eta: str | None = None
    expires: str | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    timelimit: Annotated[list[Number | None], Field(min_length=2, max_length=2)] | None = None
    ignore_result: bool | None = None
    replaced_task_nesting: int | None = None
    stamped_headers: list[str] | None = None
    stamps: dict[str, Any] | None = None
    compression: None = None  # a small message could become a huge one

    @field_validator("eta", "expires")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None and datetime.fromisoformat(value).year not in _YEARS:
            raise ValueError(f"expected a year from {_YEARS.start} to {_YEARS.stop - 1}")
        return value

    @model_validator(mode="after")
    def _leaves_the_request_alone(self) -> Self:
        # Celery sets each header as an attribute of its request, methods included
        if clash := sorted(set(self.model_extra or ()) & set(dir(Context))):
            raise ValueError(f"a header may not be named {clash[0]}")
        return self


class _TaskMessage(Message):
    """A task, by Celery's message protocol 2."""

    headers: _TaskHeaders  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]  # a stricter dict
    content_type: Literal["application/json"] = Field(alias="content-type")
    content_encoding: Literal["utf-8", "UTF-8"] = Field(alias="content-encoding")


class Embedded(_Part):
    """The third part of a body: tasks that Celery would start after this one, which a message may not contain."""

    model_config = ConfigDict(extra="forbid")

    callbacks: Nothing = None
    errbacks: Nothing = None
    chain: Nothing = None
    chord: None = None


class _TaskBody(_Part):
    """The arguments of a task."""

    args: list[Any]
    kwargs: dict[str, Any]
    embedded: Embedded | None


def check_message(raw: object) -> Message:
    """Return a validated message.

    Raises:
        MessageRefused: the transport would fail on the message.
    """
    message = _validated(Message, raw)
    message.decoded_body  # noqa: B018  # raises if it cannot be decoded
    return message


def check_task(raw: object) -> _TaskMessage:
    """Return a validated task message.

    Raises:
        MessageRefused: Celery would fail on the message, or drop it silently.
    """
    message = _validated(_TaskMessage, raw)
    parts = _loaded(message.decoded_body)
    if len(parts) != len(_TaskBody.model_fields):
        raise MessageRefused("body: expected a list of the task's arguments, keyword arguments and an object")
    _validated(_TaskBody, dict(zip(_TaskBody.model_fields, parts, strict=True)), "body")
    return message


def _loaded(body: bytes) -> list[object]:
    """Return the parts of a body; an empty list if it is no list."""
    try:
        loaded = loads(body, "application/json", "utf-8", accept={"application/json"})
    except DecodeError as error:
        raise MessageRefused(f"body: expected JSON: {error}") from error
    return cast("list[object]", loaded) if isinstance(loaded, list) else []


def _validated(model: type[M], raw: object, at: str = "") -> M:
    _refuse_depth(raw, at or "message")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        path, reason = first_invalid(error)
        field = ".".join(filter(None, (at, *map(str, path))))
        raise MessageRefused(f"{field or 'message'}: {reason}") from error


def _refuse_depth(value: object, field: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _children(value)]
        if not level:
            return
    raise MessageRefused(f"{field}: nested more than {MAX_DEPTH} levels deep")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()
