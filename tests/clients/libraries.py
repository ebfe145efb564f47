"""The client libraries, each with its environment and its driver."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.clients.steps import ENDS_CALL
from toolscale.demo.servers import NodeEnvironment, PythonEnvironment

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / "environments"
DRIVERS = HERE / "drivers"

Transport = Literal["http", "stdio"]
LockedEnvironment = PythonEnvironment | NodeEnvironment

HTTP: tuple[Transport, ...] = ("http",)
BOTH: tuple[Transport, ...] = ("http", "stdio")

Reason = Literal["not offered", "ignored"]
"""The library sends no cancellation, or sends it over HTTP in a separate request, which Toolscale ignores."""


def python(name: str) -> PythonEnvironment:
    """Return the environment of a lock file in `environments`."""
    return PythonEnvironment(name, ENVIRONMENTS / f"{name}.lock")


def node(name: str) -> NodeEnvironment:
    """Return the environment of a directory in `environments`."""
    return NodeEnvironment(name, ENVIRONMENTS / name / "package.json", ENVIRONMENTS / name / "package-lock.json")


def locked_version(package: str, environment: LockedEnvironment) -> str:
    """Return the version of a package in an environment's lock file."""
    lock = environment.lock.read_text(encoding="utf-8")
    if isinstance(environment, NodeEnvironment):
        return str(json.loads(lock)["packages"][f"node_modules/{package}"]["version"])
    return str(re.findall(rf"^{package}==(\S+)", lock, re.MULTILINE)[0])


@dataclass(frozen=True, slots=True)
class Library:
    """A client library: its name, its package, its environment and its driver.

    `unended` has the reason for which a cancelled call goes on at its server, by transport.
    """

    name: str
    package: str
    environment: LockedEnvironment
    driver: str
    transports: tuple[Transport, ...] = HTTP
    unended: Mapping[Transport, Reason] = field(default_factory=dict[Transport, Reason])

    @property
    def needs_node(self) -> bool:
        """Return whether its driver is a program of Node.js."""
        return isinstance(self.environment, NodeEnvironment)

    @property
    def version(self) -> str:
        """Return the locked version."""
        return locked_version(self.package, self.environment)

    def why_not(self, step: str, transport: Transport) -> Reason | None:
        """Return the reason for which the library cannot play this step over this transport."""
        return self.unended.get(transport) if step == ENDS_CALL else None

    def command(self, directory: Path) -> list[str]:
        """Return the driver's command, with the environment installed in `directory`."""
        programs = self.environment.programs(directory)
        if not self.needs_node:
            return [str(programs / "python"), str(DRIVERS / self.driver)]
        installed = directory / self.environment.name
        for module in DRIVERS.glob("*.mjs"):  # Node.js searches for packages from the directory of the module
            shutil.copy(module, installed)
        return ["node", str(installed / self.driver)]


IGNORED: Mapping[Transport, Reason] = {"http": "ignored"}
NEVER_SENT: Mapping[Transport, Reason] = dict.fromkeys(BOTH, "not offered")

SDK_1 = "@modelcontextprotocol/sdk"
SDK_2 = "@modelcontextprotocol/client"

LIBRARIES = (
    Library("TypeScript SDK 2", SDK_2, node("typescript-client"), "typescript_client.mjs", BOTH),
    Library("TypeScript SDK 1", SDK_1, node("typescript-sdk"), "typescript_sdk.mjs", BOTH, IGNORED),
    Library("TypeScript SDK 1.10", SDK_1, node("typescript-sdk-1.10"), "typescript_sdk.mjs", HTTP, IGNORED),
    Library("Python SDK 1", "mcp", python("python-sdk"), "python_sdk.py", BOTH, NEVER_SENT),
    Library("FastMCP", "fastmcp-slim", python("fastmcp"), "fastmcp_client.py"),
    Library("LangChain", "langchain-mcp-adapters", python("langchain"), "langchain_tools.py", HTTP, NEVER_SENT),
    Library("OpenAI Agents", "openai-agents", python("openai-agents"), "openai_agent.py"),
    Library("Pydantic AI", "pydantic-ai-slim", python("pydantic-ai"), "pydantic_agent.py"),
    Library("LlamaIndex", "llama-index-tools-mcp", python("llama-index"), "llama_index_tools.py"),
)
