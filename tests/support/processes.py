"""The scaled composition as real processes, on a Redis and a data directory of a test's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.brisk import TIMES, brisk
from tests.support.waiting import eventually
from tests.support.warm import Process, start

APP = "workers.app"
# Waits that are short enough for a test.
BRISK = {f"{TIMES}.REDELIVER_AFTER_S": 1.0, f"{TIMES}.SWEEP_INTERVAL_S": 0.5}
# For tests that kill the worker with the lease. On a busy machine a worker may lose a short one; where no beat runs,
# the reconciliation is not repeated.
SHORT_LEASE = {**BRISK, f"{TIMES}.LEASE_S": 2.0}


@dataclass(frozen=True)
class Running:
    """A started process and the file its output goes to."""

    process: Process
    log: Path

    def wait_for(self, text: str, within_s: float = 90.0, times: int = 1) -> None:
        """Wait until the output contains this text so many times."""

        def said() -> bool:
            assert self.process.poll() is None, f"exited with {self.process.returncode}:\n{self.output()}"
            return self.output().count(text) >= times

        eventually(said, within_s, what=f"{text!r} in {self.log.name}")

    def output(self) -> str:
        """Return the output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """End it and its children as a crash of the machine would: SIGKILL to the process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        self.process.terminate()
        return self.process.wait(60)


@dataclass(frozen=True)
class Composition:
    """Starts the services on one Redis and one data directory, with these constants in place of the product's."""

    redis_url: str
    directory: Path
    extra_environment: dict[str, str]
    constants: Mapping[str, float] = field(default_factory=lambda: BRISK)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that the services get."""
        return {
            **os.environ,
            "REDIS_URL": self.redis_url,
            "TOOLSCALE_DATA_DIR": str(self.directory),
            **self.extra_environment,
        }

    @contextmanager
    def celery(self, name: str, *arguments: str, app: str = APP, **environment: str) -> Generator[Running]:
        """Run `celery -A <app> <arguments>` until the block ends."""
        with self.run(name, "-m", "celery", "-A", app, *arguments, **environment) as running:
            yield running

    @contextmanager
    def worker(self, name: str = "worker", *options: str, app: str = APP, **environment: str) -> Generator[Running]:
        """Run a worker, ready to take tasks."""
        # a second less before it takes tasks: what its neighbours revoked is nothing to it
        arguments = ("worker", "--without-mingle", "--hostname", f"{name}@localhost", *options)
        with self.celery(name, *arguments, app=app, **environment) as running:
            running.wait_for("ready.")
            yield running

    @contextmanager
    def beat(self, **environment: str) -> Generator[Running]:
        """Run beat, which sends the sweeps."""
        schedule = str(self.directory / "schedule")
        with self.celery("beat", "beat", "--schedule", schedule, **environment) as running:
            yield running

    @contextmanager
    def run(self, name: str, *arguments: str, **environment: str) -> Generator[Running]:
        """Run Python with these arguments in a new process group, which is stopped at the end."""
        log = self.directory / f"{name}.log"
        option, *program = arguments
        if option == "-m":
            arguments = (*brisk(self.constants, program),)
        with log.open("wb") as output:
            process = start(
                [sys.executable, *arguments],
                env={**self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Running(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)


@contextmanager
def query_service(directory: Path, *arguments: str, **settings: str) -> Generator[tuple[Running, str]]:
    """Run Python with these arguments, as a query service on files; yield it and its address on this machine."""
    composition = Composition("", directory, {"REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_PORT": "0", **settings})
    with composition.run("service", *arguments) as running:
        running.wait_for("query_service_started")
        port = re.search(r":(\d+)/mcp", running.output())
        assert port, running.output()
        yield running, f"http://127.0.0.1:{port[1]}"
