"""The results of the suite, stored as JSON and rendered as `docs/clients.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

Outcome = Literal["yes", "no", "not offered", "ignored"]

HEAD = """# Clients and servers that the tests use

`make docs-clients` writes this page from [clients.json](../benchmarks/results/clients.json).
It installs the published packages from lock files, and starts a real `toolscale serve`.
`make test-all` plays the same steps.
"""

CLIENTS = """## Client libraries

Each library lists the tools, and calls `find_tool`, `describe_tool` and `call_tool` on two servers.
Pydantic AI and OpenAI Agents run an agent with a scripted model, the latter with schemas in strict mode.

- **wrong arguments**: the agent gets a readable error and goes on.
- **empty arguments**: `[]`, `""` and `null` count as absent, for each optional argument.
- **cancels**: the session goes on after a cancelled call.
- **server ends the call**: the server of the called tool gets the cancellation.
  *Not offered*: the library sends no cancellation.
  *Ignored*: it sends a separate request over HTTP, which Toolscale [ignores](tools.md#call_tool).
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
    return "\n".join([HEAD + made, CLIENTS, libraries, SERVERS, servers])


def _libraries(played: tuple[PlayedLibrary, ...]) -> Iterator[str]:
    steps = list(played[0].steps)
    yield f"| library | version | transport | {' | '.join(steps)} |"
    yield "|---" * (3 + len(steps)) + "|"
    for each in played:
        package = f"{each.name}: `{each.package}`"
        yield f"| {package} | {each.version} | {each.transport} | {' | '.join(each.steps.values())} |"
    yield ""
    for each in played:
        yield from (f"{each.name} over {each.transport}, {step}: {error}\n" for step, error in each.errors.items())


def _servers(played: tuple[PlayedServer, ...]) -> Iterator[str]:
    yield "| server | version | tools | called |"
    yield "|---|---|--:|---|"
    for each in played:
        yield f"| `{each.package}` | {each.version} | {each.tools} | {each.error or f'`{each.called}`'} |"
    yield ""
