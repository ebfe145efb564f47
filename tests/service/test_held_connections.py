"""Services as real processes with few open files, while clients hold silent connections and bodies without an end."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from shared.service.http import BODIES_BYTES
from shared.service.process import raise_open_files
from tests.support.http_limits import (
    FRIEND,
    Address,
    connected,
    held_open,
    request,
    status_of,
)
from tests.support.ports import free_port
from tests.support.processes import Composition, Running, query_service
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

FILES: Final = 1_024
HELD: Final = 1_030
LOG_BYTES: Final = 8_000
"""A few lines: the log of a service without limits grew by megabytes a second."""

# Runs a module as `python -m` does, with this number of open files.
WITH_FEW_FILES: Final = """
import resource, runpy, sys
files = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
sys.argv = sys.argv[2:]
sys.modules.pop(sys.argv[0], None)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

MCP_HEADERS: Final = ("content-type: application/json", "accept: application/json, text/event-stream")
PING: Final = request("/mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}', *MCP_HEADERS)
LARGE: Final = request(
    "/mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "%s"}}' % (b"x" * 4_000_000), *MCP_HEADERS
)


@dataclass(frozen=True)
class Service:
    """A running process and its address."""

    running: Running
    address: Address

    def status(self, sent: bytes, source: str = "127.0.0.1") -> int:
        """Return the status of a request."""
        return status_of(self.address, sent, source)

    @property
    def rss_bytes(self) -> int:
        return psutil.Process(self.running.process.pid).memory_info().rss


@contextmanager
def service_on_files(directory: Path, *command: str, files: int = FILES) -> Generator[Service]:
    """Run `python -m query` or `toolscale serve` on an empty index."""
    with query_service(directory, "-c", WITH_FEW_FILES, str(files), *command) as (running, address):
        yield Service(running, ("127.0.0.1", int(address.rpartition(":")[2])))


@contextmanager
def service_with_redis(composition: Composition, ready: str, port: int, *command: str) -> Generator[Service]:
    """Run a service of the scaled composition, which listens at this port."""
    environment = {
        "TOOLSCALE_METRICS_PORT": str(port),
        "TOOLSCALE_EVENTS_TOKEN": "a-token-for-tests",
        "TOOLSCALE_EVENTS_PORT": str(port),
    }
    with composition.run("service", "-c", WITH_FEW_FILES, str(FILES), *command, **environment) as running:
        running.wait_for(ready)
        yield Service(running, ("127.0.0.1", port))


def assert_it_outlasts_silent_connections(service: Service) -> None:
    """Check that clients get responses and the log stays short while more connections than files are held."""
    raise_open_files()  # of this process
    before = len(service.running.output())
    with held_open(service.address, HELD):
        for _ in range(10):
            assert service.status(request(), FRIEND) == 200
            # a new connection of the address that holds so many may be closed before it sends anything
            eventually(lambda: service.status(request()) == 200, what="an answer to the address of the others")
    assert len(service.running.output()) - before < LOG_BYTES
    assert service.running.output().count("connection_limit_reached") == 1
    assert "out of system resource" not in service.running.output()


@pytest.mark.parametrize("command", [("toolscale", "serve"), ("query",)], ids=" ".join)
def test_a_query_service_answers_while_silent_connections_are_held(tmp_path: Path, command: tuple[str, ...]) -> None:
    with service_on_files(tmp_path, *command) as service:
        assert_it_outlasts_silent_connections(service)

        assert service.running.stop() == 0


@pytest.mark.redis
@pytest.mark.parametrize(
    ("ready", "command"),
    [
        ("events_api_started", ("workers.events_api",)),
        ("notifications_started", ("workers.notifications",)),
        ("metrics_port_opened", ("celery", "-A", "workers.app", "worker", "--without-mingle")),
    ],
    ids=["events API", "notifications", "worker"],
)
def test_a_service_with_redis_answers_while_silent_connections_are_held(
    own_redis_url: str, tmp_path: Path, ready: str, command: tuple[str, ...]
) -> None:
    with service_with_redis(Composition(own_redis_url, tmp_path, {}), ready, free_port(), *command) as service:
        eventually(lambda: service.status(request()) == 200, what="an answer")

        assert_it_outlasts_silent_connections(service)


def test_held_bodies_take_little_memory_and_small_requests_pass(tmp_path: Path) -> None:
    held = 100
    with service_on_files(tmp_path, "query", files=4_096) as service, ExitStack() as opened:
        assert service.status(LARGE) == 200  # the first use of memory is not the attack's
        before_bytes = service.rss_bytes
        senders: list[threading.Thread] = []
        for number in range(held):
            connection = opened.enter_context(closing(connected(service.address, f"127.0.1.{1 + number % 8}")))
            senders.append(threading.Thread(target=connection.sendall, args=(LARGE[:-1],)))
            senders[-1].start()
        for sender in senders:
            sender.join(60)

        assert service.status(LARGE) == 503
        assert service.status(PING) == 200
        assert service.status(request()) == 200
        # the budget, its copies while they are read and parsed, and the heap around them
        assert service.rss_bytes - before_bytes < 4 * BODIES_BYTES < held * len(LARGE)
