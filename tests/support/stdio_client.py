"""A client of `toolscale serve --stdio` that reads and writes lines, so that tests see every byte."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.support.processes import Running
from tests.support.waiting import eventually
from tests.support.warm import start

CLIENT = {"name": "test", "version": "1"}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class StdioClient:
    """One client with its process: `lines` has everything that the process wrote."""

    def __init__(self, running: Running, to_process: IO[bytes], from_process: IO[bytes]) -> None:
        self.running = running
        self.lines: list[str] = []
        self._to_process = to_process
        self._ids = 0
        self._reader = threading.Thread(target=self._read, args=(from_process,), daemon=True)
        self._reader.start()

    def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, line: bytes) -> None:
        """Write a line."""
        self._to_process.write(line)
        self._to_process.flush()

    def request(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Write a request and return its id."""
        self._ids += 1
        self.send({"id": self._ids, "method": method, "params": params or {}})
        return self._ids

    def answer(self, request_id: int, within_s: float = 90.0) -> dict[str, Any]:
        """Return the answer to this request."""
        eventually(lambda: self.answers(request_id), within_s, what=f"an answer to {request_id}")
        (answer,) = self.answers(request_id)
        return answer

    def answers(self, request_id: int) -> list[dict[str, Any]]:
        """Return the answers to this request so far."""
        return [message for message in self.messages() if message.get("id") == request_id]

    def messages(self) -> list[dict[str, Any]]:
        """Return all messages so far."""
        return [json.loads(line) for line in list(self.lines)]

    def handshake(self, version: str = "2025-11-25") -> dict[str, Any]:
        """Introduce the client as one of this revision and return the answer."""
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
        answer = self.answer(self.request("initialize", params))
        self.send({"method": "notifications/initialized"})
        return answer

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result."""
        answer = self.answer(self.request("tools/call", {"name": name, "arguments": arguments}))
        result: dict[str, Any] = answer["result"]
        return result

    def found(self, question: str = "the first tool of all") -> str:
        """Return the name of the best tool for a question, once the catalogue has a tool."""
        names: list[str] = []

        def is_found() -> bool:
            found = self.call("find_tool", tool_description=question)
            names.extend(tool["name"] for tool in found["structuredContent"]["tools"])
            return bool(names)

        eventually(is_found, what="a tool")
        return names[0]

    def close(self) -> None:
        """Close the stdin of the process."""
        with suppress(BrokenPipeError):
            self._to_process.close()

    def end(self) -> int:
        """Close the stdin of the process and return its exit code; then all its lines are read."""
        self.close()
        code = self.running.process.wait(60)
        self._reader.join(10)
        return code

    def _read(self, from_process: IO[bytes]) -> None:
        with from_process:
            self.lines.extend(line.decode() for line in iter(from_process.readline, b""))


@contextmanager
def stdio_client(
    data_dir: Path,
    *arguments: str,
    command: Sequence[str] = ("-m", "toolscale", "serve", "--stdio"),
    log: str = "stdio",
    **environment: str,
) -> Generator[StdioClient]:
    """Run `toolscale serve --stdio`, or another command, on this directory for a client until the block ends."""
    path = data_dir / f"{log}.log"
    variables = {**os.environ, "REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_DATA_DIR": str(data_dir), **environment}
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with path.open("wb") as errors:
        process = start(
            [sys.executable, *command, *arguments], env=variables, stdin=theirs_in, stdout=theirs_out, stderr=errors
        )
    os.close(theirs_in)
    os.close(theirs_out)
    client = StdioClient(Running(process, path), os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb"))
    try:
        yield client
    finally:
        client.close()
        if process.poll() is None:
            process.terminate()
            process.wait(20)
