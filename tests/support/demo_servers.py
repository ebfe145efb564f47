"""The demo's third-party servers, installed once for all tests of a run."""

from __future__ import annotations

import fcntl
from pathlib import Path

from toolscale.demo.servers import install


def installed_in(directory: Path) -> Path:
    """Return the directory with the servers; the first process installs them, and others wait for it.

    Raises:
        Retryable: the installation of a Python environment failed.
    """
    target = directory / "demo-servers"
    with (directory / "demo-servers.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        install(target, lambda _line: None)
    return target
