"""Programs that the fork server forks behave as new interpreters do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.warm import IS_POSSIBLE, cold_starts, fork_server_running, forking_from, run

pytestmark = [pytest.mark.process, pytest.mark.skipif(not IS_POSSIBLE, reason="programs are forked on Linux alone")]

ENDS = {
    "by its end": "print('out')",
    "with an exit code": "import sys; print('out'); sys.exit(3)",
    "with a message": "import sys; sys.exit('wrong')",
    "by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "by an interrupt": "raise KeyboardInterrupt",
    "after its threads": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print(1))).start()",
    "after what it registered": "import atexit; atexit.register(print, 'last')",
}
SEES = """
import os, signal, sys
print(len(sys.argv), sys.path, os.getcwd(), dict(os.environ) == eval(sys.argv[1]), __name__)
print(sorted(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task") == [str(os.getpid())])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))
print(os.getsid(0) == os.getpid(), sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding)
"""


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_as_a_new_interpreter_does(how: str) -> None:
    command = [sys.executable, "-c", ENDS[how]]

    warm = run(command)
    with cold_starts():
        cold = run(command)

    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def test_a_program_sees_what_a_new_interpreter_sees(tmp_path: Path) -> None:
    environment = {**os.environ, "ONE": "1", "PYTHONPATH": str(tmp_path / "more")}
    command = [sys.executable, "-c", SEES, repr(environment)]

    warm = run(command, env=environment, cwd=tmp_path)
    with cold_starts():
        cold = run(command, env=environment, cwd=tmp_path)

    assert (warm.stdout, warm.stderr) == (cold.stdout, cold.stderr)


def test_programs_end_with_their_client_and_with_their_server() -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(300)"]
    with fork_server_running() as address:
        with forking_from(address) as server:
            with_client = server.fork(sleeps[1:], os.environ, Path.cwd(), [0, 1, 2], [])
        eventually(lambda: not psutil.pid_exists(with_client.pid), what="the end of the client's program")
        with forking_from(address) as server:
            with_server = server.fork(sleeps[1:], os.environ, Path.cwd(), [0, 1, 2], [])
            psutil.Process(with_server.pid).parent().kill()  # type: ignore[union-attr]  # it has one
            eventually(lambda: not psutil.pid_exists(with_server.pid), what="the end of the server's program")


@pytest.mark.cold
@pytest.mark.redis
@pytest.mark.parametrize("entry_point", ["worker", "query", "serve", "events-api"])
def test_each_entry_point_starts_cold(own_redis_url: str, tmp_path: Path, entry_point: str) -> None:
    composition = Composition(
        own_redis_url, tmp_path, {"TOOLSCALE_PORT": "0", "TOOLSCALE_EVENTS_TOKEN": "a-token-for-tests"}
    )
    commands = {
        "worker": (("-m", "celery", "-A", "workers.app", "worker", "--without-mingle"), "ready."),
        "query": (("-m", "query"), "query_service_started"),
        "serve": (("-m", "toolscale", "serve"), "query_service_started"),
        "events-api": (("-m", "workers.events_api"), "events_api_started"),
    }
    command, line = commands[entry_point]
    alone = {"REDIS_URL": ""} if entry_point == "serve" else {}

    with cold_starts(), composition.run(entry_point, *command, **alone) as running:
        assert isinstance(running.process, subprocess.Popen)
        running.wait_for(line, 100)
