"""A build as a running service, and the requests that it answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.throughput.corpus import definitions, server_id

HOLD = Path(__file__).with_name("hold.py")
REVISION = "2026-07-28"
# The toolset of `benchmarks.serving.service`, also in the earlier build.
TOOLSET = "bench"
_META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "beside", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the revision REVISION; those of one toolset go to its path."""

    method: str
    params: dict[str, Any]
    has_toolset: bool = False

    @classmethod
    def of_tool(cls, tool: str, arguments: dict[str, Any], *, has_toolset: bool = False) -> Request:
        """Return a call of a built-in tool."""
        return cls("tools/call", {"name": tool, "arguments": arguments}, has_toolset)


class Build:
    """A service that answers one request after the other."""

    def __init__(self, url: str, pid: int, client: httpx2.Client) -> None:
        self._url = url
        # the clock of another process's processor time, as clock_getcpuclockid(3) returns it
        self._clock = (~pid << 3) | 2
        self._client = client

    def answer(self, requests: Sequence[Request]) -> tuple[float, list[float]]:
        """Return the processor time of the service for each request, and the duration of each, in ms.

        Raises:
            RuntimeError: an answer is an error.
        """
        began_s, took_ms = time.clock_gettime(self._clock), list[float]()
        for request in requests:
            started = time.perf_counter()
            self._send(request)
            took_ms.append((time.perf_counter() - started) * 1e3)
        return (time.clock_gettime(self._clock) - began_s) * 1e3 / len(requests), took_ms

    def _send(self, request: Request) -> None:
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": REVISION,
            "mcp-method": request.method,
            **({"mcp-name": request.params["name"]} if "name" in request.params else {}),
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": request.method, "params": {**request.params, "_meta": _META}}
        url = f"{self._url}/{TOOLSET}" if request.has_toolset else self._url
        response = self._client.post(url, headers=headers, json=body)
        if not response.is_success or '"isError":true' in response.text:
            raise RuntimeError(f"{request} was answered with {response.status_code}: {response.text[:500]}")


@contextmanager
def build_serving(checkout: Path, tools: int) -> Generator[Build]:
    """Run the query service of a checkout on a catalogue of so many tools; the environment is this process's."""
    with tempfile.TemporaryDirectory() as directory, httpx2.Client(trust_env=False, timeout=60.0) as client:
        process = subprocess.Popen(
            [sys.executable, "-P", str(HOLD), directory, str(tools)],
            env={**os.environ, "PYTHONPATH": str(checkout), "QDRANT_URL": ""},  # both on Qdrant Edge
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url, pid = process.stdout.readline().split()
            yield Build(url, int(pid), client)
        finally:
            process.stdin.close()
            process.wait(60)


def other_requests(tools_per_server: int, seed: int) -> dict[str, Request]:
    """Return a request for each built-in tool but `find_tool`, and two for `tools/list`."""
    server = server_id(0)
    name = f"{server}:{definitions(server, tools_per_server, seed)[0]['name']}"
    return {
        "describe_tool": Request.of_tool("describe_tool", {"names": [name]}),
        "list_available_tools": Request.of_tool("list_available_tools", {}),
        "get_active_toolset": Request.of_tool("get_active_toolset", {}, has_toolset=True),
        "get_savings_report": Request.of_tool("get_savings_report", {}),
        "tools/list": Request("tools/list", {}),
        "tools/list, with a toolset": Request("tools/list", {}, has_toolset=True),
    }


def search(question: str) -> Request:
    """Return a search."""
    return Request.of_tool("find_tool", {"tool_description": question})
