"""Starts Python programs under test: forked from a warm server where one runs, else as new interpreters.

Both are real processes, each with its session, environment and exit code.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from tests.support import fork_server

ROOT = Path(__file__).parents[2]
# Names the socket of the server that xdist's workers share.
ADDRESS = "FORK_SERVER_OF_TESTS"
# Elsewhere libraries of the system start threads, and do not outlive a fork.
IS_POSSIBLE = sys.platform == "linux"

Output = IO[bytes] | int


class Process(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A program that the server forked; its exit code comes through a pipe."""

    def __init__(self, status: int, arguments: Sequence[str]) -> None:
        self._status = status
        self._arguments = arguments
        self._read = b""
        self._reading = threading.Lock()
        self.returncode: int | None = None
        while b"\n" not in self._read:
            self._read_on(None)
            assert self.returncode is None, "the fork server ended"
        first, _, self._read = self._read.partition(b"\n")
        self.pid = int(first)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        self._read_on(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and left is not None and left < 0:
                raise subprocess.TimeoutExpired(list(self._arguments), timeout)
            self._read_on(left)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read_on(self, timeout: float | None) -> None:
        if self.returncode is not None or not self._is_readable(timeout):
            return
        with self._reading:
            if self.returncode is None and self._is_readable(0.0):
                read = os.read(self._status, 64)
                self._read += read
                if not read:
                    self.returncode = int(self._read or -signal.SIGKILL)  # a server that is killed takes all along

    def _is_readable(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(None if timeout is None else 1000 * max(timeout, 0.0)))

    def __del__(self) -> None:
        os.close(self._status)


class Server:
    """A connection to a fork server."""

    def __init__(self, address: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        self._read: dict[str, str | None] | None = None
        self._greeting = threading.Lock()

    def wait_until_ready(self) -> None:
        """Return once the server has imported all."""
        with self._greeting:
            if self._read is None:
                hello = self._connection.recv(fork_server.MOST_BYTES)
                assert hello, "the fork server ended"
                self._read = json.loads(hello)

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether the imports would have gone the same way with this environment."""
        self.wait_until_ready()
        names = {*os.environ, *environment}
        return (
            all((environment.get(name) or None) == value for name, value in (self._read or {}).items())
            and all(environment.get(name) == os.environ.get(name) for name in names if not fork_server.is_heeded(name))
            and not _customizes(environment.get("PYTHONPATH", ""))
        )

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        stdio: Sequence[int],
        fds: Sequence[int],
    ) -> Forked:
        """Fork a program with these standard streams; `fds` keep their numbers."""
        request: fork_server.Request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "cwd": str(cwd),
            "fds": list(fds),
        }
        status, written = os.pipe()
        rights = array.array("i", [written, *stdio, *fds])
        try:
            self._connection.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        finally:
            os.close(written)
        return Forked(status, arguments)

    def close(self) -> None:
        """Let the server kill what still runs."""
        self._connection.close()


@contextmanager
def fork_server_running() -> Generator[str]:
    """Run a fork server until the block ends; yield its address."""
    # a socket's path is short: the directory does not lie in that of the tests
    with tempfile.TemporaryDirectory(prefix="fork-", dir="/tmp") as directory:
        address = f"{directory}/socket"
        control, theirs = socket.socketpair()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(address)
        listener.listen(64)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.Popen(
            [sys.executable, "-m", fork_server.__name__, str(listener.fileno()), str(theirs.fileno())],
            pass_fds=[listener.fileno(), theirs.fileno()],
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},  # else numpy starts threads
            cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for each in (listener, theirs):
            each.close()  # where the server ends, its clients must see that
        try:
            yield address
        finally:
            control.close()
            process.wait(60)


@contextmanager
def forking_from(address: str) -> Generator[Server]:
    """Connect to a server; what it still runs at the end is killed."""
    with closing(Server(address)) as server:
        server.wait_until_ready()
        yield server


@contextmanager
def shared_fork_server() -> Generator[None]:
    """Run a fork server for this process and those that it starts."""
    if not IS_POSSIBLE or ADDRESS in os.environ:
        yield
        return
    with fork_server_running() as address:
        os.environ[ADDRESS] = address
        try:
            yield
        finally:
            del os.environ[ADDRESS]


class _Forking:
    """The server that `start` and `run` fork from, once the first program asks for it."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._opening = threading.Lock()
        self._server: Server | None = None
        self.is_on = False

    def server(self) -> Server | None:
        """Return the server, or None where programs start as new interpreters."""
        with self._opening:
            if not self.is_on:
                return None
            if self._server is None:
                address = os.environ.get(ADDRESS) or self._opened.enter_context(fork_server_running())
                self._server = self._opened.enter_context(closing(Server(address)))
            return self._server

    def close(self) -> None:
        """Kill what still runs."""
        self.is_on = False
        self._server = None
        self._opened.close()


_forking = _Forking()


@contextmanager
def forking() -> Generator[None]:
    """Let `start` and `run` fork until the block ends, where the machine can."""
    _forking.is_on = IS_POSSIBLE
    try:
        yield
    finally:
        _forking.close()


@contextmanager
def cold_starts() -> Generator[None]:
    """Let `start` and `run` start new interpreters until the block ends, as a person does."""
    was_on, _forking.is_on = _forking.is_on, False
    try:
        yield
    finally:
        _forking.is_on = was_on


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: Output = subprocess.DEVNULL,
    stdout: Output | None = None,
    stderr: Output | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start a command in a new session; a Python program is forked if a server fits it."""
    environment = dict(os.environ if env is None else env)
    arguments = _of_python(command)
    server = _forking.server() if arguments else None
    if arguments is None or server is None or not server.suits(environment):
        return subprocess.Popen(
            command, env=environment, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr,
            pass_fds=pass_fds, start_new_session=True,
        )  # fmt: skip
    with Path(os.devnull).open("rb") as nothing:
        inputs = nothing.fileno() if stdin == subprocess.DEVNULL else _number(stdin, 0)
        out = _number(stdout, 1)
        err = out if stderr == subprocess.STDOUT else _number(stderr, 2)
        return server.fork(arguments, environment, cwd or Path.cwd(), [inputs, out, err], pass_fds)


def run(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its exit code and what it wrote."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, env=env, cwd=cwd, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        written = [_text(each) for each in (out, err)]
    return subprocess.CompletedProcess(list(command), code, *written)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _number(stream: Output | None, inherited: int) -> int:
    if stream is None:
        return inherited
    return stream if isinstance(stream, int) else stream.fileno()


def _of_python(command: Sequence[str]) -> list[str] | None:
    """Return the arguments of our interpreter that this command amounts to, or None when it is another program."""
    program, *arguments = command
    if program == sys.executable:
        is_plain = bool(arguments) and (arguments[0] in ("-m", "-c") or not arguments[0].startswith("-"))
        return arguments if is_plain else None
    path = Path(program)
    if path.parent == Path(sys.executable).parent and _is_script_of_ours(path):
        return [program, *arguments]
    return None


def _is_script_of_ours(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.readline().rstrip() == f"#!{sys.executable}".encode()
    return False


def _customizes(path: str) -> bool:
    return any((Path(each) / "sitecustomize.py").exists() for each in path.split(os.pathsep) if each)
