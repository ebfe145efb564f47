"""The results of the suite, stored as JSON and rendered as `docs/clients.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

Outcome = Literal["yes", "no", "not offered", "ignored"]

APPLICATIONS = Path(__file__).with_name("applications.md").read_text(encoding="utf-8")

LIBRARIES = """## Client libraries

You build an agent with a library, and want to know whether it works with Toolscale.
`make docs-clients` plays the steps below with the published packages and a real `toolscale serve`.
It writes this page from [clients.json](../benchmarks/results/clients.json); `make test-all` plays the steps too.
"""

CLIENTS = """Each library passes every step, except where the table says otherwise.

- It lists the tools, calls `find_tool`, `describe_tool` and `call_tool` on two servers, and gets the next page.
- **wrong arguments**: the agent gets a readable error and goes on.
- **empty arguments**: `[]`, `""` and `null` count as absent.
- **cancels**: the session goes on after a cancelled call.
- **server ends the call**: the server of the called tool gets the cancellation.
  *Not offered*: the library sends none. *Ignored*: it sends a separate request over HTTP.
"""

SERVERS = """## Third-party servers

Each server is imported with `toolscale import` from the file of a client, listed, found by a task, and called.
The tests also use the eleven servers of `toolscale demo`.
"""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class PlayedLibrary(_Kept):
    """A library over a transport: the outcome of each step, and the reasons for missing ones."""

    name: str
    package: str
    version: str
    transport: str
    steps: Mapping[str, Outcome]
    errors: Mapping[str, str] = {}


class PlayedServer(_Kept):
    """A third-party server, the number of its tools, and the called one; `error` is the reason if the call failed."""

    name: str
    package: str
    version: str
    tools: int
    called: str
    error: str = ""


class Results(_Kept):
    """The outcome of all libraries and servers."""

    made_at: str
    python: str
    node: str
    libraries: tuple[PlayedLibrary, ...]
    servers: tuple[PlayedServer, ...]


def render(results: Results) -> str:
    """Return the page."""
    made = f"The results are of {results.made_at}, with Python {results.python} and Node.js {results.node}.\n"
    libraries = "\n".join(_libraries(results.libraries))
    servers = "\n".join(_servers(results.servers))
    return "\n".join([APPLICATIONS, LIBRARIES + made, CLIENTS, libraries, SERVERS, servers])


def _libraries(played: tuple[PlayedLibrary, ...]) -> Iterator[str]:
    yield "| library | version | transport | except |"
    yield "|---|---|---|---|"
    for each in played:
        others = ", ".join(f"{step}: {outcome}" for step, outcome in each.steps.items() if outcome != "yes")
        yield f"| {each.name}: `{each.package}` | {each.version} | {each.transport} | {others} |"
    yield ""
    for each in played:
        yield from (f"{each.name} over {each.transport}, {step}: {error}\n" for step, error in each.errors.items())


def _servers(played: tuple[PlayedServer, ...]) -> Iterator[str]:
    yield "| server | version | tools | called |"
    yield "|---|---|--:|---|"
    for each in played:
        yield f"| `{each.package}` | {each.version} | {each.tools} | {each.error or f'`{each.called}`'} |"
    yield ""
