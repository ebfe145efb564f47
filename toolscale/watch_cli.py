"""The `toolscale watch` commands: follow what an orchestrator runs, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from contextlib import ExitStack
from functools import partial

import structlog
import typer

from shared.errors import ConfigInvalid
from shared.settings import load_settings

watch_app = typer.Typer(no_args_is_help=True, help="Follow the servers that an orchestrator runs, until interrupted.")


@watch_app.command()
def docker() -> None:
    """Follow the containers that carry the label toolscale.server."""
    from workers.sources.docker import SOURCE, DockerSource  # noqa: PLC0415  # loads the write side
    from workers.sources.watching import Watcher, following_source  # noqa: PLC0415

    _require("docker")
    with following_source(SOURCE, load_settings()) as follower:
        structlog.get_logger().info("watch_started", source=SOURCE)
        Watcher(DockerSource(os.environ), follower).run()


@watch_app.command()
def kubernetes() -> None:
    """Follow annotated Services, and ToolHive's MCPServers, of this cluster or the kubeconfig's."""
    from workers.sources.kubernetes import KINDS  # noqa: PLC0415  # loads the write side
    from workers.sources.kubernetes_watch import KubernetesSource, cluster  # noqa: PLC0415
    from workers.sources.watching import Watcher, following_source  # noqa: PLC0415

    _require("kubernetes")
    with ExitStack() as stack:
        watchers: list[Watcher] = []
        for kind in KINDS:
            follower = stack.enter_context(following_source(kind.source, load_settings()))
            structlog.get_logger().info("watch_started", source=kind.source)
            watchers.append(Watcher(KubernetesSource(kind, partial(cluster, os.environ)), follower))
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
