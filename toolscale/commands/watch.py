"""The `toolscale watch` commands: follow what an orchestrator runs, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import structlog
import typer

from shared.errors import ConfigInvalid
from shared.settings import load_settings

Scope = Annotated[
    str | None,
    typer.Option(help="What tells this watcher from others of its kind on one catalogue.", show_default=False),
]

watch_app = typer.Typer(no_args_is_help=True, help="Follow the servers that an orchestrator runs, until interrupted.")


@watch_app.command()
def docker(scope: Scope = None) -> None:
    """Follow the containers that carry the label toolscale.server."""
    from workers.heartbeat import Heartbeat  # noqa: PLC0415
    from workers.sources.docker import DockerSource  # noqa: PLC0415  # loads the write side
    from workers.sources.watching import Watcher, following_source  # noqa: PLC0415

    _require("docker")
    settings = load_settings(watch_scope=scope)
    source = DockerSource(os.environ, settings.watch_scope)
    heartbeat = Heartbeat(settings.heartbeat, [source.name])
    with following_source(source.name, settings) as follower:
        structlog.get_logger().info("watch_started", source=source.name)
        Watcher(source, follower, beat=partial(heartbeat.beat, source.name)).run()


@watch_app.command()
def kubernetes(scope: Scope = None) -> None:
    """Follow annotated Services, and ToolHive's MCPServers, of this cluster or the kubeconfig's."""
    from workers.heartbeat import Heartbeat  # noqa: PLC0415
    from workers.sources.kubernetes import KINDS  # noqa: PLC0415  # loads the write side
    from workers.sources.kubernetes_watch import KubernetesSource, cluster  # noqa: PLC0415
    from workers.sources.watching import Watcher, following_source  # noqa: PLC0415

    _require("kubernetes")
    settings = load_settings(watch_scope=scope)
    sources = [KubernetesSource(kind, partial(cluster, os.environ), settings.watch_scope) for kind in KINDS]
    heartbeat = Heartbeat(settings.heartbeat, [source.name for source in sources])
    with ExitStack() as stack:
        watchers: list[Watcher] = []
        for source in sources:
            follower = stack.enter_context(following_source(source.name, settings))
            structlog.get_logger().info("watch_started", source=source.name)
            watchers.append(Watcher(source, follower, beat=partial(heartbeat.beat, source.name)))
        for watcher in watchers[1:]:
            threading.Thread(target=watcher.run, name="toolscale watch", daemon=True).start()
        watchers[0].run()


def _require(package: str) -> None:
    # SIGTERM unwinds as Ctrl-C does, so that what was opened is closed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if importlib.util.find_spec(package) is None:
        raise ConfigInvalid(
            f"toolscale watch {package} needs the extra `{package}`: pip install 'toolscale[{package}]'"
        )
