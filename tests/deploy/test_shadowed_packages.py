"""A directory with a package of the name of ours: processes start there, or refuse in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.cold]
ROOT = Path(__file__).parents[2]
COMMANDS = {
    "query": ["query", "--help"],
    "toolscale": ["toolscale", "--help"],
    "celery": ["celery", "-A", "workers.app", "report"],
    "notifications": ["workers.notifications"],
}


def started(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of ours in this directory, as a user of an installation elsewhere."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "shadowed"),
    [
        ("query", "shared"),
        ("celery", "shared"),
        ("notifications", "shared"),
        ("toolscale", "shared"),
        ("toolscale", "workers"),
        ("toolscale", "query"),
    ],
)
def test_a_process_refuses_a_foreign_package_and_names_both(command: str, shadowed: str, tmp_path: Path) -> None:
    foreign = tmp_path / shadowed / "__init__.py"
    foreign.parent.mkdir()
    foreign.touch()

    ended = started(COMMANDS[command], tmp_path)

    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: the package `{shadowed}` is loaded from {foreign}, not from {ROOT / shadowed / '__init__.py'}: "
        "use another directory\n"
    )


def test_directories_without_a_package_shadow_nothing(tmp_path: Path) -> None:
    for name in ("shared", "workers", "query"):
        (tmp_path / name).mkdir()

    for command in ("query", "toolscale"):
        ended = started(COMMANDS[command], tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_package_that_is_not_needed_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()

    assert started(COMMANDS["query"], tmp_path).returncode == 0
