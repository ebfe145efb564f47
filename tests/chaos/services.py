"""Redis, workers and beat as processes that are killed, frozen and started again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import Running
from tests.support.qdrant_server import delete_collections
from tests.support.redis_server import PROGRAM, wait_until_up


class RedisProcess:
    """A Redis with an append-only file, which is there again after a kill: same port, same directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {"appendonly": "yes", "maxmemory-policy": "noeviction", "save": "", "bind": "127.0.0.1"}
        options = [part for key, value in settings.items() for part in (f"--{key}", value)]
        command = [str(PROGRAM), "--port", str(self._port), "--dir", str(self._directory), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until_up(self.url)

    def kill(self) -> None:
        """Kill it as a crash would."""
        self._process.kill()
        self._process.wait(10)

    def lose_disk(self) -> None:
        """Kill it, and delete all that it had written down."""
        self.kill()
        shutil.rmtree(self._directory)
        self._directory.mkdir()


class Workers:
    """So many worker processes, each replaced as soon as it is gone; `start` runs one of this name."""

    def __init__(self, count: int, start: Callable[[str], AbstractContextManager[Running]]) -> None:
        self._start_one = start
        self.count = count
        self._stack = ExitStack()
        self._logs: list[Path] = []
        self._reading = threading.Lock()
        self._read_up_to: dict[Path, int] = {}
        self._parked: set[str] = set()
        self._running = [self._start() for _ in range(count)]

    def kill(self, which: int) -> None:
        """SIGKILL a worker and start another in its place."""
        self._running[which].kill()
        self._running[which] = self._start()

    def restart(self, which: int) -> None:
        """Ask a worker to end, as a roll-out does, and start another in its place."""
        self._running[which].stop()
        self._running[which] = self._start()

    def without_any(self, do: Callable[[], None], end: Callable[[Running], object]) -> None:
        """End all workers in this way, do something, and start as many others."""
        for running in self._running:
            end(running)
        do()
        self._running = [self._start() for _ in self._running]

    def ended_by_themselves(self) -> list[str]:
        """Return the last output of workers that died without a kill, and restart them, as a supervisor does."""
        ended = [running for running in self._running if running.process.poll() is not None]
        self._running = [self._start() if running in ended else running for running in self._running]
        return [f"{running.log.name} ended by itself: {running.output()[-300:]}" for running in ended]

    def said(self, event: str) -> int:
        """Return how often workers logged this event, those that are gone included."""
        return sum(log.read_text(errors="replace").count(f'"event": "{event}"') for log in self._logs)

    def parked(self) -> set[str]:
        """Return the servers that workers logged as parked, and not as listed since."""
        with self._reading:
            for log in list(self._logs):
                self._read(log)
            return set(self._parked)

    def freeze(self, which: int, seconds: float) -> None:
        """Let a worker stand still for longer than its leases last."""
        process = self._running[which].process
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(seconds)
        process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End what still runs."""
        self._stack.close()

    def _read(self, log: Path) -> None:
        """Read the new lines of a worker's log, whole lines only."""
        start = self._read_up_to.get(log, 0)
        with log.open("rb") as file:
            file.seek(start)
            said, _, _ = file.read().rpartition(b"\n")
        self._read_up_to[log] = start + len(said) + 1 if said else start
        for line in said.decode(errors="replace").splitlines():
            if '"event": "server_parked"' in line:
                self._parked.add(json.loads(line)["server"])
            elif '"event": "server_indexed"' in line:
                self._parked.discard(json.loads(line)["server"])

    def _start(self) -> Running:
        running = self._stack.enter_context(self._start_one(f"worker{len(self._logs)}"))
        self._logs.append(running.log)
        return running


def delete_index(data_dir: Path, qdrant_url: str | None) -> None:
    """Delete all that the index holds: the collections of the Qdrant server, or the embedded index's directory."""
    if qdrant_url:
        delete_collections(qdrant_url)
    else:
        shutil.rmtree(data_dir / "index")
