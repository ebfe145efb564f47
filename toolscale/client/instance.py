"""The service of a data directory: its lock, the file with its address and secret, and its start where none runs.

Any Toolscale may listen at an address, so clients compare the id of the file with that of `/healthz`.
This module imports little: `toolscale serve --stdio` loads it for every session of a client.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import http.client
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from shared.errors import ConfigInvalid, InstanceMismatch, ServiceUnreachable
from shared.service.files import make_private_directory, write_private

if TYPE_CHECKING:
    from shared.settings import Settings

FILE, LOCK, LOG = "service.json", "service.lock", "service.log"
ATTEND_PATH, STOP_PATH = "/service/attend", "/service/stop"

DATA_DIR = "~/.local/share/toolscale"
START_WITHIN_S = 50.0
"""Seconds that a request waits for a service: less than the minute that usual clients wait for an answer."""
TIMEOUT_S = 5.0
HELD = 75
"""The exit code of a background service that found another process with its lock."""
_POLL_S = 0.05
_HELD_POLL_S = 0.5
_LOG_BYTES = 1 << 20

# Only Windows has these flags, and needs them.
_DETACHED: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(subprocess, "DETACHED_PROCESS", 0)

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # a client cannot connect to a wildcard address

# What a service does depends on these variables, and on those that its mcp.json names.
_SETTING = re.compile(r"TOOLSCALE_|REDIS_URL$|QDRANT_|MCP_RESPONSE_MODE$|MCP_MAX_RESPONSE_TOKENS$")
# These are of the client, or are compared by their meaning.
_OF_CLIENTS = frozenset(
    f"TOOLSCALE_{name}"
    for name in ("DATA_DIR", "HOST", "LOG_LEVEL", "MCP_CONFIG", "PORT", "STDIO_GROUPS", "STDIO_TOOLSET", "TOKEN", "URL")
)
_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client looks for its service, and what it expects of it; `mcp_config` is None if it names no file.

    With a server for Redis or Qdrant, the operator starts the services: this program starts none.
    """

    data_dir: Path
    mcp_config: Path | None = None
    own_url: str = ""
    has_servers: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """A running service: `url` is `http://host:port`, `instance_id` is new at every start.

    A request with the secret as its bearer token is the operator's.
    """

    url: str
    instance_id: str = ""
    secret: str = field(default="", repr=False)
    version: str = "0"
    pid: int = 0
    is_background: bool = False
    mcp_config: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """A digest of the value of each variable."""

    @property
    def authorization(self) -> dict[str, str]:
        """Return the header of a request to this service."""
        return {"Authorization": f"Bearer {self.secret}"} if self.secret else {}


def place_of(settings: Settings) -> Place:
    """Return the place of these settings."""
    has_servers = bool(settings.redis_url or settings.qdrant_url)
    return Place(settings.data_dir, settings.mcp_config, settings.own_url if settings.qdrant_url else "", has_servers)


def place_of_command(arguments: Sequence[str]) -> Place | None:
    """Return the place of a command `serve` with these options, as its settings have it; None for other options.

    It reads the few settings that a proxy needs without loading all of them.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--config", "--data-dir", "--host", "--port"):
        parser.add_argument(name, *(["-c"] if name == "--config" else []))
    for name in ("--stdio", "--background"):
        parser.add_argument(name, action="store_true")
    try:
        options, others = parser.parse_known_args(arguments)
    except SystemExit:
        return None  # the command line explains what is wrong
    if others:
        return None

    def setting(name: str) -> str | None:
        return os.environ.get(f"TOOLSCALE_{name}")

    data_dir = options.data_dir or setting("DATA_DIR") or DATA_DIR
    config, url = options.config or setting("MCP_CONFIG"), os.environ.get("QDRANT_URL") or setting("QDRANT_URL")
    host, port = options.host or setting("HOST") or "127.0.0.1", options.port or setting("PORT") or "8765"
    return Place(
        Path(data_dir).expanduser(),
        Path(config).expanduser() if config else None,
        f"http://{f'[{host}]' if ':' in host else host}:{port}" if url else "",
        has_servers=bool(url or os.environ.get("REDIS_URL") or setting("REDIS_URL")),
    )


def service_of(settings: Settings) -> Instance:
    """Return the running service of the data directory, once it is ready; where none runs, start it in the background.

    Raises:
        ServiceUnreachable: it did not become ready in time, or none runs and the operator has to start it.
        InstanceMismatch: another service answers at its address.
        ConfigInvalid: it follows another `mcp.json` or has another environment, or it cannot start.
    """
    service, deadline_s = Service(place_of(settings)), time.monotonic() + START_WITHIN_S
    try:
        while True:
            instance, step = service.reach(deadline_s - time.monotonic())
            if step is None:
                return instance
            if time.monotonic() > deadline_s:
                raise ServiceUnreachable(f"the service of {settings.data_dir} is starting ({step}); try again")
            time.sleep(_POLL_S)
    finally:
        service.leave_running()


def service_url(settings: Settings) -> str:
    """Return `http://host:port` of the service of this catalogue, and start nothing.

    Without a file, services on a Qdrant server share one catalogue: the result is the address of the settings.

    Raises:
        ServiceUnreachable: no service of this data directory runs over HTTP, or it does not answer yet.
        InstanceMismatch: another service answers at its address.
        ConfigInvalid: the file cannot be read.
    """
    instance, step = _running(place_of(settings))
    if step:
        raise ServiceUnreachable(f"the service of {settings.data_dir} is starting ({step}); try again in a few seconds")
    return instance.url


class Service:
    """The service of a data directory, which this client starts in the background where none runs."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._child: subprocess.Popen[bytes] | None = None
        self._logged_from = 0

    def reach(self, within_s: float = START_WITHIN_S) -> tuple[Instance, str | None]:
        """Return the service as soon as it answers, and the step of its start; None once it is ready.

        Raises: the errors of `service_of`.
        """
        if self._place.has_servers:
            return _running(self._place)
        deadline_s = time.monotonic() + within_s
        while True:
            with suppress(ServiceUnreachable, InstanceMismatch):  # the file is that of a service which has ended
                instance, step = _running(self._place)
                if self._suits(instance):
                    return instance, step
            self._start()
            if time.monotonic() > deadline_s:
                raise ServiceUnreachable(
                    f"the service of {self._place.data_dir} did not answer in time; {self._place.data_dir / LOG} may "
                    "have the reason"
                )
            time.sleep(_POLL_S)

    def leave_running(self) -> None:
        """Forget the process, which outlives this one."""
        if self._child and self._child.poll() is None:
            self._child.returncode = 0  # else its object warns when it is deleted

    def _suits(self, instance: Instance) -> bool:
        """Return whether to use this service; False if it ends for this client.

        Raises:
            ConfigInvalid: it differs from what the client expects, and other clients use it.
        """
        difference = _difference(self._place, instance)
        is_older = instance.is_background and _ordered(instance.version) < _ordered(version("toolscale"))
        if (difference or is_older) and ask_to_end(instance, is_for_all=difference is None):
            return False
        if difference:
            raise ConfigInvalid(difference)
        return True

    def _start(self) -> None:
        """Start the background service, unless it is starting.

        Raises:
            ConfigInvalid, ServiceUnreachable: it has ended with an error.
        """
        if self._child:
            code = self._child.poll()
            if code is None:
                return
            self._child = None
            if code == HELD:
                time.sleep(_HELD_POLL_S)  # the process with the lock starts or ends
            elif code > 0:
                raise (ConfigInvalid if code == 2 else ServiceUnreachable)(self._reason(code))  # noqa: PLR2004
        directory = self._place.data_dir.resolve()
        make_private_directory(directory)
        config = ["--config", str(self._place.mcp_config.resolve())] if self._place.mcp_config else []
        # -P: a package in the working directory of a client is none of ours
        command = [sys.executable, "-P", "-m", "toolscale", "serve", "--background", "--data-dir", str(directory)]
        with _opened_log(directory / LOG) as log:
            self._logged_from = log.tell()
            self._child = subprocess.Popen(  # noqa: S603  # our own program
                [*command, *config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # it outlives this process, its terminal and its process group
                start_new_session=True,
                creationflags=_DETACHED,
            )

    def _reason(self, code: int) -> str:
        with (self._place.data_dir / LOG).open("rb") as log:
            log.seek(self._logged_from)
            lines = log.read().decode(errors="replace").split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
        reason = errors[-1].removeprefix("error: ") if errors else f"exit code {code}; see {self._place.data_dir / LOG}"
        return f"Toolscale could not start: {reason}"


def ask_to_end(instance: Instance, *, is_for_all: bool) -> bool:
    """Return whether a background service ends now: it has no call in flight, and, unless `is_for_all`, no client."""
    if not instance.is_background:
        return False
    try:
        return requested(instance, "POST", f"{STOP_PATH}{'' if is_for_all else '?alone'}")[0] == http.client.ACCEPTED
    except OSError:
        return True  # it has ended


def requested(instance: Instance, method: str, path: str, timeout_s: float | None = TIMEOUT_S) -> tuple[int, bytes]:
    """Return the status and the body of a response of this service; a POST is the operator's.

    Raises:
        OSError: it does not answer.
    """
    address = urlsplit(instance.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_s)
    try:
        # another service may answer a GET: it decides whether this one runs
        connection.request(method, path, headers=instance.authorization if method == "POST" else {})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def try_hold(data_dir: Path, patience_s: float = 0.0) -> IO[bytes] | None:
    """Return a lock on the data directory that this process holds until it exits it or ends; None if another does."""
    make_private_directory(data_dir)
    deadline_s = time.monotonic() + patience_s
    file = (data_dir / LOCK).open("ab")
    while not _is_locked(file):
        if time.monotonic() > deadline_s:
            file.close()
            return None
        time.sleep(_POLL_S)
    return file


def read_instance(data_dir: Path) -> Instance | None:
    """Return the instance of the file, which may have ended; None without a file.

    Raises:
        ConfigInvalid: the file cannot be read.
    """
    path, known = data_dir / FILE, {each.name for each in fields(Instance)}
    try:
        found = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        return Instance(**{name: value for name, value in found.items() if name in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigInvalid(f"{path}: expected the address of a service; start `toolscale serve` again") from error


@contextmanager
def published(
    data_dir: Path,
    address: str,
    *,
    environment: Mapping[str, str] | None = None,
    mcp_config: Path | None = None,
    is_background: bool = False,
) -> Generator[Instance]:
    """Keep the address and a new secret of this process, which holds the data directory, in its file.

    After a crash the file remains; the next start replaces it.
    """
    make_private_directory(data_dir)
    path, secret = data_dir / FILE, secrets.token_urlsafe(32)
    instance = Instance(
        url=_reachable(address),
        instance_id=secrets.token_hex(8),
        secret=secret,
        version=version("toolscale"),
        pid=os.getpid(),
        is_background=is_background,
        mcp_config=str(mcp_config.resolve()) if mcp_config else None,
        environment={name: _digest(secret, value) for name, value in (environment or {}).items() if value},
    )
    write_private(path, json.dumps(asdict(instance)))
    try:
        yield instance
    finally:
        if is_published(instance, data_dir):
            path.unlink(missing_ok=True)


def is_published(instance: Instance, data_dir: Path) -> bool:
    """Return whether the file of the data directory is that of this instance: another process may have replaced it."""
    try:
        found = read_instance(data_dir)
    except ConfigInvalid:
        return False
    return found is not None and found.instance_id == instance.instance_id


def _running(place: Place) -> tuple[Instance, str | None]:
    """Return the service and the step of its start, without starting one.

    Raises:
        ServiceUnreachable, InstanceMismatch, ConfigInvalid: as `service_url`.
    """
    instance = read_instance(place.data_dir)
    if instance is None:
        if place.own_url:
            return Instance(place.own_url, secret=os.environ.get("TOOLSCALE_TOKEN", "")), None
        raise ServiceUnreachable(
            f"no service of {place.data_dir} runs over HTTP; start `toolscale serve` with this directory, or pass --url"
        )
    try:
        _, body = requested(instance, "GET", "/healthz")
    except OSError as error:
        raise ServiceUnreachable(
            f"the service of {place.data_dir} does not answer at {instance.url}: {type(error).__name__}; "
            "is `toolscale serve` running?"
        ) from error
    health = _object(body)
    found = _text(health, "instance_id")
    if found != instance.instance_id:
        answers = f"instance {found}" if found else "a service without an instance id"
        raise InstanceMismatch(
            f"the service of {place.data_dir} was instance {instance.instance_id} at {instance.url}, and {answers} "
            "answers there now; start `toolscale serve` with this directory, or pass --url"
        )
    return instance, _text(health, "starting")


def _object(body: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(document: Mapping[str, Any], key: str) -> str | None:
    return str(document[key])[:64] if key in document else None


def _difference(place: Place, instance: Instance) -> str | None:
    """Return how the service differs from what the client expects; a variable that is not set here may have any value.

    A service in a terminal has the environment that its operator chose.
    """
    default = place.data_dir / "mcp.json"
    wanted = place.mcp_config or (default if not instance.mcp_config and default.is_file() else None)
    if wanted and str(wanted.resolve()) != instance.mcp_config:
        return (
            f"another Toolscale process uses {place.data_dir} and follows {instance.mcp_config or 'no mcp.json'}, not "
            f"{wanted.resolve()}; use that file, or another data directory by --data-dir"
        )
    if not instance.is_background:
        return None
    names = {name for name in os.environ if _SETTING.match(name)} - _OF_CLIENTS
    for name in sorted(names | _named_in(instance.mcp_config)):
        value = os.environ.get(name)
        if value and _digest(instance.secret, value) != instance.environment.get(name):
            return (
                f"other clients use the service of {place.data_dir}, which has another value of {name}; "
                "use the same value, end the other clients, or use another data directory by --data-dir"
            )
    return None


def _named_in(mcp_config: str | None) -> set[str]:
    """Return the variables that this `mcp.json` refers to."""
    try:
        names = _REFERENCE.findall(Path(mcp_config).read_text(encoding="utf-8-sig")) if mcp_config else []
    except (OSError, ValueError):
        return set()  # the service logs what is wrong with it
    return {name.upper() if sys.platform == "win32" else name for name in names}


def _digest(secret: str, value: str) -> str:
    # 16 bits show a difference, and do not let a reader of the file find a short value by trial
    return hmac.new(secret.encode(), value.encode(errors="replace"), hashlib.sha256).hexdigest()[:4]


def _ordered(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _opened_log(path: Path) -> IO[bytes]:
    """Open the log to append to it; what an earlier service logged is kept once beside it when it is long."""
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".old.log"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _is_locked(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415  # on Windows only

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415  # not on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _reachable(address: str) -> str:
    parts = urlsplit(address)
    host = _LOOPBACK.get(parts.hostname or "")
    return f"{parts.scheme}://{host}:{parts.port}" if host else address
