"""Real Qdrant nodes on free loopback ports, of the program at QDRANT_BINARY."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually

BINARY = os.environ.get("QDRANT_BINARY")
UP_S = 60.0


@dataclass
class Node:
    """One node. Its ports stay the same over restarts."""

    directory: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its address for clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        """Return its address for other nodes."""
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        """Start it; `wait` returns when it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "SERVICE__HOST": "127.0.0.1",
            "SERVICE__HTTP_PORT": str(self.port),
            "SERVICE__GRPC_PORT": str(free_port()),
            "CLUSTER__P2P__PORT": str(self.peer_port),
            "STORAGE__STORAGE_PATH": str(self.directory / "storage"),
            "STORAGE__SNAPSHOTS_PATH": str(self.directory / "snapshots"),
            **self.environment,
        }
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(BINARY), "--disable-telemetry", *self.arguments],
                cwd=self.directory,
                env={**os.environ, **{f"QDRANT__{name}": value for name, value in settings.items()}},
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Return when it can serve requests."""
        eventually(lambda: _is_ready(self.url), UP_S, what=f"the Qdrant node at {self.url}")

    def kill(self) -> None:
        """End it as a crash of its machine would."""
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def qdrant_nodes(directory: Path, number: int) -> Generator[list[Node]]:
    """Yield the nodes of an empty cluster, or one server without a cluster; skips without QDRANT_BINARY."""
    if not BINARY:
        pytest.skip("QDRANT_BINARY is not set: nothing is tested on nodes of Qdrant")
    cluster = {"CLUSTER__ENABLED": "true"} if number > 1 else {}
    nodes = [Node(directory / f"node-{n}", environment=cluster) for n in range(number)]
    try:
        for node in nodes:
            bootstrap = () if node is nodes[0] else ("--bootstrap", nodes[0].peer_url)
            node.arguments = ("--uri", node.peer_url, *bootstrap) if cluster else ()
            node.start()
            node.wait()
        yield nodes
    finally:
        for node in nodes:
            if node.process and node.process.poll() is None:
                node.kill()
