"""`toolscale serve` with a third-party server and a server of the tests, and sessions of the libraries with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ToolscaleError
from tests.clients.driving import Driver, driving
from tests.clients.libraries import Library, Transport
from tests.clients.steps import wait_until_listed
from tests.support.background import background_ended
from tests.support.hostile.processes import callable_stdio
from tests.support.processes import Composition
from toolscale.demo.servers import MODERN, Environment

WITHOUT_STORES = {"REDIS_URL": "", "QDRANT_URL": ""}


@dataclass(frozen=True, slots=True)
class Service:
    """A service over HTTP, the configuration of its servers, and the directory of the environments."""

    url: str
    config: Path
    environments: Path

    @contextmanager
    def session(self, library: Library, transport: Transport, directory: Path) -> Generator[Driver]:
        """Yield a library with a session, after the servers are listed; over stdio with a service of its own."""
        target = {"url": self.url} if transport == "http" else over_stdio(self.config, directory)
        command, log = library.command(self.environments), directory / "driver.log"
        with background_ended(directory), driving(command, target, log) as driver:
            wait_until_listed(driver)
            yield driver


def over_stdio(config: Path, directory: Path) -> dict[str, Any]:
    """Return the command that serves the configuration over stdio."""
    arguments = ["-m", "toolscale", "serve", "--stdio", "--config", str(config)]
    names = ("PATH", "HOME", "PYTHONPATH")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {**WITHOUT_STORES, "TOOLSCALE_DATA_DIR": str(directory)}
    return {"command": sys.executable, "args": arguments, "env": environment}


@dataclass(frozen=True, slots=True)
class Installed:
    """The directory of the environments, and the errors of those that were not installed."""

    directory: Path
    errors: Mapping[str, str]


@contextmanager
def install(environments: Iterable[Environment], directory: Path) -> Generator[Installed]:
    """Install the environments in parallel, and remove them at the end: they take some hundred megabytes."""

    def error_of(environment: Environment) -> str:
        try:
            environment.install(directory)
        except ToolscaleError as error:
            return str(error)
        return ""

    by_name = {environment.name: environment for environment in environments}
    with ThreadPoolExecutor() as pool:
        errors = zip(by_name, pool.map(error_of, by_name.values()), strict=True)
        installed = Installed(directory, {name: error for name, error in errors if error})
    try:
        yield installed
    finally:
        shutil.rmtree(directory)


@contextmanager
def serving(demo_servers: Path, environments: Path, directory: Path) -> Generator[Service]:
    """Serve the time server of the demo and the callable server to the libraries of these environments."""
    target = callable_stdio()
    clock = str(MODERN.programs(demo_servers) / "mcp-server-time")
    servers = {
        "time": {"command": clock, "args": ["--local-timezone", "UTC"]},
        "callable": {"command": target.command, "args": list(target.args)},
    }
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    command = ("-m", "toolscale", "serve", "--config", str(config), "--port", "0")
    with Composition("", directory, WITHOUT_STORES).run("serve", *command) as running:
        running.wait_for("query_service_started")
        url = re.search(r"http://127\.0\.0\.1:\d+/mcp", running.output())
        assert url, running.output()
        yield Service(url.group(), config, environments)
