"""Docker containers that carry the label `toolscale.server`.

| label | meaning |
|---|---|
| `toolscale.server` | the server's id |
| `toolscale.url` | the server's URL; or the two labels below |
| `toolscale.port`, `toolscale.path` | the port and the path at the container's address; the default path is `/mcp` |
| `toolscale.network` | the network of that address, if the container has several |
| `toolscale.transport`, `toolscale.groups`, `toolscale.credential-ref` | as in an event; groups separated by commas |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shared.catalog import DOCKER_SOURCE
from workers.sources.announcer import Announcements, Running, SourceUnavailable, names, scoped

if TYPE_CHECKING:
    from docker.api.client import APIClient

LABEL = "toolscale.server"
TIMEOUT_S = 10


class _Network(BaseModel):
    address: str = Field(default="", alias="IPAddress")


class _NetworkSettings(BaseModel):
    networks: dict[str, _Network] = Field(default_factory=dict[str, _Network], alias="Networks")


class _Container(BaseModel):
    """One container of a list of containers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(alias="Id")
    labels: dict[str, str] = Field(alias="Labels")
    network_settings: _NetworkSettings = Field(default_factory=_NetworkSettings, alias="NetworkSettings")

    @property
    def url(self) -> str | None:
        """Return the URL of the server, None if it is unknown, for example without an address."""
        if explicit := self.labels.get("toolscale.url"):
            return explicit
        networks, wanted = self.network_settings.networks, self.labels.get("toolscale.network")
        chosen = [networks[name] for name in sorted(networks) if name == (wanted or name)]
        address = next((network.address for network in chosen if network.address), None)
        port, path = self.labels.get("toolscale.port"), self.labels.get("toolscale.path", "/mcp")
        return f"http://{address}:{port}/{path.removeprefix('/')}" if port and address else None


_CONTAINERS = TypeAdapter(list[_Container])


def _start(client: APIClient, container: _Container) -> object:
    """Return a value that changes when the container starts again, or becomes healthy: it may have other tools then.

    A list of containers has neither. A container that has ended since the list has no start.
    """
    from docker.errors import NotFound  # noqa: PLC0415  # an extra that only this watcher needs

    inspect = cast("Callable[[str], dict[str, Any]]", client.inspect_container)  # the stubs have no type for it
    try:
        state = inspect(container.id)["State"]
    except NotFound:
        return None
    return state["StartedAt"], state.get("Health", {}).get("Status") == "healthy"


class DockerSource:
    """The labelled containers of the Docker daemon that the environment names, as for the `docker` command.

    `scope` distinguishes this daemon from others that feed the same catalogue.
    """

    def __init__(self, environ: Mapping[str, str], scope: str = "") -> None:
        self.name = scoped(DOCKER_SOURCE, scope)
        self._environ = environ
        self._announcements = Announcements()

    def running(self) -> list[Running]:
        """Return the servers of all running labelled containers, the oldest container first."""
        with self._connected() as client:
            list_containers = cast("Callable[..., object]", client.containers)  # the stubs have no type for it
            containers = _CONTAINERS.validate_python(list_containers(filters={"label": LABEL, "status": "running"}))
            return [
                server
                for container in reversed(containers)
                if (server := self._running(container, _start(client, container)))
            ]

    def _running(self, container: _Container, start: object) -> Running | None:
        labels = container.labels
        data: dict[str, object] = {
            "server_id": labels[LABEL],
            "url": container.url,
            "transport": labels.get("toolscale.transport"),
            "groups": names(labels.get("toolscale.groups")),
            "credential_ref": labels.get("toolscale.credential-ref"),
        }
        announcement = self._announcements.read(f"container {container.id[:12]}", data)
        return Running(announcement, (container.id, start)) if announcement else None

    @contextmanager
    def _connected(self) -> Generator[APIClient]:
        """Yield a client; raise its errors as SourceUnavailable."""
        import docker.errors  # noqa: PLC0415  # an extra that only this watcher needs
        import requests  # noqa: PLC0415
        import urllib3.exceptions  # noqa: PLC0415
        from docker.utils import kwargs_from_env  # noqa: PLC0415

        foreign = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError)
        try:
            with closing(docker.APIClient(**kwargs_from_env(self._environ), timeout=TIMEOUT_S)) as client:
                yield client
        except (*foreign, OSError, ValidationError, ValueError) as error:
            raise SourceUnavailable(f"Docker: {error}") from error
