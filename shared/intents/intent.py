"""The stored documents of the intents, and the values that `Intents` returns.

A Celery message on Redis can be lost, so a message is only a wake-up and the intent is the record.
An event raises a server's *desired* generation; a reconciliation that updated the index raises the *committed* one.
The sweep retries a server whose committed generation lags, even when its message was lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from shared.catalog import StoredDocument
from shared.events import ServerAnnouncement
from shared.validation import first_problem

# One death proves little: a worker reconciles several servers at the same time, and at most one is the cause.
SUSPECTED_AFTER = 2

REASON_CHARACTERS = 3_000
"""Of an error in an intent; the end of a server's stderr fits."""

# Together 16 MiB. A letter is a little smaller than the 16 KiB that Redis allocates for it.
DEAD_LETTER_LIMIT = 1_000
LETTER_BYTES = 16_000
CUT_MARK = "…"
"""The end of a body that was cut; no event ends so, since an event is a JSON object."""
_LETTER_REASON_CHARACTERS = 1_000


class Intent(StoredDocument):
    """The desired and the committed state of one server. Times are seconds since the epoch by the store's clock.

    `message_pending`: a message was sent and no reconciliation has begun since, so no other message is needed.
    A message that arrives during a reconciliation finds the lease held and is dropped.
    `attempts` counts reconciliations that began since the last that ended, so those that killed their worker.
    `failures` counts reconciliations in a row that ended in an error.
    `internal_failures` counts those that ended for an internal reason since the last successful listing.
    `parked`: reconciliations killed too many workers in a row; see `Intents.park`.
    `early_retry_used`: a `changed` event has brought a suspect an early reconciliation; one until one ends.
    `last_error` is the reason why the last listing failed; None after a successful listing.
    `announced_at` is the time of the last announcement, from which a server has time to start.
    `listed_at` is the time of the last successful listing; None before the first. `catalogue_id` identifies its tools.
    `unaccepted` is the number of changed definitions of the last listing that no operator has accepted.
    `conflict` names the last announcement of another owner, which was refused.
    `due_at` is the time at which the sweep requests the next reconciliation.
    `not_before` is the time at which the next reconciliation may begin; a new announcement resets it.
    `traceparent` continues the trace of the event that requested the next reconciliation.
    """

    server_id: str
    status: Literal["running", "stopped"]
    announcement: ServerAnnouncement
    source: str
    desired: int
    committed: int = 0
    message_pending: bool = False
    attempts: int = 0
    parked: bool = False
    early_retry_used: bool = False
    failures: int = 0
    internal_failures: int = 0
    announced_at: float = 0.0
    listed_at: float | None = None
    catalogue_id: str = ""
    unaccepted: int = 0
    last_error: str | None = None
    conflict: str | None = None
    due_at: float | None = None
    not_before: float = 0.0
    traceparent: str | None = None

    @property
    def is_throttled(self) -> bool:
        """Return whether a requested reconciliation is postponed to `not_before`."""
        return self.message_pending and 0 < self.not_before == self.due_at

    @property
    def is_lagging(self) -> bool:
        """Return whether an event is recorded and not yet reflected in the index."""
        return self.desired > self.committed

    @property
    def is_installing(self) -> bool:
        """Return whether a stdio server is being started that was never listed: it may install packages."""
        is_new = self.status == "running" and self.listed_at is None and not self.parked
        return is_new and self.announcement.transport == "stdio" and self.attempts > 0

    @property
    def is_suspect(self) -> bool:
        """Return whether workers died several times in a row while they reconciled this server."""
        return self.attempts >= SUSPECTED_AFTER


def readable_intent(server_id: str, stored: str | None) -> Intent | None:
    """Return the intent in this JSON without a newer release's fields; log an invalid one and return None."""
    try:
        return None if stored is None else Intent.model_validate_json(stored, extra="ignore")
    except ValidationError as error:
        structlog.get_logger().error("intent_unreadable", server=server_id, reason=first_problem(error, "intent"))
        return None


class MigrationProgress(BaseModel):
    """Progress of the next index version: it holds the tools of `done` of all `servers`.

    Once all are done, the migration checks all again and activates the version.
    `at` is the time of the note, in seconds by the store's clock.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    servers: int
    done: int
    at: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of servers with an intent, of due reconciliations, and of stored dead letters.

    `overdue_s` is the delay of the first due reconciliation; 0 when none is due.
    """

    servers: int
    due: int
    overdue_s: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Intents written since a position, by server; None for an invalid one. `is_complete`: these are all intents.

    `position` is for the next read.
    """

    position: str
    intents: dict[str, Intent | None]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """The intent after an event, and whether the caller must send a message because none is pending."""

    intent: Intent
    needs_message: bool


class DeadLetter(BaseModel):
    """A rejected message: its time (seconds since the epoch), the reason, and the beginning of its body.

    As JSON it has at most LETTER_BYTES.
    """

    model_config = ConfigDict(frozen=True)

    at: float
    reason: str
    body: str

    @classmethod
    def of(cls, at: float, reason: str, body: str) -> DeadLetter:
        """Return the letter of a rejected message, with a cut body if it is too large."""
        body = _without_secrets(body[: 2 * LETTER_BYTES])  # what is cut below may hold the end of a secret
        cut = body if len(body) <= LETTER_BYTES else body[:LETTER_BYTES] + CUT_MARK
        letter = cls(at=at, reason=_storable(reason[:_LETTER_REASON_CHARACTERS]), body=_storable(cut))
        while (size_bytes := len(letter.model_dump_json().encode())) > LETTER_BYTES:
            kept = letter.body[: len(letter.body) * LETTER_BYTES // size_bytes - len(CUT_MARK) - 1]
            letter = letter.model_copy(update={"body": kept + CUT_MARK})
        return letter


HIDDEN = "(hidden by Toolscale)"
"""In place of a secret: its blanks make the URL of an event invalid, which is sent again as it is shown."""
_USER = re.compile(r"""(?<=://)[^\s"'<>]{0,1000}@""")
_QUERY = re.compile(r"""(://[^\s"'<>?]{0,1000}\?)[^\s"'<>]*""")
_NAMED = re.compile(
    r"""("[^"]{0,40}(?:key|token|secret|passw|pwd|auth|credential|cookie)[^"]{0,40}(?<!_ref)"\s{0,9}:\s{0,9}")(?:[^"\\]|\\.)+""",
    re.IGNORECASE,
)


def _without_secrets(body: str) -> str:
    """Return a body without the users and queries of its URLs, and without values that are secret by their name."""
    body = _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(f"{HIDDEN}@", body))
    return _NAMED.sub(rf"\1{HIDDEN}", body)


def _storable(text: str) -> str:
    """Return the text with a replacement for each lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
