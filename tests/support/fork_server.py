"""Imports the heavy modules once and forks each program under test: `python -m tests.support.fork_server`.

The server has one thread and loads no model, so that a fork is safe. It is the parent of the programs: it waits for
them and writes their exit codes. When a client goes, its programs are killed; when the server goes, all are.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

if sys.platform != "win32":
    import fcntl

# The imports of the services. `workers.app` is missing because its import reads the settings.
# onnxruntime, fastembed and qdrant_client start a thread at import: only their own imports are listed.
PRELOADED = (
    "huggingface_hub",
    "loguru",
    "mmh3",
    "PIL.Image",
    "py_rust_stemmers",
    "requests",
    "tokenizers",
    "tqdm.auto",
    "tiktoken",
    "qdrant_edge",
    "celery.bin.celery",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.events.dispatcher",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "mcp.client.streamable_http",
    "mcp.client.stdio",
    "mcp.server.sse",
    "uvicorn.protocols.http.auto",
    "uvicorn.lifespan.on",
    "workers.celery_app",
    "workers.events_api.__main__",
    "workers.notifications.__main__",
    "query.__main__",
    "toolscale.app",
    "toolscale.embedded.serve",
    "toolscale.embedded.service",
)
# Variables that C libraries and Python read at their start.
READ_BY_C = ("PYTHON", "LD_", "OPENBLAS_", "OMP_", "MALLOC_", "GLIBC_", "LC_")
# The server gives a child its path, its habit of writing bytecode and its buffers, as these say.
HEEDED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
# Read for directories that no import opens, and for terminals that no program under test has.
OF_NO_MATTER = ("HOME", "LANG", "TERM")

MOST_BYTES = 1 << 20
MOST_FDS = 64
_FREE_FROM = 512  # descriptors are parked above this number while they take their places
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class Request(TypedDict):
    """A program to start; with it come descriptors: for the exit code, stdin, stdout, stderr, and the `fds`."""

    arguments: list[str]
    environment: dict[str, str]
    cwd: str
    fds: list[int]


@dataclass
class Client:
    """A connection, and the pipe for the exit code of each program that runs for it."""

    connection: socket.socket
    status_pipes: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True)
class Program:
    """A program in the forked child, before it runs."""

    request: Request
    fds: Sequence[int]
    server: int

    def run(self) -> None:
        """Become the program; return or raise as its main module does."""
        os.setsid()
        _die_with(self.server)
        _place(self.fds, [0, 1, 2, *self.request["fds"]])
        _reset_signals()
        _reset_interpreter(self.request)
        _reopen_standard_streams()
        kind, *rest = self.request["arguments"]
        if kind == "-m":
            _run(rest[0], ["-m", *rest[1:]], self.request["cwd"], _run_module)
        elif kind == "-c":
            _run(rest[0], ["-c", *rest[1:]], "", _run_text)
        else:
            _run(kind, [kind, *rest], str(Path(kind).parent), _run_file)


class ForkServer:
    """Accepts clients and forks for them until `control` is closed."""

    def __init__(self, listener: socket.socket, control: socket.socket, read: dict[str, str | None]) -> None:
        self._listener = listener
        self._control = control
        self._hello = json.dumps(read).encode()
        self._clients: list[Client] = []
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._is_over = False

    def serve(self) -> Program | None:
        """Return None at the end, or, in a forked child, the program to run there."""
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)
        for readable in (self._listener, self._control, self._woken):
            self._selector.register(readable, selectors.EVENT_READ, None)
        while not self._is_over:
            for key, _ in self._selector.select():
                program = self._handle(key.fileobj, key.data)
                if program is not None:
                    return program
        for client in self._clients:
            self._kill_all(client)
        return None

    def _handle(self, readable: object, client: Client | None) -> Program | None:
        if client is not None:
            return self._requested(client)
        if readable is self._listener:
            self._accept()
        elif readable is self._woken:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        else:
            self._is_over = True
        return None

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        client = Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        connection.send(self._hello)

    def _requested(self, client: Client) -> Program | None:
        body, fds = _receive(client.connection)
        if not body:
            self._selector.unregister(client.connection)
            client.connection.close()
            self._kill_all(client)
            return None
        request: Request = json.loads(body)
        status, *given = fds
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave()
            return Program(request, given, server)
        for each in given:
            os.close(each)
        client.status_pipes[pid] = status
        _write(status, pid)
        return None

    def _leave(self) -> None:
        """Close the objects of the server in a child: a later close would hit descriptors of the program."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for each in (self._listener, self._control, self._woken, self._wake):
            each.close()
        for client in self._clients:
            client.connection.close()

    def _reap(self) -> None:
        for pid, code in _ended_children():
            for client in self._clients:
                status = client.status_pipes.pop(pid, None)
                if status is not None:
                    _write(status, code)
                    os.close(status)

    @staticmethod
    def _kill_all(client: Client) -> None:
        for pid in client.status_pipes:
            for kill in (os.kill, os.killpg):  # a child that was just forked has no group yet
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)


def preload() -> dict[str, str | None]:
    """Import the modules; return the environment variables that the imports read, with their values."""
    private = os.environ.__class__
    read: dict[str, str | None] = {}
    copied: list[str] = []

    class Recording(private):  # type: ignore[misc, valid-type]  # the class of os.environ is private
        def __iter__(self) -> Iterator[str]:
            for name in super().__iter__():
                copied[:] = [name]
                yield name

        def __getitem__(self, name: str) -> str:
            is_copy = (copied.pop() if copied else "") == name  # all are copied for a child: that is no look at one
            if not is_copy and name not in OF_NO_MATTER:
                read[name] = os.environb.get(os.fsencode(name), b"").decode() or None
            return str(super().__getitem__(name))

    os.environ.__class__ = Recording
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    finally:
        os.environ.__class__ = private
    for name in [each for each in sys.modules if each.endswith(".__main__")]:
        del sys.modules[name]  # else runpy warns that it was imported before
    return read


def main() -> Program | None:
    """Preload and serve; in a forked child, return its program."""
    listener, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    read = preload()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread runs: forks would not be safe"
    gc.collect()
    gc.freeze()
    return ForkServer(listener, control, read).serve()


def _wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter writes the signal to the wakeup descriptor."""


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    body, ancillary, _, _ = connection.recvmsg(MOST_BYTES, socket.CMSG_SPACE(MOST_FDS * fds.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return body, list(fds)


def _write(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, b"%d\n" % number)


def _ended_children() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, b"python")
    if os.getppid() != parent:
        os._exit(1)


def _place(fds: Sequence[int], targets: Sequence[int]) -> None:
    """Let the child have each descriptor under its number, and no others."""
    parked = [_dup_from(fd, _FREE_FROM) for fd in fds]
    os.closerange(3, _FREE_FROM)
    for fd, target in zip(parked, targets, strict=True):
        os.dup2(fd, target, inheritable=True)
    for fd in parked:
        os.close(fd)


def _dup_from(fd: int, least: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)


def _reset_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _reset_interpreter(request: Request) -> None:
    """Give this interpreter the environment, the directory and the path that a new one would have."""
    base = [each for each in sys.path[1:] if each]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    time.tzset()
    tempfile.tempdir = None
    more = request["environment"].get("PYTHONPATH", "")
    sys.path[:] = ["", *(each for each in more.split(os.pathsep) if each), *base]
    sys.dont_write_bytecode = bool(request["environment"].get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()
    for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
        del sys.modules[name]  # a new interpreter finds them on its path, or not


def _reopen_standard_streams() -> None:
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))

    def opened(fd: int, errors: str = "strict", *, by_line: bool = False) -> io.TextIOWrapper:
        raw = open(fd, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115  # for the whole run
        return io.TextIOWrapper(
            raw,
            encoding="utf-8",
            errors=errors,
            line_buffering=by_line and not is_unbuffered,
            write_through=is_unbuffered,
        )

    given = open(0, "rb", closefd=False)  # noqa: SIM115  # for the whole run
    sys.stdin = io.TextIOWrapper(given, encoding="utf-8")
    sys.stdout = opened(1)
    sys.stderr = opened(2, "backslashreplace", by_line=True)


def _run(what: str, argv: list[str], first_of_path: str, how: Callable[[str], object]) -> None:
    sys.argv[:] = argv
    sys.path[0] = first_of_path
    how(what)


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_file(path: str) -> None:
    runpy.run_path(path, run_name="__main__")


def _run_text(text: str) -> None:
    names: dict[str, Any] = vars(sys.modules["__main__"])
    for name in [each for each in names if not each.startswith("__")]:
        del names[name]
    exec(compile(text, "<string>", "exec"), names)


def is_heeded(name: str, prefixes: Iterable[str] = READ_BY_C) -> bool:
    """Return whether a child may have another value of this variable than the server had."""
    return name in HEEDED or not name.startswith(tuple(prefixes))


if __name__ == "__main__":
    program = main()
    if program is not None:
        program.run()
