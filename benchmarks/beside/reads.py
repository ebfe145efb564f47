"""The requests that two query services answer in turns, and the processor time of each."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.beside.builds import environment, interpreter, processor_s
from benchmarks.beside.results import Compared, Measured, Table
from benchmarks.serving.plan import FULL as SERVED
from benchmarks.throughput.corpus import definitions, queries, server_id
from benchmarks.throughput.machine import Watches

CAVEATS = (
    "One client sends one request after the other, as plain HTTP; vectors of the tools are random.",
    "Processor time includes all threads of the service, also those that write the history in the background.",
)
NOTE = "Processor time of the service for a request, in ms."

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
class Plan:
    """Sizes of a run: tools, rounds, and requests of each kind in a round."""

    tools: tuple[int, ...]
    rounds: int
    requests: int
    seed: int = 20260704


FULL = Plan(tools=(1_000, 10_000), rounds=40, requests=20)
QUICK = Plan(tools=(1_000,), rounds=2, requests=2)


def measure(before: Path, now: Path, watches: Watches, *, is_quick: bool) -> Measured:
    """Measure both builds at each size."""
    plan = QUICK if is_quick else FULL
    tables = (watches.measure(f"{tools:,} tools", partial(_table, before, now, tools, plan)) for tools in plan.tools)
    method = f"{plan.rounds} rounds of {plan.requests} requests of each kind"
    return Measured(method=method, caveats=CAVEATS, tables=tuple(tables))


def _table(before: Path, now: Path, tools: int, plan: Plan) -> Table:
    with build_serving(before, tools) as earlier, build_serving(now, tools) as present:
        questions = iter(queries((plan.rounds + 1) * plan.requests, plan.seed))
        rounds = [_round(plan, questions, (earlier, present)) for _ in range(plan.rounds + 1)]
    measured = rounds[1:]  # the first one warms up
    rows = (
        Compared.of(request, *([each[request][build] for each in measured] for build in (0, 1)))
        for request in measured[0]
    )
    return Table(title=f"At {tools:,} tools", note=NOTE, rows=tuple(rows))


def _round(plan: Plan, questions: Iterator[str], builds: Sequence[Build]) -> dict[str, list[float]]:
    """Send the same requests to one build after the other, and return what each took of both, by request."""
    searches = [search(question) for question in islice(questions, plan.requests)]
    others = other_requests(SERVED.tools_per_server, SERVED.seed)
    batches: dict[str, list[Request]] = {
        "find_tool, never asked before": searches,
        "find_tool, asked before": searches,
        **{name: [request] * plan.requests for name, request in others.items()},
    }
    return {name: [build.answer(batch) for build in builds] for name, batch in batches.items()}


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
        self._pid = pid
        self._client = client

    def answer(self, requests: Sequence[Request]) -> float:
        """Return the processor time of the service for each request, in ms.

        Raises:
            RuntimeError: an answer is an error.
        """
        began_s = processor_s(self._pid)
        for request in requests:
            self._send(request)
        return (processor_s(self._pid) - began_s) * 1e3 / len(requests)

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
    """Run the query service of a checkout on a catalogue of so many tools."""
    with tempfile.TemporaryDirectory() as directory, httpx2.Client(trust_env=False, timeout=60.0) as client:
        process = subprocess.Popen(
            [interpreter(checkout), "-P", str(HOLD), directory, str(tools)],
            env={**environment(checkout), "QDRANT_URL": ""},  # both on Qdrant Edge
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
