"""The service of a data directory, as its clients reach it: they look for it, and start it where none runs.

1. `running_at` reads service.json, and compares its id with the one that `/healthz` answers at its address.
2. `_suits` compares the service with this client's program, mcp.json and environment. A service that differs ends if
   no other client needs it; else the client gets an error. An older program ends when no call is in flight.
3. Without a service, `_start` starts `toolscale serve --background`. Of several clients that do so, one process gets
   the lock; the others end with HELD, and their clients look again.
4. The service listens at once, and `/healthz` names the step of its start until it is ready.
5. It ends ten minutes after its last use (`toolscale.embedded.door`).

This module imports little: `toolscale serve --stdio` loads it for every session of a client.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shared.errors import ConfigInvalid, InstanceMismatch, ServiceUnreachable
from shared.service.files import make_private_directory
from toolscale.client.instance import LOG, Instance, ask_to_end, digest, read_instance, requested

if TYPE_CHECKING:
    from shared.settings import Settings

DATA_DIR = "~/.local/share/toolscale"
START_WITHIN_S = 50.0
"""Seconds that a request waits for a service: less than the minute that usual clients wait for an answer."""
HELD = 75
"""The exit code of a background service that found another process with its lock."""
_POLL_S = 0.05
_HELD_POLL_S = 0.5
_LOG_BYTES = 1 << 20

# Only Windows has these flags, and needs them.
_DETACHED: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(subprocess, "DETACHED_PROCESS", 0)

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
    background, deadline_s = Background(place_of(settings)), time.monotonic() + START_WITHIN_S
    try:
        while True:
            instance, step = background.reach(deadline_s - time.monotonic())
            if step is None:
                return instance
            if time.monotonic() > deadline_s:
                raise ServiceUnreachable(f"the service of {settings.data_dir} is starting ({step}); try again")
            time.sleep(_POLL_S)
    finally:
        background.leave_running()


def service_url(settings: Settings) -> str:
    """Return `http://host:port` of the service of this catalogue, and start nothing.

    Without a file, services on a Qdrant server share one catalogue: the result is the address of the settings.

    Raises:
        ServiceUnreachable: no service of this data directory runs over HTTP, or it does not answer yet.
        InstanceMismatch: another service answers at its address.
        ConfigInvalid: the file cannot be read.
    """
    instance, step = running_at(place_of(settings))
    if step:
        raise ServiceUnreachable(f"the service of {settings.data_dir} is starting ({step}); try again in a few seconds")
    return instance.url


def running_at(place: Place) -> tuple[Instance, str | None]:
    """Return the service and the step of its start, None once it is ready; start nothing.

    Raises:
        ServiceUnreachable, InstanceMismatch, ConfigInvalid: as `service_url`.
    """
    instance = read_instance(place.data_dir)
    if instance is None:
        if place.own_url:
            return Instance(place.own_url, secret=os.environ.get("TOOLSCALE_TOKEN", "")), None
        raise ServiceUnreachable(
            f"no service of {place.data_dir} runs over HTTP; start `toolscale serve` with this directory, or set "
            "TOOLSCALE_URL to the address of one that runs, such as http://127.0.0.1:8765"
        )
    try:
        _, body = requested(instance, "GET", "/healthz")
    except OSError as error:
        raise ServiceUnreachable(
            f"the service of {place.data_dir} does not answer at {instance.url}: {type(error).__name__}; "
            "is `toolscale serve` running?"
        ) from error
    try:
        health: object = json.loads(body)
    except ValueError:
        health = None
    known = cast("dict[str, Any]", health) if isinstance(health, dict) else {}
    found, step = (str(known[name])[:64] if name in known else None for name in ("instance_id", "starting"))
    if found != instance.instance_id:
        answers = f"instance {found}" if found else "a service without an instance id"
        raise InstanceMismatch(
            f"the service of {place.data_dir} was instance {instance.instance_id} at {instance.url}, and {answers} "
            "answers there now; start `toolscale serve` with this directory, or pass --url"
        )
    return instance, step


class Background:
    """The service of a place, which this client starts in the background where none runs."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._child: subprocess.Popen[bytes] | None = None
        self._logged_from = 0

    def reach(self, within_s: float = START_WITHIN_S) -> tuple[Instance, str | None]:
        """Return the service as soon as it answers, and the step of its start; None once it is ready.

        Raises: the errors of `service_of`.
        """
        if self._place.has_servers:
            return running_at(self._place)
        deadline_s = time.monotonic() + within_s
        while True:
            with suppress(ServiceUnreachable, InstanceMismatch):  # the file is that of a service which has ended
                instance, step = running_at(self._place)
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
        directory = self._place.data_dir.resolve()
        log_path = directory / LOG
        if self._child:
            code = self._child.poll()
            if code is None:
                return
            self._child = None
            if code == HELD:
                time.sleep(_HELD_POLL_S)  # the process with the lock starts or ends
            elif code > 0:
                raise (ConfigInvalid if code == 2 else ServiceUnreachable)(self._reason(code))  # noqa: PLR2004
        make_private_directory(directory)
        if log_path.exists() and log_path.stat().st_size > _LOG_BYTES:
            log_path.replace(log_path.with_suffix(".old.log"))
        config = ["--config", str(self._place.mcp_config.resolve())] if self._place.mcp_config else []
        # -P: a package in the working directory of a client is none of ours
        command = [sys.executable, "-P", "-m", "toolscale", "serve", "--background", "--data-dir", str(directory)]
        with os.fdopen(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
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
        """Return why the process ended: the last error in its part of the log."""
        with (self._place.data_dir / LOG).open("rb") as log:
            log.seek(self._logged_from)
            lines = log.read().decode(errors="replace").split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
        reason = errors[-1].removeprefix("error: ") if errors else f"exit code {code}; see {self._place.data_dir / LOG}"
        return f"Toolscale could not start: {reason}"


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
    if instance.mcp_config:
        with suppress(OSError, ValueError):  # the service logs what is wrong with the file
            text = Path(instance.mcp_config).read_text(encoding="utf-8-sig")
            names |= {name.upper() if sys.platform == "win32" else name for name in _REFERENCE.findall(text)}
    for name in sorted(names):
        value = os.environ.get(name)
        if value and digest(instance.secret, value) != instance.environment.get(name):
            return (
                f"other clients use the service of {place.data_dir}, which has another value of {name}; "
                "use the same value, end the other clients, or use another data directory by --data-dir"
            )
    return None


def _ordered(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
