"""What a stdio server has started ends with its connection, in time, and also where Toolscale is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.edges.serving import alive, call, program, serving
from tests.support.processes import Running
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

STARTERS = ("same-group", "own-session", "holds-pipes", "detached", "no-environment", "ignores-signals")
SLOW = ("closes-in-0.5", "closes-in-2", "closes-in-4", "ignores-input-closes-at-sigterm")
KINDS = (*STARTERS, "ignores-input", *SLOW)


@pytest.fixture
def directories(tmp_path: Path) -> dict[str, Path]:
    found = {kind: tmp_path / kind for kind in KINDS}
    for directory in found.values():
        directory.mkdir()
    return found


def entries(directories: dict[str, Path]) -> dict[str, object]:
    return {kind: program("child_server", str(path), kind) for kind, path in directories.items()}


def listed(running: Running, count: int) -> None:
    running.wait_for('"server_indexed"', times=count)


def gone(directory: Path, within_s: float, those: set[int] | None = None) -> None:
    """Wait until no process of this directory lives, or none of those."""
    eventually(lambda: not alive(directory) & (those or alive(directory)), within_s, f"the end of {directory.name}")


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL]
)
def test_no_process_of_a_called_server_outlives_the_service(
    tmp_path: Path, directories: dict[str, Path], number: int
) -> None:
    if number == signal.SIGKILL:  # its parent ends at once too, and then nothing tells whose process it is
        del directories["no-environment"]
    with serving(tmp_path, entries(directories)) as (running, url):
        listed(running, len(directories))
        assert {call(url, f"{kind}:echo") for kind in directories} == {"started"}
        for kind, directory in directories.items():
            assert len(alive(directory)) > 1, kind

        running.process.send_signal(number)
        running.process.wait(60)

        # each had 5 s twice at the most, all of them at the same time
        limit_s = 3.0 if number == signal.SIGKILL else 0.5
        for directory in directories.values():
            gone(directory, limit_s + 12)
        if number != signal.SIGKILL:
            assert {kind for kind in SLOW if Path(directories[kind], "closed").exists()} == set(SLOW)


def test_what_a_crashed_server_left_ends_at_once(tmp_path: Path, directories: dict[str, Path]) -> None:
    # once its parent is gone, nothing tells whose process one without environment is
    kinds = {kind: directories[kind] for kind in STARTERS if kind != "no-environment"}
    with serving(tmp_path, entries(kinds)) as (running, url):
        listed(running, len(kinds))
        assert {call(url, f"{kind}:echo") for kind in kinds} == {"started"}
        left = {kind: alive(directory) for kind, directory in kinds.items()}

        for kind in kinds:
            assert kind in call(url, f"{kind}:echo", crash=True)

        for kind, directory in kinds.items():
            gone(directory, 30, left[kind])


def test_a_listing_leaves_no_process(tmp_path: Path, directories: dict[str, Path]) -> None:
    with serving(tmp_path, entries(directories)) as (running, _):
        listed(running, len(KINDS))

        for directory in directories.values():
            gone(directory, 60)


def test_a_process_without_the_mark_is_another_ones(tmp_path: Path) -> None:
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / str(os.getpid())).touch()
    with serving(tmp_path, {"own-session": program("child_server", str(directory), "own-session")}) as (running, _):
        listed(running, 1)
        eventually(lambda: alive(directory) == {os.getpid()}, 60)
