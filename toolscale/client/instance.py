"""The service of a data directory: its address and instance id, in a file that `toolscale serve` keeps there.

Any Toolscale may listen at an address. Commands compare the id of the file with that of `/healthz`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import httpx2

from shared.errors import ConfigInvalid, InstanceMismatch, ServiceUnreachable
from shared.service.files import make_private_directory, write_private

if TYPE_CHECKING:
    from pathlib import Path

    from shared.settings import Settings

FILE = "service.json"
TIMEOUT_S = 5.0

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # a client cannot connect to a wildcard address


@dataclass(frozen=True, slots=True)
class Instance:
    """A running service: `url` is `http://host:port`, `instance_id` is new at every start."""

    url: str
    instance_id: str


@contextmanager
def published(data_dir: Path, address: str) -> Generator[Instance]:
    """Keep the address of this process, which holds the data directory, in its file until the block ends.

    After a crash the file remains; the next start replaces it.
    """
    make_private_directory(data_dir)
    path = data_dir / FILE
    instance = Instance(_reachable(address), secrets.token_hex(8))
    write_private(path, json.dumps(asdict(instance)))
    try:
        yield instance
    finally:
        path.unlink(missing_ok=True)


def service_url(settings: Settings) -> str:
    """Return `http://host:port` of the service of this catalogue, after a comparison of the instance ids.

    Without a file, services on a Qdrant server share one catalogue: the result is the address of the settings.

    Raises:
        ServiceUnreachable: no service of this data directory runs over HTTP, or it does not answer yet.
        InstanceMismatch: another service answers at its address.
        ConfigInvalid: the file cannot be read.
    """
    instance = _read(settings.data_dir / FILE)
    if instance:
        _compare(instance, settings.data_dir)
        return instance.url
    if settings.qdrant_url:
        return settings.own_url
    raise ServiceUnreachable(
        f"no service of {settings.data_dir} runs over HTTP; start `toolscale serve` with this directory, or pass --url"
    )


def _compare(instance: Instance, data_dir: Path) -> None:
    try:
        response = httpx2.get(f"{instance.url}/healthz", timeout=TIMEOUT_S, trust_env=False)
    except httpx2.HTTPError as error:
        raise ServiceUnreachable(
            f"the service of {data_dir} does not answer at {instance.url}: {type(error).__name__}; "
            "is `toolscale serve` running?"
        ) from error
    found = _text_of(response, "instance_id")
    if found != instance.instance_id:
        answers = f"instance {found}" if found else "a service without an instance id"
        raise InstanceMismatch(
            f"the service of {data_dir} was instance {instance.instance_id} at {instance.url}, and {answers} answers "
            "there now; start `toolscale serve` with this directory, or pass --url"
        )
    if step := _text_of(response, "starting"):
        raise ServiceUnreachable(f"the service of {data_dir} is starting ({step}); try again in a few seconds")


def _text_of(response: httpx2.Response, key: str) -> str | None:
    try:
        return str(response.json()[key])[:64]
    except (ValueError, TypeError, LookupError):
        return None


def _read(path: Path) -> Instance | None:
    try:
        found = cast("dict[str, object]", json.loads(path.read_text(encoding="utf-8")))
        return Instance(str(found["url"]), str(found["instance_id"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ConfigInvalid(f"{path}: expected the address of a service; start `toolscale serve` again") from error


def _reachable(address: str) -> str:
    parts = urlsplit(address)
    host = _LOOPBACK.get(parts.hostname or "")
    return f"{parts.scheme}://{host}:{parts.port}" if host else address
