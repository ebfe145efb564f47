"""States of broker, workers and sweep on an intent store, for hypothesis.

Waits are zero seconds long, so that everything planned is due: only its order is left to chance.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from shared.intents.intent import Intent
from tests.chaos.schedules import ROUNDS_TO_SETTLE, Kind, OpenStore, event, kinds, server_ids
from tests.chaos.tally import Tallied, Tally


class Fates(Tallied):
    """One store; `messages` are in the broker, `running` are reconciliations that have begun."""

    def __init__(self, open_store: OpenStore, tally: Tally | None = None) -> None:
        super().__init__(tally)
        self.store = open_store()
        self.messages: list[str] = []
        self.running: dict[str, Intent] = {}
        self.said: dict[str, str] = {}

    @rule(kind=kinds, server_id=server_ids)
    def record(self, kind: Kind, server_id: str) -> None:
        if kind != "up" and server_id not in self.said:
            return
        recorded = self.store.record(event(kind, server_id), due_in_s=0)
        if kind != "changed":
            self.said[server_id] = "running" if kind == "up" else "stopped"
        if recorded.needs_message:
            self.messages.append(server_id)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        server_id = self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))
        if server_id in self.running:
            return  # its lease is held: the run at it will ask again
        begun = self.store.begin(server_id)
        if begun and begun.is_lagging:
            self.running[server_id] = begun

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fate=st.sampled_from(("succeed", "succeed", "fail", "rest", "die")))
    def end_reconcile(self, data: st.DataObject, fate: str) -> None:
        server_id = data.draw(st.sampled_from(sorted(self.running)))
        self._end(self.running.pop(server_id), fate)

    def _end(self, begun: Intent, fate: str) -> None:
        match fate:
            case "succeed":
                after = self.store.commit(begun.server_id, begun.desired)
            case "fail":
                after = self.store.fail(begun.server_id, begun.desired)
            case "rest":
                after = self.store.stop_retrying(begun.server_id, begun.desired)
            case _:
                return
        if after.message_pending:
            self.messages.append(begun.server_id)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), copies=st.sampled_from((0, 2)))
    def lose_or_repeat_a_message(self, data: st.DataObject, copies: int) -> None:
        server_id = self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))
        self.messages.extend([server_id] * copies)

    @rule()
    def sweep(self) -> None:
        self.messages.extend(self.store.claim_due(100))

    @rule()
    def restart_with_a_broker_in_memory(self) -> None:
        self.messages.clear()
        self.running.clear()
        self.store.clear_pending_messages()

    @invariant()
    def no_more_is_committed_than_was_asked_for(self) -> None:
        assert all(intent.committed <= intent.desired for intent in self.store.intents())

    @invariant()
    def the_last_event_decides(self) -> None:
        assert {intent.server_id: intent.status for intent in self.store.intents()} == self.said

    @invariant()
    def whoever_lags_or_is_awaited_has_a_time(self) -> None:
        for intent in self.store.intents():
            assert intent.due_at is not None or not (intent.is_lagging or intent.message_pending), intent

    def teardown(self) -> None:
        """Once faults stop, every server's last event is acted upon."""
        for begun in self.running.values():
            self._end(begun, "die")
        self.running.clear()
        for _ in range(ROUNDS_TO_SETTLE):
            self.sweep()
            while self.messages:
                server_id = self.messages.pop()
                after = self.store.begin(server_id)
                if after and after.is_lagging:
                    self._end(after, "succeed")
        lagging = [intent for intent in self.store.intents() if intent.is_lagging]
        self.store.close()
        assert not lagging
