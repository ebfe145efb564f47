"""The `toolscale watch` commands: a process that follows the servers of an orchestrator."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from shared.errors import ConfigInvalid
from shared.service.every import every
from shared.service.process import interrupt_once
from shared.settings import Settings, load_settings
from toolscale.commands.help import command, group

if TYPE_CHECKING:
    from workers.sources.announcer import Source

Scope = Annotated[
    str | None,
    typer.Option(help="A name for this watcher, unique among those of its kind on one catalogue.", show_default=False),
]

watch_app = group("Follow the servers that an orchestrator runs, until interrupted.", "toolscale watch docker")


@command(watch_app, "docker", "toolscale watch docker --scope laptop")
def docker(scope: Scope = None) -> None:
    """Follow the containers that carry the label toolscale.server."""
    from workers.sources.docker import DockerSource  # noqa: PLC0415  # loads the write side

    _require("docker")
    settings = load_settings(watch_id=scope)
    _watch(settings, [DockerSource(os.environ, settings.watch_id)])


@command(watch_app, "kubernetes", "toolscale watch kubernetes --scope production --selector toolscale.dev/server")
def kubernetes(
    scope: Scope = None,
    selector: Annotated[
        str,
        typer.Option(
            help="Follow only the Services with these labels, as in `kubectl --selector`; MCPServers need none."
        ),
    ] = "",
) -> None:
    """Follow annotated Services, and ToolHive's MCPServers, of this cluster or the kubeconfig's."""
    # loads the write side
    from workers.sources.kubernetes import MCP_SERVERS, SERVICES, KubernetesSource, cluster  # noqa: PLC0415

    _require("kubernetes")
    settings = load_settings(watch_id=scope)
    connect = partial(cluster, os.environ)
    services = KubernetesSource(SERVICES, connect, settings.watch_id, selector=selector)
    _watch(settings, [services, KubernetesSource(MCP_SERVERS, connect, settings.watch_id)])


def _watch(settings: Settings, sources: Sequence[Source]) -> None:
    """Follow these sources until interrupted, each in a thread of its own."""
    from workers.process import source_process  # noqa: PLC0415
    from workers.sources.announcer import LIST_EVERY_S, READY_WITHIN_S, SourceAnnouncer, Watcher  # noqa: PLC0415

    interrupt_once()
    parts = [source.name for source in sources]
    with source_process(settings, parts, READY_WITHIN_S) as process, ExitStack() as running:
        for source in sources:
            structlog.get_logger().info("watch_started", source=source.name)
            announcer = SourceAnnouncer(source.name, process.intents, process.emit)
            watcher = Watcher(source, announcer, beat=partial(process.beat, source.name))
            running.enter_context(every(LIST_EVERY_S, watcher.announce, "source_reconcile_failed", source=source.name))
        threading.Event().wait()  # until a signal


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigInvalid(
            f"toolscale watch {package} needs the extra `{package}`: pip install 'toolscale[{package}]'"
        )
