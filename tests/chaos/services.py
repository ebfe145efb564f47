"""Redis, workers and beat as processes that are killed, frozen and started again."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.processes import Composition, Running
from tests.redis_server import PROGRAM, free_port, wait_until_up


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


class Workers:
    """Worker processes that share the composition's stores; Qdrant Edge belongs to one at a time."""

    def __init__(self, composition: Composition, count: int) -> None:
        self._composition = composition
        self._stack = ExitStack()
        self._started = 0
        self._running = [self._start() for _ in range(count)]

    def kill(self, which: int) -> None:
        """SIGKILL a worker and start another in its place."""
        self._running[which].kill()
        self._running[which] = self._start()

    def restart(self, which: int) -> None:
        """Ask a worker to end, as a roll-out does, and start another in its place."""
        self._running[which].stop()
        self._running[which] = self._start()

    def freeze(self, which: int, seconds: float) -> None:
        """Let a worker stand still for longer than its leases last."""
        process = self._running[which].process
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(seconds)
        process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask all workers to end, and wait for it."""
        for running in self._running:
            running.stop()
        self._stack.close()

    def close(self) -> None:
        """End what still runs."""
        self._stack.close()

    def _start(self) -> Running:
        self._started += 1
        return self._stack.enter_context(self._composition.worker(f"worker{self._started}"))
