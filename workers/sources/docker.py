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

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shared.catalog import DOCKER_SOURCE
from workers.sources.announcer import Running
from workers.sources.watcher import Announcements, SourceUnavailable, names, scoped

if TYPE_CHECKING:
    from docker.api.client import APIClient

LABEL = "toolscale.server"
TIMEOUT_S = 10

# After one of these events a server may offer other tools at the same address.
FRESH_STARTS = ("start", "unpause", "health_status: healthy")


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
        port, address = self.labels.get("toolscale.port"), self._address
        path = self.labels.get("toolscale.path", "/mcp")
        return f"http://{address}:{port}/{path.removeprefix('/')}" if port and address else None

    @property
    def _address(self) -> str | None:
        networks = self.network_settings.networks
        wanted = self.labels.get("toolscale.network")
        chosen = [networks[name] for name in sorted(networks) if name == (wanted or name)]
        return next((network.address for network in chosen if network.address), None)


_CONTAINERS = TypeAdapter(list[_Container])


class DockerSource:
    """The labelled containers of the Docker daemon that the environment names, as for the `docker` command.

    `scope` distinguishes this daemon from others that feed the same catalogue.
    """

    def __init__(self, environ: Mapping[str, str], scope: str = "") -> None:
        self.name = scoped(DOCKER_SOURCE, scope)
        self._environ = environ
        self._announcements = Announcements()
        self._started: dict[str, object] = {}

    def running(self) -> list[Running]:
        """Return the servers of all running labelled containers, the oldest container first."""
        with self._connected() as client:
            list_containers = cast("Callable[..., object]", client.containers)  # the stubs have no type for it
            containers = _CONTAINERS.validate_python(list_containers(filters={"label": LABEL, "status": "running"}))
        return [server for container in reversed(containers) if (server := self._running(container))]

    def changes(self) -> Iterator[object]:
        """Yield once when connected, then after each event of a labelled container."""
        with self._connected() as client:
            events = client.events(filters={"type": "container", "label": LABEL}, decode=True)
            yield "connected"
            for event in events:
                self._note_start(event)
                yield event
        raise SourceUnavailable("Docker ended its stream of events")

    def _note_start(self, event: dict[str, Any]) -> None:
        """Store the time of a start event, so that the server is announced again."""
        if str(event.get("Action", event.get("status"))) in FRESH_STARTS:
            container_id = str(event.get("Actor", {}).get("ID", event.get("id")))
            self._started[container_id] = event.get("timeNano", event.get("time"))

    def _running(self, container: _Container) -> Running | None:
        labels = container.labels
        data: dict[str, object] = {
            "server_id": labels[LABEL],
            "url": container.url,
            "transport": labels.get("toolscale.transport"),
            "groups": names(labels.get("toolscale.groups")),
            "credential_ref": labels.get("toolscale.credential-ref"),
        }
        announcement = self._announcements.read(f"container {container.id[:12]}", data)
        return Running(announcement, (container.id, self._started.get(container.id))) if announcement else None

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
