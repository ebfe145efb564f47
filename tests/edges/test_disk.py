"""A disk without room, or one that takes no writes, is one line and a finding: never a signal, never a traceback."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx2
import pytest

from shared.errors import IndexHeld, IndexUnavailable
from shared.index import open_store
from shared.service.files import MIN_FREE_BYTES
from shared.settings import load_settings
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

FULL = "size=3m"
NEARLY_FULL = f"size={(MIN_FREE_BYTES >> 20) - 2}m"
READ_ONLY = "ro,size=100m"


def mounted(options: str, directory: Path, *command: str, before: str = "") -> list[str]:
    """Return the words that run a command where a file system with these options is at the directory."""
    disk = f"mount -t tmpfs -o {options} tmpfs {shlex.quote(str(directory))}"
    words = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*words, disk], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no process have a file system of its own")
    return [*words, f"{disk} && {before} exec {shlex.join([sys.executable, '-m', *command])}"]


@pytest.mark.parametrize("options", [FULL, NEARLY_FULL, READ_ONLY])
@pytest.mark.parametrize(
    "command",
    [("toolscale", "doctor"), ("toolscale", "serve", "--port", "0"), ("toolscale", "ls"), ("query",)],
    ids=lambda command: command[-1],
)
def test_a_program_ends_with_a_line(command: tuple[str, ...], options: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()

    ended = subprocess.run(
        mounted(options, data, *command),
        env={**os.environ, "TOOLSCALE_DATA_DIR": str(data), "TOOLSCALE_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    shown = ended.stdout + ended.stderr
    assert ended.returncode in (1, 2), shown
    assert "Traceback" not in shown
    assert "data_dir" in shown.lower() or "data directory" in shown
    if command[-1] != "doctor":
        assert len(shown.splitlines()) == 1


def test_a_service_whose_disk_fills_up_is_not_ready_and_stays(tmp_path: Path) -> None:
    data, signs, log = tmp_path / "data", tmp_path / "fill", tmp_path / "log"
    data.mkdir()
    fill = (
        f"(until [ -e {signs} ]; do sleep 0.05; done; dd if=/dev/zero of={data}/fill bs=1M; rm {signs}) 2>/dev/null &"
    )
    command = mounted("size=120m", data, "toolscale", "serve", "--port", "0", before=fill)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "TOOLSCALE_DATA_DIR": str(data)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        eventually(lambda: "query_service_started" in log.read_text(), 90, what="the service")
        url = re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())[-1] + "/readyz"
        eventually(lambda: httpx2.get(url).status_code == 200, 60, what="a service that is ready")

        signs.touch()

        eventually(partial(_names_the_disk, url), 60, what="a service that is not ready")
        assert process.poll() is None
        assert "Traceback" not in log.read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _names_the_disk(url: str) -> bool:
    answer = httpx2.get(url)
    return answer.status_code == 503 and "disk" in answer.json().get("checks", {})


@pytest.mark.parametrize("file_bytes", [1_000, 100_000, 1_000_000])
def test_an_index_that_cannot_be_written_is_not_called_held(file_bytes: int, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler: Callable[..., object] | int | None = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, limits[1]))
    try:
        with pytest.raises(IndexUnavailable) as refused:
            open_store(load_settings(data_dir=tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)

    assert not isinstance(refused.value, IndexHeld)
