"""A system under test in a process: start, queries, end."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.answering import ToolKey

ROOT = Path(__file__).parents[2]


class OutOfTimeError(Exception):
    """A system did not answer within the time it had."""


class BrokenError(Exception):
    """A system ended, or its output was invalid; the message is its last output."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A system that has its tools: seconds to its first answer, without those in the model, and its largest memory."""

    ready_s: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The tools found, best first, and the seconds of the search; `embed_s` is the share of the model."""

    ranked: list[ToolKey]
    seconds: float
    embed_s: float


class System:
    """A running system that has been given its tools."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def ready(self, within_s: float) -> Ready:
        """Return what it took to get ready.

        Raises:
            OutOfTimeError: it took longer.
            BrokenError: it ended.
        """
        return Ready(**self._line(within_s))

    def ask(self, steps: Sequence[str], k: int, within_s: float) -> Answer:
        """Return its answer.

        Raises:
            OutOfTimeError: it took longer; it must not be asked again.
            BrokenError: it ended.
        """
        _pipe(self._process.stdin).write(json.dumps({"steps": list(steps), "k": k}).encode() + b"\n")
        said = self._line(within_s)
        return Answer([(server, name) for server, name in said["ranked"]], said["seconds"], said["embed_s"])

    def _line(self, within_s: float) -> dict[str, Any]:
        output = _pipe(self._process.stdout)
        if not select.select([output], [], [], within_s)[0]:
            raise OutOfTimeError(f"no answer within {within_s:.0f} s")
        line = output.readline()
        if not line:
            raise BrokenError(self._log.read_text(errors="replace").strip().rpartition("\n")[2])
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def running(module: str, python: Path, tools: Path, vectors: Path) -> Generator[System]:
    """Yield a process that reads these tools; it is ended at the end, however busy it is."""
    log = tools.with_name(f"{module}.log")
    command = [str(python), "-m", f"benchmarks.peers.{module}", str(tools), str(vectors)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        yield System(process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes], patience_s: float = 30.0) -> None:
    _pipe(process.stdin).close()  # it ends by itself when nothing more is asked
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _pipe(process.stdout).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the process was started without pipes")
    return pipe
