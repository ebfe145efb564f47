from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import time_machine

from tests.support.fake_redis import FakeRedisServer
from tests.support.profiles import load_profile
from tests.support.redis_server import redis_server
from tests.support.warm import forking, shared_fork_server

if TYPE_CHECKING:
    from tests.support.client_homes import Write

_SERVER = pytest.StashKey[ExitStack]()

# A file system in memory, as Linux has it.
IN_MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 4 << 30

# Files that take longest; what is quick fills the gaps that processes leave.
LONGEST_FIRST = ("*/clients/*", "*/test_benchmark_*", "*/chaos/*")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a run; xdist's workers share one fork server."""
    for name in ("COLUMNS", "LINES"):  # xdist sets them for its workers, and a program under test has no terminal
        os.environ.pop(name, None)
    write_into_memory()
    load_profile()
    if config.getoption("numprocesses", None):
        config.stash[_SERVER] = running = ExitStack()
        running.enter_context(shared_fork_server())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the fork server, and with it what still runs."""
    config.stash.get(_SERVER, ExitStack()).close()


def write_into_memory() -> None:
    """Let the tests and their processes write into memory where it holds them: making an index costs a tenth there."""
    if "TMPDIR" not in os.environ and _holds_them(IN_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)


def _holds_them(directory: Path) -> bool:
    if not os.access(directory, os.W_OK):
        return False
    # in a container it is small as a rule, and nothing in it may be executed
    is_executable = not os.statvfs(directory).f_flag & os.ST_NOEXEC
    return is_executable and shutil.disk_usage(directory).free >= ENOUGH_BYTES


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that no process is left alone with one at the end."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    matches = (rank for rank, pattern in enumerate(LONGEST_FIRST) if item.path.match(pattern))
    return next(matches, len(LONGEST_FIRST) + (item.get_closest_marker("process") is None))


@pytest.fixture
def anyio_backend() -> str:
    """Run tests with `await` on asyncio, as the services do."""
    return "asyncio"


@pytest.fixture
def noon() -> Generator[None]:
    """Let no day end during a test."""
    with time_machine.travel(datetime.now(UTC).replace(hour=12)):
        yield


@pytest.fixture(scope="session", autouse=True)
def no_qdrant_server() -> Generator[None]:
    """Keep tests off the server at QDRANT_URL, which may be somebody's; those that use it keep to names of their own.

    They have read where it is when they were imported.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QDRANT_URL", "TOOLSCALE_QDRANT_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Generator[None]:
    """Fork the programs under test from a server that has imported them; it starts with the first one, or xdist."""
    with forking():
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible_processes() -> Generator[None]:
    """Have what tests start heed SIGINT: a run in the background of a script ignores it, and hands that on."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _pass_over)  # ignored here as before; a handler is not handed on
    yield
    signal.signal(signal.SIGINT, before)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""


@pytest.fixture
def patient_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDK probe a server for ten minutes, not ten seconds: a late answer splits the eras of both sides."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 600.0)


@pytest.fixture(scope="session")
def demo_servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the demo's third-party servers, which all processes of a run share; tests only start them."""
    from tests.support.demo_servers import installed_in

    base = tmp_path_factory.getbasetemp()
    return installed_in(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real Redis for the whole run; a test that needs it empty says so."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def fake_redis() -> FakeRedisServer:
    """A fake Redis for one test alone; it needs no program."""
    return FakeRedisServer()


@pytest.fixture
def own_redis_url(tmp_path: Path) -> Generator[str]:
    """A real Redis for one test alone, which it may stop or kill."""
    with redis_server(tmp_path) as url:
        yield url


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a person on Linux without clients, whose present directory is the empty `project`."""
    names = ("XDG_CONFIG_HOME", "APPDATA", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "TOOLSCALE_MCP_CONFIG")
    for variable in names:
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(home / "data"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(home / "project")
    return home


@pytest.fixture
def write(home: Path) -> Write:
    """Write a file below the home directory: a text as it is, or a document as JSON."""

    def write(name: str, document: object) -> Path:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((document if isinstance(document, str) else json.dumps(document)).encode())
        return path

    return write
