"""Load of a fleet during faults: servers change; events are on time, late, duplicate, out of order or missing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from celery import Celery
from kombu.exceptions import OperationalError

from shared.errors import IntentsUnavailable
from shared.events import ServerEvent
from shared.intents.intents import Intents
from tests.chaos.fleet import Fleet, Scripted
from tests.support.builders import down
from workers.celery_app import send_reconcile
from workers.emit import Emitter

RECORDED_WITHIN_S = 30.0
RACES = 3


class Load:
    """A producer of events about a fleet; `rng` decides what happens, and `due_in_s` is the time of a message."""

    def __init__(self, fleet: Fleet, intents: Intents, producer: Celery, rng: random.Random, due_in_s: float) -> None:
        self.events = self.unannounced = 0
        self._fleet = fleet
        self._intents = intents
        self._producer = producer
        self._rng = rng
        self._due_in_s = due_in_s
        self._late: list[ServerEvent] = []

    def some(self, changes: int) -> None:
        """Let so many servers change, a third as many go down and up, and one do both at the same time."""
        events = self._fleet.churn(changes)
        self.unannounced += changes - len({event.data.server_id for event in events})
        told = self._late + events
        self._rng.shuffle(told)
        self._late = told[: len(told) // 4]
        self.tell(told[len(self._late) :])
        self.tell(self._fleet.flip(max(1, changes // 3)))
        self._race(self._rng.choice(self._fleet.restless))

    def tell(self, events: Iterable[ServerEvent]) -> None:
        """Emit these events one after the other, each until it is recorded."""
        for event in events:
            self.events += 1
            self._until_recorded(event)

    def _race(self, server: Scripted) -> None:
        """Let two producers send `up` and `down` at the same time: the last recorded event counts."""
        server.is_up = True  # during the race both states are valid
        self._fleet.note(server)
        both = (self._fleet.announcement(server), down(server.server_id))
        threads = [threading.Thread(target=self.tell, args=([event] * RACES,)) for event in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        intent = self._intents.intent(server.server_id)
        server.is_up = intent is not None and intent.status == "running"
        self._fleet.note(server)

    def _until_recorded(self, event: ServerEvent) -> None:
        recorded = partial(Emitter(self._intents, self._wake, self._due_in_s).emit, event)
        if not wait(lambda: _succeeds(recorded), RECORDED_WITHIN_S):
            raise IntentsUnavailable(f"{event.data.server_id}: not recorded within {RECORDED_WITHIN_S:g} s")

    def _wake(self, server_id: str) -> None:
        try:
            send_reconcile(self._producer, server_id)
        except OperationalError:
            return  # the sweep finds what was recorded


def wait(condition: Callable[[], bool], within_s: float) -> float | None:
    """Return after how many seconds the condition held, more than 0; None when it did not within the bound."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > within_s:
            return None
        time.sleep(0.1)
    return max(time.monotonic() - started, 0.001)


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except IntentsUnavailable:
        return False
    return True
