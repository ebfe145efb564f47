"""An entry that runs a container: nothing of it outlives its connection, or for long a killed service."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.upstream.commands import container_run
from tests.edges.serving import HERE, call, serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

IMAGE = "ghcr.io/team/server:1.2"


class Engine:
    """An installed engine, and its containers."""

    def __init__(self, directory: Path, name: str = "docker") -> None:
        self.directory = directory
        directory.mkdir()
        self.program = directory / name
        shutil.copy(HERE / "engine.py", self.program)
        self.program.chmod(0o755)
        self.program.write_text(self.program.read_text().replace("/usr/bin/env python3", sys.executable))

    def entry(self, *options: str, kind: str = "lives-on", image: str = IMAGE, command: str = "") -> dict[str, Any]:
        """Return an entry that runs a server of this kind."""
        server = [sys.executable, str(HERE / "containerised_server.py"), kind]
        return {
            "command": command or self.program.name,
            "args": ["run", *options, image, *server],
            "env": {"PATH": f"{self.directory}:{os.environ['PATH']}"},
        }

    def containers(self) -> list[dict[str, Any]]:
        """Return those that exist, running or not."""
        return [json.loads(file.read_text()) for file in self.directory.glob("engine/*.json")]

    def running(self) -> list[int]:
        """Return the processes of those that run."""
        pids = [int(file.read_text() or 0) for file in self.directory.glob("engine/*.pid")]
        return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "bin")


def entries(engine: Engine) -> dict[str, Any]:
    return {
        "usual": engine.entry("-i", "--rm"),
        "ends": engine.entry("-i", "--rm", kind="ends"),
        "stays": engine.entry("--interactive"),  # without --rm
        "named": engine.entry("-i", "--rm", "--name", "only-one", "-e", "TOKEN=abcdefgh"),
        "by-path": engine.entry("--rm", "-i", "--name=second", command=str(engine.program)),
        "own-id-file": engine.entry("-i", "--cidfile", str(engine.directory / "own.id")),
    }


@pytest.mark.parametrize(
    "program", ["docker", *(pytest.param(name, marks=pytest.mark.slow) for name in ("podman", "nerdctl"))]
)
def test_no_container_outlives_its_connection(tmp_path: Path, program: str) -> None:
    engine = Engine(tmp_path / "bin", program)
    servers = entries(engine)
    del servers["own-id-file"]  # a second start would find it
    with serving(tmp_path, servers) as (running, url):
        running.wait_for('"server_indexed"', times=len(servers))
        assert {call(url, f"{name}:echo") for name in servers} == {"done"}

        running.stop()

        assert engine.running() == []
        assert engine.containers() == []


def test_a_container_whose_client_was_killed_ends(tmp_path: Path, engine: Engine) -> None:
    with serving(tmp_path, {"usual": engine.entry("-i", "--rm")}) as (running, url):
        running.wait_for('"server_indexed"')
        assert call(url, "usual:echo") == "done"
        (container,) = engine.running()[-1:]
        for process in psutil.process_iter(["cmdline"]):
            if str(engine.program) in (process.info["cmdline"] or []):
                process.kill()

        eventually(lambda: container not in engine.running())


def test_what_a_killed_service_left_ends_at_the_next_start(tmp_path: Path, engine: Engine) -> None:
    servers = entries(engine)
    del servers["own-id-file"]
    with serving(tmp_path, servers) as (running, url):
        running.wait_for('"server_indexed"', times=len(servers))
        assert {call(url, f"{name}:echo") for name in servers} == {"done"}
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(30)
    left = set(engine.running())
    assert left

    with serving(tmp_path, servers) as (running, url):
        running.wait_for('"server_indexed"', times=len(servers))
        eventually(lambda: not left & set(engine.running()))
        assert {call(url, f"{name}:echo") for name in servers} == {"done"}


def test_containers_of_another_data_directory_stay(tmp_path: Path, engine: Engine) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with serving(first, {"a": engine.entry("-i", "--rm")}) as (running, url):
        running.wait_for('"server_indexed"')
        assert call(url, "a:echo") == "done"
        (own,) = engine.running()[-1:]
        with serving(second, {"b": engine.entry("-i", "--rm")}) as (other, _):
            other.wait_for('"server_indexed"')
        assert own in engine.running()


def test_a_container_with_a_file_for_its_id_is_found_by_its_label(tmp_path: Path, engine: Engine) -> None:
    with serving(tmp_path, {"own": entries(engine)["own-id-file"]}) as (running, _):
        running.wait_for('"server_indexed"')
        eventually(lambda: not engine.containers())


@pytest.mark.parametrize(
    ("options", "flag"),
    [(["--rm"], "-i"), (["-it", "--rm"], "-t"), (["--interactive=false"], "-i"), (["-i", "--tty"], "-t"), ([], "-i")],
)
def test_the_error_names_the_flag(tmp_path: Path, engine: Engine, options: list[str], flag: str) -> None:
    with serving(tmp_path, {"hinted": engine.entry(*options, kind="ends")}) as (running, _):
        running.wait_for('"server_listing_failed"')
        assert f"`{flag}`" in running.output()
        assert "docker run" in running.output()


RUNS: list[tuple[Sequence[str], bool]] = [
    (["docker", "run", "-i", "x"], True),
    (["sudo", "docker", "run", "-i", "x"], True),
    (["docker", "--context", "far", "container", "run", "-i", "x"], True),
    (["C:\\Program Files\\Docker\\docker.exe", "run", "x"], True),
    (["/usr/local/bin/nerdctl", "--namespace=k8s", "run", "x"], True),
    (["docker", "compose", "run", "x"], False),
    (["docker", "exec", "-i", "x", "run"], False),
    (["docker"], False),
    (["npx", "docker", "run"], False),
    (["docker-mcp", "run", "x"], False),
]


@pytest.mark.parametrize(("words", "runs"), RUNS)
def test_a_command_that_runs_a_container_is_recognised(words: Sequence[str], runs: bool) -> None:
    assert (container_run(words) is not None) == runs
