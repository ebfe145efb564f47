"""How programs of a build run: from its checkout, and in its own environment where it has one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def interpreter(checkout: Path) -> str:
    """Return the Python of the checkout's `.venv`, or this one."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment of its programs: default settings, and the same for each build."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLSCALE_")}
    # a start that compiles all modules again would take twice the time
    return {**inherited, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}


def processor_s(pid: int) -> float:
    """Return the seconds of processor time that a process of this machine took, to a microsecond."""
    # the clock of another process's processor time, as clock_getcpuclockid(3) returns it; psutil counts hundredths
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def program(
    checkout: Path, arguments: Sequence[str], log: Path, settings: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    """Run Python of a build with these arguments and settings, and kill it at the end."""
    command, variables = [interpreter(checkout), *arguments], {**environment(checkout), **settings}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=checkout, env=variables, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()  # its stores are thrown away
