"""Servers that notify of changes, as processes, and a supervisor that listens to them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from shared.catalog import Endpoint
from shared.events import ServerAnnouncement, ServerEvent, ServerUp
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.settings import Subscribe
from shared.upstream.dial import Dialler
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.warm import Process, start
from workers.emit import Emitter
from workers.notifications.listener import DEFAULT_RECONNECT, ReconnectPolicy
from workers.notifications.supervisor import ListenerSupervisor

PROGRAM = Path(__file__).parent / "hostile" / "notifying_server.py"
HASTY = replace(DEFAULT_RECONNECT, least_between_s=0.05, first_retry_s=0.05, longest_retry_s=0.2)


@dataclass
class NotifyingServer:
    """A server whose tools are the lines of a file; it can be killed and started again at the same address."""

    kind: str
    tools: Path
    listener: socket.socket
    process: Process | None = None

    @property
    def target(self) -> HttpTarget:
        """Return where it listens."""
        address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        return HttpTarget(f"{address}/sse", "sse") if self.kind == "sse" else HttpTarget(f"{address}/mcp")

    @property
    def is_subscribed_to(self) -> bool:
        """Return whether it would notify a connected client; an earlier handshake ends after the connection."""
        return self.kind not in ("legacy", "sse") or self._sessions.exists()

    @property
    def _sessions(self) -> Path:
        return self.tools.with_suffix(".sessions")

    def start(self) -> None:
        """Start it; connections wait until it answers."""
        self._sessions.unlink(missing_ok=True)
        descriptor = self.listener.fileno()
        command = [sys.executable, str(PROGRAM), self.kind, str(self.tools), str(descriptor)]
        self.process = start(command, pass_fds=[descriptor])

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process:
            self.process.kill()
            self.process.wait(60)

    def offer(self, *names: str) -> None:
        """Let it have these tools from now on."""
        written = self.tools.with_suffix(".new")
        written.write_text("\n".join(names), encoding="utf-8")
        written.replace(self.tools)


@contextmanager
def notifying_server(kind: str, tools: Path, *names: str) -> Generator[NotifyingServer]:
    """Run a telling server on loopback that offers these tools."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = NotifyingServer(kind, tools, listener)
        server.offer(*names)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def notifying_stdio(tools: Path) -> StdioTarget:
    """Return a target that starts the telling server as a child."""
    return StdioTarget(sys.executable, (str(PROGRAM), "stdio", str(tools)))


@dataclass
class ListenedServers:
    """Intents of listed servers, and the events of a supervisor after notifications.

    Each requested reconciliation ends at once, unless `commits` is off. `beats` counts the reads of the intents.
    """

    intents: Intents
    targets: dict[str, Target]
    events: list[str] = field(default_factory=list[str])
    commits: bool = True
    polls: int = 0

    def announce(self, server_id: str, *, listed: bool = True) -> None:
        """Record that the server runs, and was listed."""
        target = self.targets[server_id]
        endpoint = Endpoint(transport="stdio")
        if isinstance(target, HttpTarget):
            endpoint = Endpoint(transport=target.transport, url=target.url)
        announcement = ServerAnnouncement(server_id=server_id, **endpoint.model_dump())
        recorded = self.intents.record(ServerUp(data=announcement), due_in_s=60.0)
        if listed:
            self.intents.commit(server_id, recorded.intent.desired)

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event as a process would, and remember its source; the reconciliation ends at once."""
        intent = Emitter(self.intents, lambda _: None, 5.0).emit(event)
        if self.commits:
            self.intents.commit(intent.server_id, intent.desired)
        self.events.append(intent.server_id)
        return intent

    def polled(self) -> None:
        """Count a read of the intents."""
        self.polls += 1


@contextmanager
def listening_to(
    servers: ListenedServers,
    *,
    listen: Subscribe = "all",
    most: int = 100,
    reconnect: ReconnectPolicy = HASTY,
    may_listen: Callable[[], bool] = lambda: True,
) -> Generator[None]:
    """Listen until the block ends, with waits short enough for a test."""
    supervisor = ListenerSupervisor(
        *(servers.intents, servers.emit, Dialler(servers.targets, frozenset({"127.0.0.1"}), None, {})),
        configured=lambda: servers.targets,
        listen=listen,
        most=most,
        may_listen=may_listen,
        beat=servers.polled,
        reconnect=reconnect,
        poll_s=0.05,
    )
    with start_blocking_portal() as portal:
        running = portal.start_task_soon(supervisor.run)
        try:
            yield
        finally:
            running.cancel()
