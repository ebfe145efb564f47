"""The background service of a data directory, which outlives the clients that started it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.waiting import eventually
from toolscale.client.instance import Instance, read_instance


def running_instance(data_dir: Path) -> Instance:
    """Return the instance of a service that runs."""
    instance = read_instance(data_dir)
    assert instance is not None
    return instance


def end_background(data_dir: Path, number: int = signal.SIGTERM) -> None:
    """End the background service of this directory, if there is one, and wait until it has ended."""
    instance = read_instance(data_dir)
    if instance is None or not instance.is_background:
        return
    with suppress(ProcessLookupError):
        os.kill(instance.pid, number)
    eventually(lambda: _has_ended(instance.pid), what=f"the end of process {instance.pid}")


@contextmanager
def background_ended(data_dir: Path) -> Generator[None]:
    """End the background service of this directory after the block."""
    try:
        yield
    finally:
        end_background(data_dir)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
