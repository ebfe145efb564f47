"""A driver as a process: requests to a client library, and its replies."""

from __future__ import annotations

import itertools
import json
import select
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

REPLY_S = 90.0

Reply = dict[str, Any]
"""`tools`, or `text` and `is_error`; `cancelled`, or `raised` with the error that the library raised."""


class Driver:
    """A client library with an open session."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._numbers = itertools.count(1)

    def tools(self) -> list[str]:
        """Return the names of the listed tools."""
        tools: list[str] = self._reply(self._send(do="list"))["tools"]
        return tools

    def call(self, name: str, **arguments: Any) -> Reply:
        """Return the reply to a call."""
        return self._reply(self.begin(name, **arguments))

    def answer(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the JSON of a successful call."""
        reply = self.call(name, **arguments)
        assert reply.get("is_error", True) is not True, reply
        answer: dict[str, Any] = json.loads(reply["text"])
        return answer

    def begin(self, name: str, **arguments: Any) -> int:
        """Send a call, and return its number."""
        return self._send(do="call", name=name, arguments=arguments)

    def cancel(self, number: int) -> Reply:
        """Cancel a call as the library does, and return its reply."""
        self._send(do="cancel", id=number)
        return self._reply(number)

    def _send(self, **request: Any) -> int:
        number = int(request.setdefault("id", next(self._numbers)))
        _pipe(self._process.stdin).write(json.dumps(request).encode() + b"\n")
        return number

    def _reply(self, number: int) -> Reply:
        output = _pipe(self._process.stdout)
        assert select.select([output], [], [], REPLY_S)[0], f"no reply within {REPLY_S:.0f} s\n{self._messages()}"
        line = output.readline()
        assert line, f"the driver ended\n{self._messages()}"
        reply: Reply = json.loads(line)
        assert reply.pop("id") == number, reply
        return reply

    def _messages(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]


@contextmanager
def driving(command: Sequence[str], target: dict[str, Any], log: Path) -> Generator[Driver]:
    """Yield a driver with a session to a target: `url`, or `command`, `args` and `env`."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, json.dumps(target)], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            yield Driver(process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    _pipe(process.stdin).close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
