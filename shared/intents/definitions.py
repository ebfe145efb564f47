"""The accepted definitions of a server's tools, and its changes that no operator has accepted yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from shared.catalog import StoredDocument
from shared.quoting import encodable
from shared.text.tokens import json_text
from shared.validation import first_problem

MAX_TEXT_BYTES = 64 << 10
"""Of the definitions in the changes of a server; of further changes, only digests are stored."""


class ChangedDefinition(BaseModel):
    """A definition that differs from the accepted one, or that is new, `since` this time in epoch seconds.

    `accepted` and `current` are the definitions as JSON. `accepted` is None for a new tool; both are None if they are
    not stored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    digest: str
    since: float
    accepted: str | None = None
    current: str | None = None

    @property
    def size_bytes(self) -> int:
        """Return the bytes of both definitions."""
        return sum(len(text.encode(errors="replace")) for text in (self.accepted, self.current) if text)


class Definitions(StoredDocument):
    """The digests of a server's accepted definitions by tool, and its unaccepted changes by tool.

    Tools that the server no longer lists stay accepted. `held`: the tools of the changes are not served.
    """

    server_id: str
    accepted: Mapping[str, str] = {}
    changed: Mapping[str, ChangedDefinition] = {}
    held: bool = False

    def digests(self) -> dict[str, str]:
        """Return the last known digest of each tool, accepted or not."""
        return {**self.accepted, **{name: change.digest for name, change in self.changed.items()}}

    def accepting(self, names: frozenset[str]) -> Definitions:
        """Return the document with these changes accepted."""
        accepted = {name: change.digest for name, change in self.changed.items() if name in names}
        changed = {name: change for name, change in self.changed.items() if name not in names}
        return self.model_copy(update={"accepted": {**self.accepted, **accepted}, "changed": changed})

    def within_limit(self) -> Definitions:
        """Return the document with the definitions that fit into `MAX_TEXT_BYTES`, those of changed tools first."""
        left, changed = MAX_TEXT_BYTES, dict[str, ChangedDefinition]()
        for name, change in sorted(self.changed.items(), key=self._precedence):
            fits = change.size_bytes <= left
            left -= change.size_bytes if fits else 0
            changed[name] = change if fits else change.model_copy(update={"accepted": None, "current": None})
        return self.model_copy(update={"changed": changed})

    def _precedence(self, item: tuple[str, ChangedDefinition]) -> tuple[bool, int, str]:
        """Return a sort key, so that a server cannot hide a changed tool behind large new ones."""
        name, change = item
        return name not in self.accepted, change.size_bytes, name

    def as_json(self) -> str:
        """Return the stored text."""
        return encodable(json_text(self.model_dump(mode="python")))


DefinitionsChange = Callable[[Definitions | None], Definitions]
"""Returns the changed document of a server; the argument is None where there is none."""


def readable_definitions(server_id: str, stored: str | None) -> Definitions | None:
    """Return the document in this JSON without a newer release's fields; log an invalid one and return None."""
    try:
        return None if stored is None else Definitions.model_validate(json.loads(stored))
    except (ValueError, ValidationError) as error:
        reason = first_problem(error, "definitions") if isinstance(error, ValidationError) else "expected JSON"
        structlog.get_logger().error("record_unreadable", kind="definitions", server=server_id, reason=reason)
        return None
