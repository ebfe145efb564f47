"""The write path in a world where anything happens at any step of a reconciliation, for hypothesis to play with.

Waits are zero seconds long, so that everything planned is due: only its order is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, cast

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from shared.catalog import ENCODINGS, Encoding, Listing, Status, digest, point_id
from shared.errors import IntentsUnavailable, ServerError, ServerTimeout
from shared.events import ServerEvent
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.transitions import RetryPolicy
from shared.text.tokens import Counter, estimate
from tests.chaos.interrupted import Crash, InterruptedIndex, Leases, LocksOfManyWorkers, Steps, WithLeases
from tests.chaos.tally import Tallied, Tally
from tests.support.builders import World, changed, definition, down, estimated_counts, listing, up
from tests.support.fakes import FakeEmbedder
from tests.support.tampering import tamper_tool
from workers.dependencies import Dependencies
from workers.indexing.records import FailurePolicy
from workers.upkeep.audit import AuditResult, audit, differences
from workers.work import Work

OpenStore = Callable[[], Intents]
Kind = Literal["up", "down", "changed"]

NO_WAIT = RetryPolicy(first_s=0.0, longest_s=0.0, resync_s=1e-9)
SERVERS = ("a", "b", "c")
# A sweep and its reconciliations, twice: the first may only complete earlier ones.
ROUNDS_TO_SETTLE = 4

SAID: dict[str, Kind] = {"up": "up", "down": "down", "silence": "changed"}

server_ids = st.sampled_from(SERVERS)
kinds: st.SearchStrategy[Kind] = st.sampled_from(("up", "down", "changed"))
groups = st.sampled_from(((), ("x",), ("y",)))


def event(kind: Kind, server_id: str, within: tuple[str, ...] = ()) -> ServerEvent:
    match kind:
        case "up":
            return up(server_id, within)
        case "down":
            return down(server_id)
        case "changed":
            return changed(server_id)


DURING_A_LOOK = ("nothing", "nothing", "crash", "freeze", "up", "down", "changed", "sweep", "wipe")
DURING_AN_AUDIT = ("nothing", "crash", "freeze", "sweep")
interruptions = st.lists(st.sampled_from(DURING_A_LOOK), max_size=6)


class Chaos(Tallied):
    """The real tasks in a world where anything happens at any step; `said` and `world` are the truth."""

    patience = FailurePolicy(quarantine_after=3)

    def __init__(self, open_store: OpenStore, tally: Tally | None = None) -> None:
        super().__init__(tally)
        self.steps, self.world = Steps(), World()
        # of a broker, until hypothesis delivers, loses or repeats them
        self.messages = list[str]()
        self.index = InterruptedIndex(self.steps)
        counters: dict[Encoding, Counter] = {"cl100k_base": estimate, "o200k_base": estimate}
        self.leases = Leases()
        self.open_store, self.was_wiped = open_store, False
        self.deps = Dependencies(
            self.opened(),
            self.index,
            FakeEmbedder(),
            counters,
            self.list_server,
            self.patience,
            feature_locks=LocksOfManyWorkers(),
        )
        self.work = Work(
            *(lambda: self.deps.intents, lambda: self.deps, self.messages.append, lambda: 0),
            message_time_s=0.0,
            sweep_interval_s=1.0,
        )
        self.said: dict[str, tuple[Status, frozenset[str]]] = {}
        self.silent: set[str] = set()
        self.deadly: set[str] = set()
        for server_id in SERVERS:
            self.world.servers[server_id] = listing(definition("t"))

    def opened(self) -> Intents:
        return cast("Intents", WithLeases(self.open_store(), self.leases))

    def list_server(self, intent: Intent) -> Listing:
        self.steps.next()
        if intent.server_id in self.deadly:
            self.crash()
        if intent.server_id in self.silent:
            raise ServerTimeout(intent.server_id, "no answer")
        return self.world.list_server(intent)

    @rule(kind=kinds, server_id=server_ids, within=groups)
    def say(self, kind: Kind, server_id: str, within: tuple[str, ...] = ()) -> None:
        if kind != "up" and server_id not in self.said:
            return
        if kind != "changed":
            held_groups = frozenset(within) if kind == "up" else self.said[server_id][1]
            self.said[server_id] = ("running" if kind == "up" else "stopped", held_groups)
        self.send(event(kind, server_id, within))

    def send(self, event: ServerEvent) -> None:
        self.work.accept(event.model_dump(mode="json"))

    @rule(server_id=server_ids, tools=st.dictionaries(st.sampled_from("tuv"), st.sampled_from(("does x", "does y"))))
    def change_tools(self, server_id: str, tools: dict[str, str]) -> None:
        self.world.servers[server_id] = listing(*(definition(name, text) for name, text in tools.items()))

    @rule(server_id=server_ids)
    def fall_silent_or_speak_again(self, server_id: str) -> None:
        self.silent ^= {server_id}

    @rule(server_id=server_ids)
    def kill_each_worker_or_no_more(self, server_id: str) -> None:
        self.deadly ^= {server_id}

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), happens=interruptions)
    def deliver(self, data: st.DataObject, happens: list[str]) -> None:
        messages = self.messages
        server_id = messages.pop(data.draw(st.integers(0, len(messages) - 1)))
        self.steps.interruptions = [self._interruption(kind, server_id) for kind in happens]
        self._reconcile(server_id)
        self.steps.interruptions = []

    def _interruption(self, what: str, server_id: str) -> Callable[[], None]:
        match what:
            case "up" | "down" | "changed":
                return lambda: self.say(what, server_id, ("x",))
            case "sweep":
                return self.sweep
            case "wipe":
                return self.lose_all_intents
            case "crash":
                return self.crash
            case "freeze":
                return lambda: self.freeze(server_id)
            case _:
                return lambda: None

    def crash(self) -> None:
        raise Crash

    def freeze(self, server_id: str, meanwhile: str = "") -> None:
        """Suspend this run before its write, until another run has taken its lease and ended."""
        self.leases.lose(server_id)
        if meanwhile:
            self.happen(server_id, meanwhile)
        else:
            self._reconcile(server_id)

    def _reconcile(self, server_id: str) -> None:
        with suppress(Crash, ServerError, IntentsUnavailable):
            self.work.reconcile(server_id)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), copies=st.sampled_from((0, 2)))
    def lose_or_repeat_a_message(self, data: st.DataObject, copies: int) -> None:
        messages = self.messages
        server_id = messages.pop(data.draw(st.integers(0, len(messages) - 1)))
        messages.extend([server_id] * copies)

    @rule(server_id=server_ids, happens=st.lists(st.sampled_from(DURING_AN_AUDIT), max_size=3))
    def a_count_goes_wrong(self, server_id: str, happens: list[str]) -> None:
        """Let an audit that anything may interrupt, and then the next one, see a wrong count of a settled server."""
        if not self.tamper(server_id):
            return
        self.steps.interruptions = [self._interruption(kind, server_id) for kind in happens]
        with suppress(Crash):
            self.audit(server_id)
        self.steps.interruptions = []
        self.audit(server_id)

    def tamper(self, server_id: str) -> bool:
        """Make one count of a server wrong; return False for a server without tools, or with a look to come."""
        intent, names = self.deps.intents.intent(server_id), self.index.tool_states(server_id)
        if not names or differences(server_id, self.index) is None or (intent and intent.is_lagging):
            return False
        tamper_tool(self.index, f"{server_id}:{min(names)}", "cl100k_base")
        return True

    def audit(self, server_id: str) -> AuditResult:
        return audit(server_id, self.index, self.deps.intents)

    @rule()
    def lose_all_intents(self) -> None:
        self.deps = replace(self.deps, intents=self.opened())
        self.was_wiped = True

    @rule()
    def sweep(self) -> None:
        self.work.sweep()

    @invariant()
    def no_more_is_committed_than_was_asked_for(self) -> None:
        assert all(intent.committed <= intent.desired for intent in self.deps.intents.intents())

    @invariant()
    def whoever_lags_or_is_awaited_has_a_time(self) -> None:
        for intent in self.deps.intents.intents():
            assert intent.due_at is not None or not (intent.is_lagging or intent.message_pending), intent

    def teardown(self) -> None:
        """Once faults stop, the catalogue equals the truth; what was stopped is announced again, as it asks to be."""
        self.silent.clear()
        self.deadly.clear()
        self.settle()
        if self.was_wiped:
            self.announce_what_was_lost()
        self.announce_what_was_stopped()
        self.settle()
        try:
            self.check()
            self.check_audits()
        finally:
            self.deps.intents.close()

    def settle(self) -> None:
        for _ in range(ROUNDS_TO_SETTLE):
            self.sweep()
            while self.messages:
                self._reconcile(self.messages.pop(0))

    def happen(self, server_id: str, what: str, at: int = 0, strike: Callable[[], None] | None = None) -> bool:
        """Process one change; return whether its reconciliation was interrupted `at` this step."""
        word, _, group = what.partition(" ")
        self.say(SAID[word], server_id, (group,))
        self.silent = {server_id} if word == "silence" else set()
        for _ in range(self.patience.quarantine_after - 1 if word == "silence" else 0):
            self._reconcile(server_id)
        self.steps.interruptions = [*[lambda: None] * at, strike] if strike else []
        self._reconcile(server_id)
        was_struck = not self.steps.interruptions
        self.steps.interruptions = []
        return was_struck

    def announce_what_was_lost(self) -> None:
        """Repeat the events that the lost intents had not processed, and those whose tools a late write undid."""
        for server_id, (status, within) in self.said.items():
            record, intent = self.index.server(server_id), self.deps.intents.intent(server_id)
            if (
                record is None
                or intent is None
                or record.groups != within
                or {record.status == "stopped", intent.status == "stopped"} != {status == "stopped"}
                or any(state.status != record.status for state in self.index.tool_states(server_id).values())
            ):
                self.send(up(server_id, sorted(within)))
                if status == "stopped":
                    self.send(down(server_id))

    def announce_what_was_stopped(self) -> None:
        """Say again that a server runs that was silent for too long; one that was parked is tried unasked."""
        for intent in self.deps.intents.intents():
            record = self.index.server(intent.server_id)
            if intent.status == "running" and record and record.status == "stopped":
                self.send(changed(intent.server_id))

    def check(self) -> None:
        assert self.catalogue() == self.truth()
        for server_id, (status, _) in self.said.items():
            intent, record = self.deps.intents.intent(server_id), self.index.server(server_id)
            assert intent is not None
            assert not intent.is_lagging
            assert record is not None
            assert (record.status, record.stale_since if status == "running" else None) == (status, None)
            if status == "running":
                assert (record.tokens, record.tool_count) == self.sums(server_id)

    def check_audits(self) -> None:
        """An audit finds no difference, then exactly the server with a wrong count, which is right again later.

        A stopped server is left out: it is counted again once it runs.
        """
        assert self.differing() == set()
        for server_id in SERVERS:
            if self.said.get(server_id, ("", ""))[0] == "running" and self.tamper(server_id):
                assert self.differing() == {server_id}
                assert self.audit(server_id) == "differs"
                self.settle()
                assert (self.differing(), self.catalogue()) == (set(), self.truth())

    def differing(self) -> set[str]:
        running = (server_id for server_id, (status, _) in self.said.items() if status == "running")
        return {server_id for server_id in running if differences(server_id, self.index)}

    def catalogue(self) -> dict[str, tuple[object, ...]]:
        """Return the tools, except those of stopped servers that are counted again once they run."""
        held = (stored.tool for stored in self.index.held() if stored.tool.digest or stored.tool.status == "running")
        return {
            point_id(tool.server_id, tool.definition.name): (
                tool.qualified_name, tool.status, tool.groups, tool.digest, dict(tool.token_counts),
            )
            for tool in held
        }  # fmt: skip

    def truth(self) -> dict[str, tuple[object, ...]]:
        """Return what is to be held of the servers that run, and what is held of those that do not, as stopped."""
        points: dict[str, tuple[object, ...]] = {}
        for server_id, (status, within) in self.said.items():
            for tool in self._tools(server_id, status):
                counts = estimated_counts(server_id, tool)
                points[point_id(server_id, tool.name)] = (
                    f"{server_id}:{tool.name}", status, within, digest(tool, "scripted"), counts,
                )  # fmt: skip
        return points

    def _tools(self, server_id: str, status: Status) -> tuple[Any, ...]:
        if status != "running":
            kept = (stored.tool for stored in self.index.held() if stored.tool.server_id == server_id)
            return tuple(tool.definition for tool in kept if tool.digest)
        found = self.world.servers[server_id]
        assert isinstance(found, Listing)
        return found.tools

    def sums(self, server_id: str) -> tuple[dict[Any, int], int]:
        tools = self._tools(server_id, "running")
        counts = [estimated_counts(server_id, tool) for tool in tools]
        return {encoding: sum(count[encoding] for count in counts) for encoding in ENCODINGS}, len(tools)


class ChaosWithoutRetries(Chaos):
    """The same where a server is quarantined after its first failure, and parked by the first that kills its worker."""

    patience = FailurePolicy(quarantine_after=1, give_up_after_s=0.0)
