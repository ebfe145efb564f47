"""`toolscale dead-letters`: reads, sends again and deletes rejected events and messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.errors import EventInvalid
from shared.events import parse_event
from shared.intents.intent import DEAD_LETTER_LIMIT, DeadLetter
from shared.intents.intents import Intents, open_intents
from shared.settings import Settings
from toolscale.client.emit import enqueue
from workers.emit import Emitter, message_time_s, without_rights

INCOMPLETE = "the body was cut when it was stored; send the event again from its producer"


class RetryResult(BaseModel):
    """The outcome of a letter: `accepted` ones are deleted, the others stay with the `reason`."""

    model_config = ConfigDict(frozen=True)

    at: float
    outcome: Literal["accepted", "refused", "incomplete"]
    reason: str = ""


def dead_letters(settings: Settings, limit: int) -> list[DeadLetter]:
    """Return the latest dead letters, newest first.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        return intents.dead_letters(limit)


def clear(settings: Settings) -> int:
    """Delete all dead letters, and return their number.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        return intents.clear_dead_letters()


def retry(settings: Settings) -> Iterator[RetryResult]:
    """Send each stored event again, the oldest first; delete the accepted ones.

    Raises:
        IntentsUnavailable: the store stopped answering; earlier events are recorded.
    """
    with closing(open_intents(settings)) as intents:
        emitter = Emitter(intents, partial(enqueue, settings, []), message_time_s(settings))
        for letter in reversed(intents.dead_letters(DEAD_LETTER_LIMIT)):
            yield _retried(letter, emitter, intents)


def _retried(letter: DeadLetter, emitter: Emitter, intents: Intents) -> RetryResult:
    if letter.is_cut:
        return RetryResult(at=letter.at, outcome="incomplete", reason=INCOMPLETE)
    try:
        emitter.emit(without_rights(parse_event(letter.body)))
    except EventInvalid as error:
        return RetryResult(at=letter.at, outcome="refused", reason=str(error))
    intents.remove_dead_letter(letter)
    return RetryResult(at=letter.at, outcome="accepted")
