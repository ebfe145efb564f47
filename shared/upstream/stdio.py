"""A server as a child process, with a limit on the length of a line.

The SDK's stdio transport accepts lines of any length, at quadratic cost. This transport has a limit.
It also keeps the end of the child's stderr for error messages and in a log, and always ends all that the child started.

A command such as `npx` first installs its server, and an installer that is killed leaves a broken cache. Until its
first message, a child therefore gets SIGTERM and `INSTALLER_GRACE_S` to undo its work, before SIGKILL.

A child inherits the variables that it needs to run and to install itself, and no credentials.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import AsyncResource, ByteReceiveStream
from anyio.abc import Process as Child
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from shared.errors import ServerFlooded
from shared.upstream.commands import container_run
from shared.upstream.containers import Container
from shared.upstream.log import StderrLog
from shared.upstream.messages import MAX_MESSAGE_NODES, count_nodes
from shared.upstream.processes import INSTALLER_GRACE_S, MARK, SUPERVISOR, Process, living, processes_of, signal_all
from shared.upstream.reader import Reader, is_refused
from shared.upstream.session import SessionState, message_too_dense, message_too_large
from shared.upstream.target import StdioTarget

if TYPE_CHECKING:
    from pathlib import Path

STDERR_KEPT_BYTES = 8192
PROBE_PATIENCE_S = 3.0
"""Seconds after which a silent child counts as older than `server/discover`."""
HANDSHAKE_PATIENCE_S = 10.0
"""Seconds after which a child that has read the probe, and says nothing to the handshake either, hangs."""

_REAP_S = 1.0
_STDERR_TAIL_S = 0.3
_POLL_S = 0.01
_WATCHED_EVERY_S = 0.5
_PAUSE_S = 0.5
_STORE_EVERY_S = 1.0

_BASIC = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"})
_LOCALE = frozenset({"LANG", "LANGUAGE", "TZ"})
_DIRECTORIES = frozenset({"TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"})
_CERTIFICATES = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"}
)
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY"})
_PACKAGE_MANAGERS = ("UV_", "PIP_", "NPM_CONFIG_")

_PLAIN = _BASIC | _LOCALE | _DIRECTORIES | _CERTIFICATES
_SECRET = re.compile(r"AUTH|TOKEN|PASSW|SECRET|CREDENTIAL|USERNAME|(?:^|_)(?:KEY|OTP)$")

_NO_PROBE = ErrorData(code=METHOD_NOT_FOUND, message="no answer to the version probe")

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(target: StdioTarget, max_line_bytes: int, state: SessionState) -> AsyncGenerator[Streams]:
    """Start the child and yield its message streams; on leaving, the child and all it started are gone.

    Raises:
        OSError: the command cannot be started.
    """
    mark = SUPERVISOR.mark()
    words = [target.command, *target.args]
    env = inherited_environment(os.environ) | dict(target.env) | {MARK: mark}
    container = None
    try:
        if run := container_run(words):
            state.hint = run.hint
            container = Container(run, target, mark, env)
            await container.sweep()
            words = container.command
        # in a session of its own, whose id is that of the process
        process = await anyio.open_process(words, env=env, cwd=target.cwd, start_new_session=True)
    except BaseException:
        SUPERVISOR.answered(mark)
        with anyio.CancelScope(shield=True):
            if container:
                await container.remove()
        raise
    child = _Child(process, max_line_bytes, state, target.log, mark, container)
    async with anyio.create_task_group() as tasks:
        for task in (
            child.read_stdout,
            child.read_stderr,
            child.write_stdin,
            child.give_up_probe,
            child.store_log,
            child.watch_exit,
        ):
            tasks.start_soon(task)
        try:
            yield child.incoming[1], child.outgoing[0]
        finally:
            with anyio.CancelScope(shield=True):  # a cancelled caller must not leave a process behind
                await child.stop()
            tasks.cancel_scope.cancel()


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this environment that a child process gets, as docs/operations.md lists them."""
    return {name: value for name, value in environ.items() if _is_inherited(name, value)}


class _Child:
    """A running child and the tasks that transfer its messages."""

    def __init__(
        self,
        process: Child,
        max_line_bytes: int,
        state: SessionState,
        log: Path | None,
        mark: str,
        container: Container | None,
    ) -> None:
        self.incoming = anyio.create_memory_object_stream[Incoming](0)
        self.outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._process, self._mark, self._container = process, mark, container
        self._stdin: int | None = None
        self._written_bytes = 0
        with suppress(ValueError):  # it has ended already, and asyncio has closed the pipe
            stdin: Any = process.stdin
            self._stdin = os.dup(stdin._stream.transport.get_extra_info("pipe").fileno())  # there is no public way
        self._lines = LineSplitter(max_line_bytes)
        self._state = state
        self._reader = Reader(state)
        self._log = StderrLog(log, state.secrets) if log else None
        self._wrote, self._storing = anyio.Event(), anyio.Lock()
        self._started = set[Process]()
        self._probe: JSONRPCRequest | None = None  # until it is answered
        self._probe_sent = anyio.Event()
        self._stdout_ended, self._stderr_ended = anyio.Event(), anyio.Event()

    async def read_stdout(self) -> None:
        """Deliver every line as a message until the child or the session ends."""
        try:
            async with self.incoming[0]:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    while chunk := await self._next_chunk():
                        await self._state.received(len(chunk))
                        self._state.count(0, len(chunk))
                        for line in self._split(chunk):
                            self._state.count(1, 0)
                            await self._deliver(line)
                self._state.took_probe |= self._has_read() is not False
        finally:
            self._state.stream_ended()
            # a child that blocks on a full pipe does not notice that stdin closed, and an unread pipe is never freed
            with anyio.CancelScope(shield=True):
                while await _read(self._process.stdout):
                    pass
            self._stdout_ended.set()

    async def _next_chunk(self) -> bytes:
        """Return what the child writes next; a message without a line end counts as a line after a pause."""
        if self._lines.ends_like_a_message:
            with anyio.move_on_after(_PAUSE_S):
                return await _read(self._process.stdout)
            return b"\n"
        return await _read(self._process.stdout)

    def _split(self, chunk: bytes) -> list[bytes]:
        try:
            return self._lines.feed(chunk)
        except LineTooLong as error:
            raise self._state.fail(message_too_large(self._state, error.limit)) from error

    async def _deliver(self, line: bytes) -> None:
        if not line.strip():
            return
        nodes = count_nodes(line)
        if nodes > MAX_MESSAGE_NODES:
            raise self._state.fail(message_too_dense(self._state))
        await self._state.wait_for_slot(len(line), nodes)
        for read in self._reader.messages(line):
            message = jsonrpc_message_adapter.validate_python(read, by_name=False)
            if not self._state.is_started:
                SUPERVISOR.answered(self._mark)
            self._state.note_start()
            if self._probe and isinstance(message, JSONRPCResponse | JSONRPCError) and message.id == self._probe.id:
                if is_refused(message):  # a server that could not read the probe answers with another id
                    message = JSONRPCError(jsonrpc="2.0", id=self._probe.id, error=_NO_PROBE)
                self._probe = None
            await self.incoming[0].send(SessionMessage(message))

    async def read_stderr(self) -> None:
        """Keep the end of what the child writes to stderr."""
        # a credential at the cut is complete, so that it is masked before the last words are cut out
        kept_bytes = STDERR_KEPT_BYTES + 4 * max(map(len, self._state.secrets), default=0)
        with anyio.CancelScope(shield=True):  # the pipe ends with the child
            while chunk := await _read(self._process.stderr):
                with suppress(ServerFlooded):  # the session ends, and the child with it, once the pipe is read
                    self._state.count(0, len(chunk))
                self._state.stderr = (self._state.stderr + chunk)[-kept_bytes:]
                if self._log:
                    self._log.write(chunk)
                    self._wrote.set()
        self._stderr_ended.set()

    async def store_log(self) -> None:
        """Store the output of stderr in the log, at most once in `_STORE_EVERY_S`."""
        while self._log:
            await self._wrote.wait()
            self._wrote = anyio.Event()
            await self._store(self._log)
            await anyio.sleep(_STORE_EVERY_S)

    async def _store(self, log: StderrLog) -> None:
        async with self._storing:  # in the order of the lines
            if lines := log.take():
                await anyio.to_thread.run_sync(log.store, lines)

    async def write_stdin(self) -> None:
        """Write every message of the session until the child or the session ends."""
        stdin: Any = self._process.stdin  # there is no public way to its transport
        assert stdin is not None
        async with self.outgoing[1] as messages:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                async for outgoing in messages:
                    if isinstance(outgoing.message, JSONRPCRequest) and outgoing.message.method == "server/discover":
                        self._probe = outgoing.message
                        self._probe_sent.set()
                    self._reader.sent(outgoing.message)
                    line = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
                    content = line.encode() + b"\n"
                    await stdin.send(content)
                    if not stdin._stream.transport.is_closing():  # else the child has ended, and never got it
                        self._written_bytes += len(content)

    async def give_up_probe(self) -> None:
        """Answer the first version probe for a silent child; the SDK would wait 10 s.

        If the child was only slow, it rejects the next request, and the SDK probes again. If it has read the probe and
        stays silent, its messages end; one that has not read it may be an installer.
        """
        await self._probe_sent.wait()
        await anyio.sleep(PROBE_PATIENCE_S)
        probe, self._probe = self._probe, None
        if probe is None:
            return
        self._reader.pending.discard(probe.id)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.incoming[0].send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=probe.id, error=_NO_PROBE)))
        has_read = self._has_read()
        await anyio.sleep(HANDSHAKE_PATIENCE_S)
        if has_read and not self._state.is_started:
            self._state.took_probe = True
            await self.incoming[0].aclose()

    def _has_read(self) -> bool | None:
        """Return whether the pipe to the child has less than was written; None where only Linux could tell."""
        if self._stdin is None:
            return False
        if sys.platform != "linux":
            return None
        import fcntl  # noqa: PLC0415  # Windows has neither
        import termios  # noqa: PLC0415

        left_bytes = int.from_bytes(fcntl.ioctl(self._stdin, termios.FIONREAD, bytes(4)), sys.byteorder)
        return left_bytes < self._written_bytes

    async def watch_exit(self) -> None:
        """End the session of a child that crashed, also while a process that it started holds its pipes."""
        while self._process.returncode is None:  # noqa: ASYNC110  # Process.wait() would wait for the pipes too
            await anyio.sleep(_WATCHED_EVERY_S)
        if self._process.returncode:
            await anyio.sleep(_STDERR_TAIL_S)  # its last messages are read
            await _close(self._process.stdout)

    async def stop(self) -> None:
        """End the child and all it started: its stdin ends, and what is left after some time gets signals."""
        self.incoming[1].close()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        self._started = await self._find()  # while the child lives
        await _close(self._process.stdin)
        if not self._state.is_hurried:
            await self._exit_within(self._state.closing_s)
        self._state.was_stopped = self._process.returncode is None
        if self._container and self._state.was_stopped:  # its client may pass no signal on, and ends with it
            await self._container.stop(self._state.closing_s)
        await self._end(signal.SIGTERM, self._state.closing_s if self._state.is_started else INSTALLER_GRACE_S)
        await self._end(signal.SIGKILL, _REAP_S)
        await self._exit_within(_REAP_S)
        if self._container:
            await self._container.remove()
        if not self._state.is_started:
            SUPERVISOR.answered(self._mark)
        with anyio.move_on_after(_STDERR_TAIL_S):
            await self._stdout_ended.wait()
            await self._stderr_ended.wait()
        self._state.exit_code = self._process.returncode
        if self._log:
            self._log.end(None if self._state.was_stopped else self._state.exit_code)
            await self._store(self._log)
        for pipe in (self._process.stdout, self._process.stderr):
            await _close(pipe)  # a process outside the group may hold the other end

    async def _end(self, number: int, seconds: float) -> None:
        """Send a signal to all processes of the child, and wait for their end."""
        with anyio.move_on_after(seconds):
            while left := await self._find():  # again: one may have started another
                signal_all(left, number)
                while living(left):  # noqa: ASYNC110  # there is no event to wait for
                    await anyio.sleep(_POLL_S)

    async def _find(self) -> set[Process]:
        return await anyio.to_thread.run_sync(processes_of, (self._mark,), self._process.pid, self._started)

    async def _exit_within(self, seconds: float) -> None:
        # Process.wait() would also wait for pipes that a grandchild may hold
        with anyio.move_on_after(seconds):
            while self._process.returncode is None:  # noqa: ASYNC110  # there is no event to wait for
                await anyio.sleep(_POLL_S)


class LineTooLong(ValueError):
    """A line exceeds `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a line is longer than {limit} bytes")
        self.limit = limit


class LineSplitter:
    """Cuts chunks of bytes into lines in linear time, holding at most one line and one chunk."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without their line ends.

        Raises:
            LineTooLong: a line, complete or not, is longer than allowed.
        """
        lines: list[bytes] = []
        first, *others = chunk.split(b"\n")
        self._extend(first)
        for piece in others:
            lines.append(bytes(self._rest))
            self._rest.clear()
            self._extend(piece)
        return lines

    @property
    def ends_like_a_message(self) -> bool:
        """Return whether the last line, which has no end yet, may be a whole message."""
        return self._rest.endswith((b"}", b"]"))

    def _extend(self, piece: bytes) -> None:
        self._rest += piece
        if len(self._rest) > self._max_line_bytes:
            raise LineTooLong(self._max_line_bytes)


async def _read(pipe: ByteReceiveStream | None) -> bytes:
    """Return the next bytes of a pipe, empty at its end or after an error."""
    assert pipe is not None
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        return await pipe.receive()
    return b""


async def _close(pipe: AsyncResource | None) -> None:
    """Close a pipe that may be closed or broken already."""
    assert pipe is not None
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        await pipe.aclose()


def _is_inherited(name: str, value: str) -> bool:
    if value.startswith("()"):
        return False  # a function of the shell
    if name in _PLAIN or name.startswith("LC_"):
        return True
    upper = name.upper()  # proxies and the settings of npm also have names in lower case
    is_of_network = upper in _PROXIES or upper.startswith(_PACKAGE_MANAGERS)
    # a URL with a user or a query may contain a password or a token
    return is_of_network and not _SECRET.search(upper) and not {"@", "?"} & set(value)
