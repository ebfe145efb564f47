"""A copy of all objects of a kind: list them, then apply their changes since the listed version.

After the regular end of a watch, the next watch continues from the last version.
After an expired version (410 Gone) or a lost connection, all objects are listed again.
"""

from __future__ import annotations

import json
import threading
import time
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
# Kubernetes ends a watch after WATCH_S seconds; a connection that is silent for longer is dead.
WATCH_S = 60
SILENCE_S = 75.0
OK, NOT_FOUND = 200, 404


class KubernetesSource:
    """The servers among the objects of one kind, in the cluster of `connect`.

    `scope` distinguishes this cluster from others that feed the same catalogue.
    `selector` is a label selector of Kubernetes, by which the API server filters lists and watches.
    A watch that ends before `least_watch_s` is an error: all objects are listed again, after a backoff.
    """

    def __init__(
        self,
        kind: ResourceKind,
        connect: Callable[[], ApiClient],
        scope: str = "",
        *,
        selector: str = "",
        least_watch_s: float = 1.0,
    ) -> None:
        self.name = scoped(kind.source, scope)
        self._kind = kind
        self._connect = connect
        self._selected = {"labelSelector": selector} if selector else {}
        self._least_watch_s = least_watch_s
        self._announcements = Announcements()
        self._servers: dict[str, Running] = {}
        self._listed = threading.Event()
        self._problem = "not listed yet"

    def running(self) -> list[Running]:
        """Return the servers of the copy; waits for the first list."""
        if not self._listed.wait(TIMEOUT_S):
            raise SourceUnavailable(self._problem)
        return [running for _, running in sorted(self._servers.copy().items())]

    def changes(self) -> Iterator[object]:
        """Yield once when all objects are listed, then after each change of a server, until an error."""
        with self._translated(), self._connect() as client:
            version = self._list(client)
            yield version
            while True:
                began = time.monotonic()
                for event in self._watch(client, version):
                    if self._apply(event):
                        yield event
                    version = str(event["object"]["metadata"]["resourceVersion"])
                if time.monotonic() - began < self._least_watch_s:
                    raise SourceUnavailable("Kubernetes ended the watch at once")

    def _list(self, client: ApiClient) -> str:
        """Replace the copy by a list of all objects, and return its version."""
        page = self._page(client, None)
        servers = self._read(page)
        while token := page["metadata"].get("continue"):
            page = self._page(client, token)
            servers |= self._read(page)
        self._servers = servers
        self._listed.set()
        return str(page["metadata"]["resourceVersion"])

    def _read(self, page: dict[str, Any]) -> dict[str, Running]:
        servers: dict[str, Running] = {}
        for document in page.get("items") or ():
            self._keep(servers, document)
        return servers

    def _page(self, client: ApiClient, token: str | None) -> dict[str, Any]:
        query = {"limit": PAGE, "continue": token} if token else {"limit": PAGE}
        response = self._get(client, query | self._selected, TIMEOUT_S)
        if response.status == NOT_FOUND:  # this cluster does not define the kind, so it has no objects
            self._servers = {}
            self._listed.set()
        return cast("dict[str, Any]", json.loads(_checked(response).data))

    def _watch(self, client: ApiClient, version: str) -> Iterator[dict[str, Any]]:
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": WATCH_S}
        response = _checked(self._get(client, query | self._selected, SILENCE_S))
        for line in response:
            if line.strip():
                yield json.loads(line)

    def _apply(self, event: dict[str, Any]) -> bool:
        """Apply an event to the copy, and return whether a server changed: most Services are none."""
        kind, document = event["type"], event["object"]
        if kind == "ERROR":  # mostly 410: the version has expired
            raise SourceUnavailable(f"Kubernetes: {document.get('code')} {document.get('message')}")
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return False
        before = self._servers.get(_key(document))
        return before != self._keep(self._servers, document, is_deleted=kind == "DELETED")

    def _keep(
        self, servers: dict[str, Running], document: dict[str, Any], *, is_deleted: bool = False
    ) -> Running | None:
        """Replace the object's server in one step, since another thread reads the copy; return the server."""
        running = None if is_deleted else self._server(document)
        if running:
            servers[_key(document)] = running
        else:
            servers.pop(_key(document), None)
        return running

    def _server(self, document: dict[str, Any]) -> Running | None:
        try:
            return self._kind.read(document, self._announcements)
        except ValidationError as error:  # one invalid object must not hide the others
            self._announcements.refuse(_key(document), error)
            return None

    def _get(self, client: ApiClient, query: dict[str, Any], silence_s: float) -> HTTPResponse:
        method, url, headers, _, _ = client.param_serialize(
            "GET", self._kind.path, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        response: Any = client.call_api(method, url, headers, _request_timeout=(TIMEOUT_S, silence_s))
        return cast("HTTPResponse", response.response)

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raise errors of the cluster and of its responses as SourceUnavailable."""
        from kubernetes.client import ApiException  # noqa: PLC0415  # an extra that only this watcher needs
        from kubernetes.config import ConfigException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            yield
        except (
            ApiException,
            ConfigException,
            HTTPError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            SourceUnavailable,
        ) as error:
            self._problem = str(error) if isinstance(error, SourceUnavailable) else f"Kubernetes: {error!r}"
            raise SourceUnavailable(self._problem) from error


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


def _checked(response: HTTPResponse) -> HTTPResponse:
    if response.status != OK:
        raise SourceUnavailable(f"Kubernetes: {response.status} {response.reason}")
    return response
