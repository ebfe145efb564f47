"""A real Redis of a test's own, on a free loopback port, with the settings that Toolscale asks for."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.ports import free_port

PROGRAM = shutil.which("redis-server")


SETTINGS = {"appendonly": "yes", "maxmemory-policy": "noeviction", "save": "", "bind": "127.0.0.1"}


@contextmanager
def redis_server(directory: Path, **settings: object) -> Generator[str]:
    """Yield the URL of a Redis that keeps an append-only file in `directory`; skips where there is no redis-server.

    `settings` are further settings, with an underscore for each hyphen.
    """
    port = free_port()
    with redis_process(directory, port=port, **SETTINGS, **settings):
        url = f"redis://127.0.0.1:{port}/0"
        wait_until_up(url)
        yield url


@contextmanager
def redis_process(directory: Path, *arguments: str, **settings: object) -> Generator[subprocess.Popen[bytes]]:
    """Run redis-server with these arguments and settings until the block ends; skips where it is not installed."""
    if PROGRAM is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    options = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    process = subprocess.Popen([PROGRAM, *arguments, "--dir", str(directory), *options], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait_until_up(url: str) -> None:
    """Return when a Redis answers at this URL."""
    deadline = time.monotonic() + 60
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server did not come up within 60 s"
                time.sleep(0.02)
            else:
                return
