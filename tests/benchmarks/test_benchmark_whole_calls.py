"""The tasks of the benchmark of whole calls: the same data each time, and scripts within the limits."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks.whole_calls import world
from benchmarks.whole_calls.tasks import DIRECTORY, TASKS, Task, same
from query.scripts.script import CALLS, SOURCE_BYTES


def test_there_are_twenty_tasks_with_names_of_their_own() -> None:
    assert len({task.name for task in TASKS}) == 20


@pytest.mark.process
def test_the_data_is_the_same_each_time(tmp_path: Path) -> None:
    world.build(tmp_path / "one")
    world.build(tmp_path / "two")

    assert world.state(tmp_path / "one") == world.state(tmp_path / "two")
    assert world.hashes(tmp_path / "one") == world.hashes(tmp_path / "two")


@pytest.fixture
def built() -> Generator[None]:
    """Build the data at its one place, which processes of tests use one after the other."""
    with DIRECTORY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        world.build(DIRECTORY)  # the hashes of its commits are in some calls
        yield


@pytest.mark.process
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_both_ways_use_the_same_servers_within_the_limits_of_a_script(task: Task) -> None:
    calls = [tool for calls in task.rounds() for tool, _ in calls]

    assert len(task.script.encode()) < SOURCE_BYTES
    assert len(calls) <= CALLS
    assert set(re.findall(r"\bcall\(\s*[\"'](\w+):", task.script)) == {tool.partition(":")[0] for tool in calls}
    assert same(task.answer(), json.loads(json.dumps(task.answer())))
