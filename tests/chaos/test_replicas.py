"""Replicas are killed and started again while several callers call them ten thousand times."""

from __future__ import annotations

import random
import socket
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from query.calling.call import tool_call
from query.calling.limits import CallLimits
from query.calling.sessions import CallResources, Progress
from query.calling.upstreams import Upstreams
from shared.catalog import ServerRecord
from shared.errors import ReplicasFailed
from tests.support.calling import replica_record, upstreams_to
from tests.support.fakes import make_tool
from tests.support.hostile import logging_replica
from tests.support.hostile.processes import http_target
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.support.warm import Process, start

CALLS = 10_000
CALLERS = 8
PAUSE_S = 0.2
HANDSHAKE = "2025-11-25"


@dataclass
class _Replica:
    """A process at a port, and the file of the calls that it received."""

    server_id: str
    file: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None

    def start(self) -> None:
        program = [sys.executable, str(logging_replica.__file__), str(self.port), str(self.file)]
        self.process = start(program)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def received(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []


@dataclass
class _Load:
    """Calls of several callers, half of them of a tool that may not be repeated."""

    upstreams: Upstreams
    replicas: tuple[ServerRecord, ...]
    numbers: list[int] = field(default_factory=lambda: list(range(CALLS)))
    unanswered: dict[str, str] = field(default_factory=dict[str, str])
    """The reasons, by call."""
    kills: int = 0
    restarts: int = 0
    restarts_before: dict[str, int] = field(default_factory=dict[str, int])
    """By caller with a call in flight: the restarts before its beginning. A killed replica may still be down then."""

    async def run(self, caller: str) -> None:
        while self.numbers:
            number = self.numbers.pop()
            is_read = number % 2 == 0
            identity = f"{'read' if is_read else 'write'}-{number}"
            self.restarts_before[caller] = self.restarts
            try:
                await self._call(identity, caller, is_repeatable=is_read)
            except ReplicasFailed as error:
                self.unanswered[identity] = str(error)
            del self.restarts_before[caller]

    @property
    def most_kills_of_a_call(self) -> int:
        """Return the most kills that a call in flight may have met."""
        return max((self.kills - before for before in self.restarts_before.values()), default=0)

    async def _call(self, identity: str, caller: str, *, is_repeatable: bool) -> None:
        async def ignore(progress: float, total: float | None, message: str | None) -> None: ...

        tool = make_tool("", "read" if is_repeatable else "write")
        send = tool_call(tool.definition, {"id": identity})
        with self.upstreams.admission.admitted(caller) as slot:
            resources = CallResources(Progress(ignore), slot)
            await self.upstreams.call(send, self.replicas, resources, is_repeatable=is_repeatable)


async def _kill_and_restart(replicas: list[_Replica], load: _Load, chance: random.Random) -> None:
    """Kill one replica after another until all calls are made; the others run meanwhile.

    Each call meets at most two kills, so one of three replicas can answer it also on a busy machine.
    """
    while load.numbers:
        while load.most_kills_of_a_call > 1:  # noqa: ASYNC110  # the end of a call is no event
            await anyio.sleep(0.01)
        victim = chance.choice(replicas)
        load.kills += 1
        victim.kill()
        await anyio.sleep(chance.uniform(0, PAUSE_S))
        victim.start()
        await anyio.to_thread.run_sync(eventually, victim.accepts)
        load.restarts += 1
        await anyio.sleep(chance.uniform(0, PAUSE_S))


async def _play(replicas: list[_Replica], load: _Load, chance: random.Random) -> None:
    for replica in replicas:
        replica.start()
    for replica in replicas:
        await anyio.to_thread.run_sync(eventually, replica.accepts)
    async with load.upstreams.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(_kill_and_restart, replicas, load, chance)
        for number in range(CALLERS):
            tasks.start_soon(load.run, f"caller{number}")


@pytest.mark.slow
@pytest.mark.parametrize("protocol_version", [HANDSHAKE, None], ids=["sessions", "any"])
def test_reads_are_answered_and_no_other_call_reaches_two_servers_while_replicas_are_killed(
    protocol_version: str | None, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    replicas = [_Replica(f"r{number}", tmp_path / f"r{number}") for number in range(3)]
    records = tuple(replica_record(replica.server_id, protocol_version=protocol_version) for replica in replicas)
    targets = {replica.server_id: http_target("http", replica.port) for replica in replicas}
    with ExitStack() as stack:
        for replica in replicas:
            stack.callback(replica.kill)
        load = _Load(upstreams_to(targets, CallLimits(timeout_s=60)), records)
        anyio.run(_play, replicas, load, random.Random(seed))

    received = Counter(identity for replica in replicas for identity in replica.received)
    repeated = [identity for identity, times in received.items() if times > 1 and identity.startswith("write")]
    assert repeated == [], f"seed {seed}"
    assert {call: why for call, why in load.unanswered.items() if call.startswith("read")} == {}, f"seed {seed}"
    assert len(received) > CALLS * 0.9
    assert all(len(replica.received) > CALLS / 100 for replica in replicas)
