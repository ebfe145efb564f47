"""A server as a child process, with a limit on the length of a line.

The SDK's stdio transport accepts lines of any length, at quadratic cost. This transport has a limit.
It also keeps the end of the child's stderr for error messages and in a log, and always ends the whole process group.

A command such as `npx` first installs its server, and an installer that is killed leaves a broken cache. Until its
first message, a child therefore gets SIGTERM and `INSTALLER_GRACE_S` to undo its work, before SIGKILL.

A child inherits the variables that it needs to run and to install itself, and no credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from anyio.abc import AsyncResource, ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter

from shared.errors import ServerFlooded
from shared.upstream.log import StderrLog
from shared.upstream.messages import MAX_MESSAGE_NODES, count_nodes, parse_leniently
from shared.upstream.session import SessionState, message_too_dense, message_too_large
from shared.upstream.target import StdioTarget

if TYPE_CHECKING:
    from pathlib import Path

STDERR_KEPT_BYTES = 8192
PROBE_PATIENCE_S = 3.0
"""Seconds after which a silent child counts as older than `server/discover`."""
INSTALLER_GRACE_S = 20.0
"""Seconds between SIGTERM and SIGKILL for a child that has sent no message."""

_EXIT_GRACE_S = 1.0
_TERMINATE_GRACE_S = 0.5
_REAP_S = 1.0
_STDERR_TAIL_S = 0.3
_POLL_S = 0.01
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

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(target: StdioTarget, max_line_bytes: int, state: SessionState) -> AsyncGenerator[Streams]:
    """Start the child and yield its message streams; on leaving, the child and all it started are gone.

    Raises:
        OSError: the command cannot be started.
    """
    process = await anyio.open_process(
        [target.command, *target.args],
        env=inherited_environment(os.environ) | dict(target.env),
        cwd=target.cwd,
        start_new_session=True,  # its pid is the id of the process group to kill
    )
    child = _Child(process, max_line_bytes, state, target.log)
    async with anyio.create_task_group() as tasks:
        for task in (child.read_stdout, child.read_stderr, child.write_stdin, child.give_up_probe, child.store_log):
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

    def __init__(self, process: Process, max_line_bytes: int, state: SessionState, log: Path | None) -> None:
        self.incoming = anyio.create_memory_object_stream[Incoming](0)
        self.outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._process = process
        self._lines = LineSplitter(max_line_bytes)
        self._state = state
        self._log = StderrLog(log, state.secrets) if log else None
        self._wrote, self._storing = anyio.Event(), anyio.Lock()
        self._probe: JSONRPCRequest | None = None
        self._probe_sent = anyio.Event()
        self._stdout_ended, self._stderr_ended = anyio.Event(), anyio.Event()

    async def read_stdout(self) -> None:
        """Deliver every line as a message until the child or the session ends."""
        try:
            async with self.incoming[0]:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    while chunk := await _read(self._process.stdout):
                        await self._state.received(len(chunk))
                        self._state.count(0, len(chunk))
                        for line in self._split(chunk):
                            self._state.count(1, 0)
                            await self._deliver(line)
        finally:
            self._state.stream_ended()
            # a child that blocks on a full pipe does not notice that stdin closed, and an unread pipe is never freed
            with anyio.CancelScope(shield=True):
                while await _read(self._process.stdout):
                    pass
            self._stdout_ended.set()

    def _split(self, chunk: bytes) -> list[bytes]:
        try:
            return self._lines.feed(chunk)
        except LineTooLong as error:
            raise self._state.fail(message_too_large(self._state, error.limit)) from error

    async def _deliver(self, line: bytes) -> None:
        if not line.strip():
            return
        self._probe = None
        nodes = count_nodes(line)
        if nodes > MAX_MESSAGE_NODES:
            raise self._state.fail(message_too_dense(self._state))
        await self._state.wait_for_slot(len(line), nodes)
        try:
            message = self._parse(line)
        except ValueError:
            # many servers print a banner, so this is the error only if no valid message follows
            self._state.protocol_violation = f"wrote what is not a JSON-RPC message: {self._state.quote(line[:1000])}"
            return
        self._state.note_start()
        await self.incoming[0].send(SessionMessage(message))

    def _parse(self, line: bytes) -> JSONRPCMessage:
        try:
            return jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if self._state.last_event is None:
                raise
            return jsonrpc_message_adapter.validate_python(parse_leniently(line), by_name=False)

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
        stdin = self._process.stdin
        assert stdin is not None
        async with self.outgoing[1] as messages:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                async for outgoing in messages:
                    if isinstance(outgoing.message, JSONRPCRequest) and outgoing.message.method == "server/discover":
                        self._probe = outgoing.message
                        self._probe_sent.set()
                    line = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stdin.send(line.encode() + b"\n")

    async def give_up_probe(self) -> None:
        """Answer the first version probe for a silent child; the SDK would wait 10 s.

        If the child was only slow, it rejects the next request, and the SDK probes again.
        """
        await self._probe_sent.wait()
        await anyio.sleep(PROBE_PATIENCE_S)
        if self._probe is not None:
            unknown = ErrorData(code=METHOD_NOT_FOUND, message="no answer to the version probe")
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self.incoming[0].send(
                    SessionMessage(JSONRPCError(jsonrpc="2.0", id=self._probe.id, error=unknown))
                )

    async def stop(self) -> None:
        """End the child: close its stdin if there is time, then signal its whole process group."""
        self.incoming[1].close()
        await _close(self._process.stdin)
        await self._exit_within(0.0 if self._state.scope.cancel_called else _EXIT_GRACE_S)
        self._state.was_stopped = self._process.returncode is None
        grace_s = _TERMINATE_GRACE_S if self._state.is_started else INSTALLER_GRACE_S
        await terminate_posix_process_tree(self._process, grace_s)
        await self._exit_within(_REAP_S)
        with anyio.move_on_after(_STDERR_TAIL_S):
            await self._stdout_ended.wait()
            await self._stderr_ended.wait()
        self._state.exit_code = self._process.returncode
        if self._log:
            self._log.end(None if self._state.was_stopped else self._state.exit_code)
            await self._store(self._log)
        for pipe in (self._process.stdout, self._process.stderr):
            await _close(pipe)  # a process outside the group may hold the other end

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
