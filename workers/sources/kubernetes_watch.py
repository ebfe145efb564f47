"""List the objects of a kind in a cluster: Services that are annotated as MCP servers, and ToolHive's MCPServers."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from workers.sources.announcer import Running
from workers.sources.kubernetes import ResourceKind
from workers.sources.watcher import Announcements, SourceUnavailable, scoped

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from urllib3 import HTTPResponse

PAGE = 500
TIMEOUT_S = 10.0
OK, NOT_FOUND = 200, 404


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
