"""Confirmations of calls by the client's user, which the action `ask` of a rule requires.

In the newest revision of MCP, a server sends no requests: the result of the first call is a question with a state, and
the client repeats the call with the answer. The state is sealed, bound to the call, and accepted once.

A confirmed call that was not sent gives its confirmation back: the next equal call needs no question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from query.cursors.store import KEY_BYTES
from shared.errors import CursorInvalid, CursorsUnavailable
from shared.quoting import encodable, quoted_name
from shared.text.invisible import mark_text

if TYPE_CHECKING:
    from query.cursors import Cursors
    from shared.catalog import IndexedTool

CONFIRM_S = 300
"""Seconds that a user has for an answer."""

_PURPOSE = "confirmation"
_GIVEN_BACK = "confirmation of a call that was not sent"
_SHOWN_CHARACTERS = 2_000
# The store limits the sum of these, and so the number of its entries.
_ENTRY = bytes(256)


@dataclass(frozen=True, slots=True)
class CallToConfirm:
    """One call: its caller, tool and arguments, and the servers that may receive it."""

    caller: str
    tool: IndexedTool
    server_ids: Sequence[str]
    arguments: Mapping[str, Any]

    @property
    def question(self) -> str:
        """Return the question for the user; it quotes all texts of the server and of the model."""
        servers = " or ".join(map(quoted_name, self.server_ids))
        arguments = encodable(mark_text(json.dumps(self.arguments, ensure_ascii=False)))
        cut = f"… ({len(arguments)} characters)" if len(arguments) > _SHOWN_CHARACTERS else ""
        return (
            f"Call the tool {quoted_name(self.tool.definition.name)} of the server {servers} "
            f"with these arguments? {arguments[:_SHOWN_CHARACTERS]}{cut}"
        )

    @property
    def binding(self) -> tuple[str, ...]:
        """Return texts that no other call has; equal definitions have equal digests."""
        tool = json.dumps([list(self.server_ids), self.tool.definition.name, self.tool.definition_id])
        return self.caller, _PURPOSE, tool, json.dumps(self.arguments, sort_keys=True)

    @property
    def key(self) -> bytes:
        """Return the key of this call's confirmation that was given back."""
        return hashlib.sha256(json.dumps([_GIVEN_BACK, *self.binding]).encode()).digest()[:KEY_BYTES]


@dataclass(frozen=True, slots=True)
class Confirmations:
    """The states of confirmations: each expires, and is accepted once, by any replica of the query service."""

    cursors: Cursors

    def seal(self, call: CallToConfirm) -> str:
        """Return a state for the answer to the question of this call.

        Raises:
            CursorsUnavailable: the store does not answer.
        """
        key = self.cursors.store.put(_ENTRY)
        return self.cursors.sealer.seal(key, *call.binding, at_most_s=CONFIRM_S)

    def accepts(self, state: str, call: CallToConfirm) -> bool:
        """Return whether this state is of this call, has not expired and is used for the first time.

        Raises:
            CursorsUnavailable: the store does not answer.
        """
        try:
            self.cursors.store.take(self.cursors.sealer.unseal(state, *call.binding))
        except CursorInvalid:
            return False
        return True

    def give_back(self, call: CallToConfirm) -> None:
        """Let the next equal call pass without a question, within CONFIRM_S; if the store does not answer, it asks."""
        consent = self.cursors.sealer.seal(_ENTRY, _GIVEN_BACK, *call.binding, at_most_s=CONFIRM_S)
        with suppress(CursorsUnavailable):
            self.cursors.store.put(consent.encode(), call.key)

    def take_back(self, call: CallToConfirm) -> bool:
        """Return whether this call has a confirmation that was given back; it is then used."""
        try:
            consent = self.cursors.store.take(call.key)
            self.cursors.sealer.unseal(consent.decode(), _GIVEN_BACK, *call.binding)
        except (CursorInvalid, CursorsUnavailable):
            return False
        return True
