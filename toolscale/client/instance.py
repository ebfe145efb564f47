"""The record of a running service, in its data directory.

service.lock  locked by the process that serves the directory
service.json  its address and secret while it listens; a crash leaves the file behind
service.log   the output of a service in the background

Any Toolscale may listen at an address, so clients compare the id of the file with that of `/healthz`.
This module imports little: `toolscale serve --stdio` loads it for every session of a client.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import secrets
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from shared.errors import ConfigInvalid
from shared.service.files import make_private_directory, write_private

FILE, LOCK, LOG = "service.json", "service.lock", "service.log"
ATTEND_PATH, STOP_PATH = "/service/attend", "/service/stop"

TIMEOUT_S = 5.0
_POLL_S = 0.05

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # a client cannot connect to a wildcard address


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
    parts, secret = urlsplit(address), secrets.token_urlsafe(32)
    loopback = _LOOPBACK.get(parts.hostname or "")
    instance = Instance(
        url=f"{parts.scheme}://{loopback}:{parts.port}" if loopback else address,
        instance_id=secrets.token_hex(8),
        secret=secret,
        version=version("toolscale"),
        pid=os.getpid(),
        is_background=is_background,
        mcp_config=str(mcp_config.resolve()) if mcp_config else None,
        environment={name: digest(secret, value) for name, value in (environment or {}).items() if value},
    )
    write_private(data_dir / FILE, json.dumps(asdict(instance)))
    try:
        yield instance
    finally:
        if is_published(instance, data_dir):
            (data_dir / FILE).unlink(missing_ok=True)


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


def is_published(instance: Instance, data_dir: Path) -> bool:
    """Return whether the file of the data directory is that of this instance: another process may have replaced it."""
    try:
        found = read_instance(data_dir)
    except ConfigInvalid:
        return False
    return found is not None and found.instance_id == instance.instance_id


def digest(secret: str, value: str) -> str:
    """Return a digest that shows whether a service has another value of a variable."""
    # 16 bits show a difference, and do not let a reader of the file find a short value by trial
    return hmac.new(secret.encode(), value.encode(errors="replace"), hashlib.sha256).hexdigest()[:4]


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


def ask_to_end(instance: Instance, *, is_for_all: bool) -> bool:
    """Return whether a background service ends now: it has no call in flight, and, unless `is_for_all`, no client."""
    if not instance.is_background:
        return False
    try:
        return requested(instance, "POST", f"{STOP_PATH}{'' if is_for_all else '?alone'}")[0] == http.client.ACCEPTED
    except OSError:
        return True  # it has ended


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
