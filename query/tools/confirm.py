"""Confirmations of calls by the client's user, which the action `ask` of a rule requires.

A confirmed call that was not sent gives its confirmation back: the next equal call needs no question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from query.kept import Kept, name_of
from query.questions import ANSWER_S, NO_QUESTIONS, can_answer
from shared.errors import CallNotConfirmed, CursorInvalid, CursorsUnavailable
from shared.quoting import encodable, quoted_name
from shared.text.invisible import mark_text

if TYPE_CHECKING:
    from query.questions import Asked, Questions
    from shared.catalog import IndexedTool

TOPIC = KEY = "confirm"
# The user accepts or declines, and fills in nothing.
_FORM: dict[str, Any] = {"type": "object", "properties": {}}
_SHOWN_CHARACTERS = 2_000

CANNOT_ASK = f"calls of {{tool}} need the user's confirmation by the operator's policy, and {NO_QUESTIONS}"
DECLINED = "the user did not confirm the call of {tool}, so it was not sent"


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
    def given_back(self) -> tuple[str, ...]:
        """Return the binding of this call's confirmation after the call was not sent; no other call has it."""
        tool = json.dumps([list(self.server_ids), self.tool.definition.name, self.tool.definition_id])
        return self.caller, "confirmation", tool, json.dumps(self.arguments, sort_keys=True)


async def confirm(call: CallToConfirm, questions: Questions, asked: Asked | None, kept: Kept) -> None:
    """Return if the user has confirmed this call, or an equal one that was not sent; each confirmation counts once.

    `asked` is the question that the request answers. Every other one was asked after the confirmation.

    Raises:
        InputRequired: the client has to ask its user, and to repeat the call.
        ClientNotAsked: the store of questions does not answer.
        CallNotConfirmed: the user declined or did not answer, or the client cannot ask.
    """
    request = ElicitRequest(params=ElicitRequestFormParams(message=call.question, requested_schema=_FORM))
    if not can_answer(questions.capabilities, request):
        raise _not_confirmed(call, CANNOT_ASK)
    if asked is None and not await anyio.to_thread.run_sync(_take_back, call, kept):
        await questions.ask({KEY: request}, TOPIC, call.server_ids)
    if asked and asked.topic == TOPIC:
        answer = questions.answers.get(KEY)
        if not isinstance(answer, ElicitResult) or answer.action != "accept":
            raise _not_confirmed(call, DECLINED)


def give_back(call: CallToConfirm, kept: Kept) -> None:
    """Let the next equal call pass without a question, within ANSWER_S; if the store does not answer, it asks."""
    with suppress(CursorsUnavailable):
        kept.put(b"", *call.given_back, name=name_of(*call.given_back), ttl_s=ANSWER_S)


def _take_back(call: CallToConfirm, kept: Kept) -> bool:
    """Return whether this call has a confirmation that was given back; it is then used."""
    try:
        kept.take(name_of(*call.given_back), *call.given_back)
    except (CursorInvalid, CursorsUnavailable):
        return False
    return True


def _not_confirmed(call: CallToConfirm, reason: str) -> CallNotConfirmed:
    return CallNotConfirmed(call.server_ids[0], reason.format(tool=quoted_name(call.tool.definition.name)))
