"""Kubernetes Services that are annotated as MCP servers, and the MCPServer resources of ToolHive.

| annotation | meaning |
|---|---|
| `toolscale.dev/server` | the server's id; it marks a Service as an MCP server |
| `toolscale.dev/url` | the server's URL; without it, the Service's name, port and path |
| `toolscale.dev/port` | the number or name of the Service's port; the default is the first port |
| `toolscale.dev/path` | the path; the default is `/mcp` |
| `toolscale.dev/transport`, `toolscale.dev/groups`, `toolscale.dev/credential-ref` | as in an event; groups by commas |

An MCPServer is announced once it runs and has a URL; its default id is `<namespace>/<name>`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.catalog import KUBERNETES_SOURCE, TOOLHIVE_SOURCE
from workers.sources.announcer import Announcements, Running, SourceUnavailable, names, scoped

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from urllib3 import HTTPResponse

PREFIX = "toolscale.dev/"
PAGE = 500
TIMEOUT_S = 10.0
OK, NOT_FOUND = 200, 404
# Older versions of ToolHive use the first phase, newer ones the second.
RUNNING_PHASES = ("Running", "Ready")


class _Metadata(BaseModel):
    """The metadata of an object."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    namespace: str = "default"
    uid: str
    created: str = Field(default="", alias="creationTimestamp")
    generation: int | None = None
    annotations: dict[str, str] = Field(default_factory=dict[str, str])

    def annotated(self, name: str) -> str | None:
        """Return the value of a `toolscale.dev/` annotation."""
        return self.annotations.get(PREFIX + name)


class _Port(BaseModel):
    name: str | None = None
    port: int


class _ServiceSpec(BaseModel):
    ports: list[_Port] = Field(default_factory=list[_Port])


class Service(BaseModel):
    """The relevant fields of a Service."""

    metadata: _Metadata
    spec: _ServiceSpec = Field(default_factory=_ServiceSpec)

    @property
    def url(self) -> str | None:
        """Return the server's URL within the cluster; None for a Service without the annotated port."""
        if explicit := self.metadata.annotated("url"):
            return explicit
        wanted = self.metadata.annotated("port")
        ports = [port.port for port in self.spec.ports if wanted in (None, port.name, str(port.port))]
        path = (self.metadata.annotated("path") or "/mcp").removeprefix("/")
        return f"http://{self.metadata.name}.{self.metadata.namespace}.svc:{ports[0]}/{path}" if ports else None


class _Status(BaseModel):
    phase: str = ""
    url: str = ""


class MCPServer(BaseModel):
    """The relevant fields of a server that ToolHive runs."""

    metadata: _Metadata
    status: _Status = Field(default_factory=_Status)

    @property
    def transport(self) -> str:
        """Return the transport of its proxy, derived from its URL."""
        return "sse" if self.status.url.partition("#")[0].rstrip("/").endswith("/sse") else "streamable-http"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of watched object: its source name, its path in the API, and a reader of its objects.

    `read` returns None for an object without a running server.
    """

    source: str
    path: str
    read: Callable[[dict[str, Any], Announcements], Running | None]


def _service(document: dict[str, Any], announcements: Announcements) -> Running | None:
    service = Service.model_validate(document)
    server_id = service.metadata.annotated("server")
    if server_id is None:
        return None
    return _running(service.metadata, server_id, service.url, service.metadata.annotated("transport"), announcements)


def _mcp_server(document: dict[str, Any], announcements: Announcements) -> Running | None:
    server = MCPServer.model_validate(document)
    if server.status.phase not in RUNNING_PHASES or not server.status.url:
        return None
    server_id = server.metadata.annotated("server") or f"{server.metadata.namespace}/{server.metadata.name}"
    url = server.status.url.partition("#")[0]
    return _running(server.metadata, server_id, url, server.transport, announcements)


def _running(
    metadata: _Metadata, server_id: str, url: str | None, transport: str | None, announcements: Announcements
) -> Running | None:
    data: dict[str, object] = {
        "server_id": server_id,
        "url": url,
        "transport": transport,
        "groups": names(metadata.annotated("groups")),
        "credential_ref": metadata.annotated("credential-ref"),
    }
    announcement = announcements.read(f"{metadata.namespace}/{metadata.name}", data)
    # a replaced or changed object may offer other tools at the same address
    if announcement is None:
        return None
    owner = f"namespace {metadata.namespace}"  # a tenant of the cluster, whose servers another one must not take
    return Running(announcement, (metadata.uid, metadata.generation), owner, metadata.created)


SERVICES = ResourceKind(KUBERNETES_SOURCE, "/api/v1/services", _service)
MCP_SERVERS = ResourceKind(TOOLHIVE_SOURCE, "/apis/toolhive.stacklok.dev/v1alpha1/mcpservers", _mcp_server)
RESOURCE_KINDS = (SERVICES, MCP_SERVERS)


class KubernetesSource:
    """The servers among the objects of one kind, in the cluster of `connect`.

    `scope` distinguishes this cluster from others that feed the same catalogue.
    `selector` is a label selector of Kubernetes, by which the API server filters the list.
    """

    def __init__(
        self, kind: ResourceKind, connect: Callable[[], ApiClient], scope: str = "", *, selector: str = ""
    ) -> None:
        self.name = scoped(kind.source, scope)
        self._kind = kind
        self._connect = connect
        self._selected = {"labelSelector": selector} if selector else {}
        self._announcements = Announcements()

    def running(self) -> list[Running]:
        """Return the servers of all objects, ordered by namespace and name."""
        with _translated(), self._connect() as client:
            documents = {_key(document): document for document in self._documents(client)}
        return [server for _, document in sorted(documents.items()) if (server := self._server(document))]

    def _documents(self, client: ApiClient) -> Iterator[dict[str, Any]]:
        """Yield all objects, page by page; a cluster that does not define the kind has none."""
        query: dict[str, Any] = {"limit": PAGE} | self._selected
        while True:
            response = self._get(client, query)
            if response.status == NOT_FOUND:
                return
            if response.status != OK:
                raise SourceUnavailable(f"Kubernetes: {response.status} {response.reason}")
            page = cast("dict[str, Any]", json.loads(response.data))
            yield from page.get("items") or ()
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    def _server(self, document: dict[str, Any]) -> Running | None:
        try:
            return self._kind.read(document, self._announcements)
        except ValidationError as error:  # one invalid object must not hide the others
            self._announcements.refuse(_key(document), error)
            return None

    def _get(self, client: ApiClient, query: dict[str, Any]) -> HTTPResponse:
        method, url, headers, _, _ = client.param_serialize(
            "GET", self._kind.path, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        response: Any = client.call_api(method, url, headers, _request_timeout=TIMEOUT_S)
        return cast("HTTPResponse", response.response)


@contextmanager
def _translated() -> Generator[None]:
    """Raise errors of the cluster and of its responses as SourceUnavailable."""
    from kubernetes.client import ApiException  # noqa: PLC0415  # an extra that only this watcher needs
    from kubernetes.config import ConfigException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        yield
    except (ApiException, ConfigException, HTTPError, OSError, ValueError, TypeError, KeyError) as error:
        raise SourceUnavailable(f"Kubernetes: {error!r}") from error


def cluster(environ: Mapping[str, str]) -> ApiClient:
    """Return a client for the cluster of this process, or for the cluster of the kubeconfig.

    Raises:
        ConfigException: neither is configured.
    """
    from kubernetes import client, config  # noqa: PLC0415  # an extra that only this watcher needs

    configuration = client.Configuration()
    load_kube_config = cast("Callable[..., None]", config.load_kube_config)
    load_incluster_config = cast("Callable[..., None]", config.load_incluster_config)
    if "KUBERNETES_SERVICE_HOST" in environ and "KUBECONFIG" not in environ:
        load_incluster_config(client_configuration=configuration)
    else:
        load_kube_config(config_file=environ.get("KUBECONFIG"), client_configuration=configuration)
    configuration.retries = False  # the watcher retries
    return client.ApiClient(configuration)


def _key(document: dict[str, Any]) -> str:
    return f"{document['metadata'].get('namespace')}/{document['metadata']['name']}"
