"""A process writes to its data directory alone, and connects to the addresses of its settings alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_serve import ask
from tests.support.hostile.processes import good_stdio
from tests.support.ports import free_port
from tests.support.processes import Running
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

STRACE = shutil.which("strace")


class Machine:
    """Programs that share a data directory and an empty home; `calls` are their system calls for the network."""

    def __init__(self, directory: Path) -> None:
        self.home, self.data, self._directory = directory / "home", directory / "data", directory
        self.home.mkdir()
        target, self.config = good_stdio(), directory / "mcp.json"
        entry = {"command": target.command, "args": list(target.args)}
        self.config.write_text(json.dumps({"mcpServers": {"good": entry}}), encoding="utf-8")

    @contextmanager
    def running(self, name: str, *arguments: str, **settings: str) -> Generator[Running]:
        """Run a program of ours; SIGTERM ends it."""
        log = self._directory / f"{name}.log"
        # -D: the tracer is a grandchild, so signals go to the program
        traced = [STRACE, "-D", "-f", "-e", "trace=connect", "-o", str(self._calls(name))] if STRACE else []
        environment = {
            "HOME": str(self.home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]),
            "TOOLSCALE_DATA_DIR": str(self.data), "TOOLSCALE_MCP_CONFIG": str(self.config), **settings,
        }  # fmt: skip
        with log.open("wb") as output:
            command = [*traced, sys.executable, *arguments]
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Running(process, log)
        finally:
            process.terminate()
            process.wait(60)

    def files_of_home(self) -> list[str]:
        """Return the files that the programs wrote into the home directory."""
        return [str(path.relative_to(self.home)) for path in self.home.rglob("*")]

    def strangers(self, name: str) -> set[str]:
        """Return the addresses outside this machine to which a program connected, those of name servers too."""
        if not STRACE:
            return set()
        eventually(lambda: "+++ exited" in self._calls(name).read_text(encoding="utf-8"))
        calls = self._calls(name).read_text(encoding="utf-8")
        addresses = re.findall(r'sa_family=AF_INET6?,.*?inet_(?:addr|pton)\((?:AF_INET6, )?"([^"]+)"', calls)
        return {address for address in addresses if not address.startswith("127.") and address != "::1"}

    def _calls(self, name: str) -> Path:
        return self._directory / f"{name}.strace"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_serve_reports_to_nobody(machine: Machine) -> None:
    port = str(free_port())
    with machine.running("serve", "-m", "toolscale", "serve", "--port", port) as serve:
        serve.wait_for('"event": "server_indexed"')
        ask(f"http://127.0.0.1:{port}/mcp")

    assert machine.files_of_home() == []
    assert machine.strangers("serve") == set()


@pytest.mark.redis
def test_a_worker_a_query_service_and_a_command_report_to_nobody(machine: Machine, tmp_path: Path) -> None:
    port = str(free_port())
    with redis_server(tmp_path) as url:
        with machine.running("worker", "-m", "celery", "-A", "workers.app", "worker", REDIS_URL=url) as worker:
            worker.wait_for('"event": "server_indexed"')
        with machine.running("query", "-m", "query", TOOLSCALE_PORT=port, REDIS_URL=url) as query:
            query.wait_for("query_service_started")
            ask(f"http://127.0.0.1:{port}/mcp")
        with machine.running("ls", "-m", "toolscale", "ls", REDIS_URL=url) as ls:
            ls.process.wait(60)

    assert machine.files_of_home() == []
    assert [machine.strangers(name) for name in ("worker", "query", "ls")] == [set(), set(), set()]
