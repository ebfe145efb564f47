"""A stdio server reads nothing from the environment of the process that started it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from celery import Celery

from tests.support.events_api import TOKEN
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SECRETS = {"TOOLSCALE_EVENTS_TOKEN": "events" * 6, "TOOLSCALE_CREDENTIAL_GITHUB": "a-token-of-github"}
# The server of the file: it stores all that it can read, and ends.
READS = 'cat /proc/$PPID/environ /proc/$PPID/maps > "$0" 2>&1; env >> "$0"; echo done >> "$0"'
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the environment of a process is a file on Linux only"),
    # root reads every file in /proc by its capabilities
    pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root without setpriv"),
]


def unprivileged(*command: str) -> list[str]:
    """Return the command, without the capabilities of root."""
    return [*(WITHOUT_CAPABILITIES if os.geteuid() == 0 else ()), *command]


@contextmanager
def running(directory: Path, *arguments: str, **environment: str) -> Generator[subprocess.Popen[bytes]]:
    """Run Python with these arguments and the secrets until the block ends."""
    given = {"PATH": os.environ["PATH"], "TOOLSCALE_DATA_DIR": str(directory), "PYTHONPATH": str(ROOT), **SECRETS}
    with (directory / "log").open("wb") as log:
        command = unprivileged(sys.executable, *arguments)
        process = subprocess.Popen(
            command, cwd=ROOT, env={**given, **environment}, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def found(tmp_path: Path) -> Path:
    return tmp_path / "found"


@pytest.fixture
def config(tmp_path: Path, found: Path) -> Path:
    """Return an `mcp.json` with the server that reads."""
    path = tmp_path / "mcp.json"
    entry = {"command": "sh", "args": ["-c", READS, str(found)]}
    path.write_text(json.dumps({"mcpServers": {"reads": entry}}), encoding="utf-8")
    return path


def read_by_server(found: Path) -> str:
    eventually(lambda: found.exists() and found.read_text(errors="replace").endswith("done\n"), what=str(found))
    return found.read_text(errors="replace")


def has_secret(text: str) -> bool:
    return any(secret in text for secret in SECRETS.values())


def test_a_child_of_an_unprotected_process_reads_its_secrets(tmp_path: Path, found: Path) -> None:
    program = f"import subprocess; subprocess.run(['sh', '-c', {READS!r}, {str(found)!r}], env={{}})"

    with running(tmp_path, "-c", program):
        assert has_secret(read_by_server(found))


def test_a_stdio_server_of_serve_reads_no_secret(tmp_path: Path, config: Path, found: Path) -> None:
    arguments = ("-m", "toolscale", "serve", "--config", str(config), "--port", "0")

    with running(tmp_path, *arguments) as process:
        text = read_by_server(found)

        assert process.poll() is None
    assert not has_secret(text)
    assert text.count("Permission denied") == 2


@pytest.mark.slow
@pytest.mark.redis
def test_a_stdio_server_of_a_worker_reads_no_secret(
    tmp_path: Path, config: Path, found: Path, own_redis_url: str
) -> None:
    given = {"REDIS_URL": own_redis_url, "TOOLSCALE_MCP_CONFIG": str(config)}

    with running(tmp_path, "-m", "celery", "-A", "workers.app", "worker", **given):
        text = read_by_server(found)

    assert not has_secret(text)
    assert text.count("Permission denied") == 2


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize(
    "arguments",
    [
        "-m query",
        "-m toolscale serve --stdio",
        "-m workers.notifications",
        "-m workers.events_api",
        "-m celery -A workers.app beat --schedule {}/schedule",
        "-m toolscale watch docker",
    ],
)
def test_every_process_with_secrets_is_protected(tmp_path: Path, own_redis_url: str, arguments: str) -> None:
    environment: Mapping[str, str] = {
        "REDIS_URL": own_redis_url,
        "TOOLSCALE_PORT": "0",
        "TOOLSCALE_EVENTS_PORT": "0",
        "TOOLSCALE_EVENTS_TOKEN": TOKEN,
    }

    with running(tmp_path, *arguments.format(tmp_path).split(), **environment) as process:
        command = unprivileged("cat", f"/proc/{process.pid}/environ")
        is_protected = lambda: subprocess.run(command, capture_output=True, check=False).returncode == 1  # noqa: E731
        eventually(is_protected, what=(tmp_path / "log").read_text())

        assert process.poll() is None


@pytest.mark.redis
def test_a_worker_that_gets_sighup_stays_on_redis(tmp_path: Path, own_redis_url: str) -> None:
    log = tmp_path / "log"
    arguments = ("-m", "celery", "-A", "workers.app", "worker", "--without-mingle")

    with running(tmp_path, *arguments, REDIS_URL=own_redis_url) as process:
        eventually(lambda: "ready." in log.read_text(), what="a ready worker")
        process.send_signal(signal.SIGHUP)

        with Celery(broker=own_redis_url) as client:
            assert client.control.broadcast("ping", reply=True, limit=1, timeout=30)
        assert process.poll() is None
    assert "Restarting" not in log.read_text()


def test_a_worker_refuses_to_detach(tmp_path: Path) -> None:
    with running(tmp_path, "-m", "celery", "-A", "workers.app", "worker", "--detach") as process:
        assert process.wait(60) == 1
    assert "without --detach" in (tmp_path / "log").read_text()


# What a service does at its start; then it leaves an orphan to process 1, and waits for a signal.
FIRST_PROCESS = """
import os, signal, subprocess, sys, time
from shared.service.process import protect_memory
protect_memory()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
# `print` in a handler raises RuntimeError while the program prints
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"SIGINT\\n"))
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"SIGUSR1\\n"))
subprocess.run(["sh", "-c", "sleep 0.01 & exit 0"])
print("ready", flush=True)
while True:
    time.sleep(0.01)  # `signal.pause` misses a signal just before it
"""
# Process 1 gets a signal before it executes `shared.service.init`.
EARLY_SIGNAL = """
import os, signal, sys, time
from shared.service.process import protect_memory
execve = os.execve
os.execve = lambda *arguments: (os.kill(1, signal.SIGTERM), execve(*arguments))
signal.signal(signal.SIGTERM, lambda *_: os.getpid() == 1 or sys.exit(7))
protect_memory()
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
while True:
    time.sleep(0.01)  # `signal.pause` misses a signal just before it
"""
needs_unshare = pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not installed")
AS_ROOT = () if os.geteuid() == 0 else ("--map-root-user",)
IN_A_NAMESPACE = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", *AS_ROOT)


@pytest.fixture
def first_process() -> Generator[psutil.Process]:
    """Yield the process with id 1 of a new namespace, as in a container, with a service at its start."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **SECRETS}
    command = [*IN_A_NAMESPACE, sys.executable, "-c", FIRST_PROCESS]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as outside:
        assert outside.stdout is not None
        if not outside.stdout.readline():
            _, reason = outside.communicate()
            pytest.skip(f"no new namespace: {reason}")
        (process,) = psutil.Process(outside.pid).children()
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@needs_unshare
def test_process_1_of_a_container_has_no_secret_reaps_orphans_and_passes_signals_on(
    first_process: psutil.Process,
) -> None:
    eventually(lambda: len(first_process.children()) == 1, what="no orphans")

    assert first_process.environ() == {}
    assert first_process.cmdline()[-2].endswith("init.py")
    assert first_process.children()[0].cmdline()[1] == "-c"

    outside = first_process.parent()
    first_process.terminate()
    assert outside is not None
    assert outside.wait(30) == 7


def in_a_namespace(program: str) -> list[str]:
    """Return the command that runs a program as process 1; skip the test where the kernel refuses a namespace."""
    if subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no new namespace")
    return [*IN_A_NAMESPACE, sys.executable, "-c", program]


@needs_unshare
def test_process_1_of_a_container_keeps_a_signal_of_its_start() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}

    ran = subprocess.run(
        in_a_namespace(EARLY_SIGNAL), cwd=ROOT, env=environment, capture_output=True, timeout=30, check=False
    )

    assert ran.returncode == 7, ran.stderr


@needs_unshare
def test_one_ctrl_c_in_a_terminal_is_one_sigint() -> None:
    command = in_a_namespace(FIRST_PROCESS)
    pid, terminal = pty.fork()
    if not pid:
        os.execvpe(command[0], command, {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)})
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        lines = iter(screen.readline, b"")
        assert next(lines) == b"ready\r\n"
        (first,) = psutil.Process(pid).children()

        screen.write(b"\x03")
        assert next(lines) == b"^CSIGINT\r\n"
        first.send_signal(signal.SIGUSR1)  # process 1 forwards it after all signals with lower numbers
        assert next(lines) == b"SIGUSR1\r\n"

        first.terminate()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
