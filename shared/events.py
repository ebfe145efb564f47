"""The event contract: CloudEvents 1.0 in structured JSON mode, three types.

An event requests a reconciliation of a server and carries no tools: the worker lists them from the server.
An event carries no command and no credential. The command of a stdio server is in the operator's `mcp.json`,
and `credential_ref` names a secret that the worker resolves when it connects.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from shared.catalog import DEFINITION_CHANGES, POLICIES, Endpoint
from shared.errors import EventInvalid
from shared.server_ids import checked_server_id
from shared.validation import checked_url, first_invalid

ServerId = Annotated[str, AfterValidator(checked_server_id)]
Group = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@-]*$")]


Groups = Annotated[Literal["*"] | frozenset[Group], BeforeValidator(lambda value: "*" if value == ["*"] else value)]
"""The groups that a file of the operator grants: names, or `"*"` or `["*"]` for all. No group has the name `*`."""
Label = Annotated[str, StringConstraints(max_length=200)]
CredentialRef = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")]

# The whole event as JSON. Its data is stored in the server's intent and record.
MAX_EVENT_BYTES = 64 << 10
MAX_GROUPS = MAX_LABELS = 64
MAX_LABELS_BYTES = 16 << 10
"""Of all labels of a server together, as JSON."""

TYPE_PREFIX = "dev.toolscale.server"

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
EventType = Literal["dev.toolscale.server.up", "dev.toolscale.server.down", "dev.toolscale.server.changed"]


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    size_bytes = len(json.dumps(labels, ensure_ascii=False).encode(errors="replace"))
    if size_bytes > MAX_LABELS_BYTES:
        raise ValueError(f"expected at most {MAX_LABELS_BYTES} bytes in all labels, got {size_bytes}")
    policy = labels.get(DEFINITION_CHANGES)
    if policy is not None and policy not in POLICIES:
        raise ValueError(f"expected {', '.join(POLICIES)} under {DEFINITION_CHANGES!r}")
    return labels


class _Strict(BaseModel):
    """A frozen model that rejects unknown fields, so that a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerRef(_Strict):
    """The data of `down` and `changed`: the server's id."""

    server_id: ServerId


class ServerAnnouncement(ServerRef):
    """The data of `up`: a server, its address, and its groups."""

    transport: Literal["streamable-http", "sse", "stdio"] = "streamable-http"
    url: Annotated[str, StringConstraints(max_length=2000, pattern=r"^https?://")] | None = None
    groups: Annotated[frozenset[Group], Field(max_length=MAX_GROUPS)] = frozenset()
    labels: Annotated[dict[Label, Label], Field(max_length=MAX_LABELS), AfterValidator(_checked_labels)] = {}
    credential_ref: CredentialRef | None = None

    @model_validator(mode="after")
    def _url_fits_transport(self) -> Self:
        if (self.url is None) != (self.transport == "stdio"):
            raise ValueError(f"a {self.transport} server {'has no url' if self.url else 'needs a url'}")
        return self

    @field_validator("url")
    @classmethod
    def _url_holds_no_credentials(cls, url: str | None) -> str | None:
        if url and "@" in checked_url(url, "http", "https").netloc:
            raise ValueError("it carries credentials; name them by credential_ref instead")
        return url

    @property
    def endpoint(self) -> Endpoint:
        """Return the address of the announced server."""
        return Endpoint(transport=self.transport, url=self.url, credential_ref=self.credential_ref)


class CloudEvent(BaseModel):
    """The CloudEvents 1.0 attributes. Extension attributes except `traceparent` are ignored.

    `traceparent` identifies the trace of the producer; an invalid value is ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    specversion: Literal["1.0"] = "1.0"
    id: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        default_factory=lambda: str(uuid.uuid4())
    )
    source: Annotated[str, StringConstraints(min_length=1, max_length=500)] = "toolscale"
    time: AwareDatetime = Field(default_factory=lambda: datetime.fromtimestamp(time.time(), UTC))
    datacontenttype: Literal["application/json"] = "application/json"
    traceparent: str | None = None

    @field_validator("traceparent", mode="before")
    @classmethod
    def _of_a_trace(cls, value: object) -> str | None:
        return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


class ServerUp(CloudEvent):
    """A server runs: its tools are to be listed and indexed."""

    type: Literal["dev.toolscale.server.up"] = "dev.toolscale.server.up"
    data: ServerAnnouncement


class ServerDown(CloudEvent):
    """A server stopped: its tools are hidden, and kept for its return."""

    type: Literal["dev.toolscale.server.down"] = "dev.toolscale.server.down"
    data: ServerRef


class ServerChanged(CloudEvent):
    """The tools of a known server may have changed: they are to be listed again."""

    type: Literal["dev.toolscale.server.changed"] = "dev.toolscale.server.changed"
    data: ServerRef


ServerEvent = ServerUp | ServerDown | ServerChanged

# field and reason may quote the sender
_REASON_CHARACTERS = 300

REQUIRED_ATTRIBUTES = ("specversion", "id", "source", "type")

_by_type: TypeAdapter[ServerEvent] = TypeAdapter(Annotated[ServerEvent, Field(discriminator="type")])


def parse_event(raw: str | bytes | dict[str, Any]) -> ServerEvent:
    """Return the event of this JSON text or object.

    Raises:
        EventInvalid: the event violates the contract; the message names the first invalid field.
    """
    try:
        text = json.dumps(raw, ensure_ascii=False) if isinstance(raw, dict) else raw
    except (TypeError, ValueError, RecursionError) as error:
        raise EventInvalid("event", f"not JSON: {error}") from error
    size_bytes = len(text) if isinstance(text, bytes) else len(text.encode(errors="replace"))
    if size_bytes > MAX_EVENT_BYTES:
        raise EventInvalid("event", f"expected at most {MAX_EVENT_BYTES} bytes, got {size_bytes}")
    document = raw if isinstance(raw, dict) else _decoded(raw)
    for name in REQUIRED_ATTRIBUTES:
        if name not in document:
            raise EventInvalid(name, "missing; CloudEvents 1.0 requires it")
    try:
        return _by_type.validate_python(document)
    except ValidationError as error:
        path, reason = first_invalid(error)
        # without the discriminator's tag, which pydantic adds
        field = ".".join(str(part) for part in path if not str(part).startswith(TYPE_PREFIX))
        raise EventInvalid(field[:_REASON_CHARACTERS] or "event", reason[:_REASON_CHARACTERS]) from None  # has values


def _decoded(raw: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EventInvalid("event", f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise EventInvalid("event", f"expected a JSON object, got {type(document).__name__}")
    return cast("dict[str, Any]", document)
