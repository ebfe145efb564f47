"""A worker that also answers find_tool: only one process can open an embedded index.

`celery -A tests.chaos.answering_worker worker` is the worker of `workers.app`, and from the moment that it is ready
the query service over the same index, in a thread.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

from celery import signals

from query.catalogue import live_catalogue, live_index
from query.listener import open_listener
from query.mcp import service_of
from query.service import HttpServer
from shared.errors import Retryable
from shared.settings import load_settings
from workers.app import app
from workers.celery_app import RECONCILE_SERVER

if TYPE_CHECKING:
    from workers.dependencies import Dependencies
    from workers.work import Work

AGAIN_AFTER_S = 0.2


class Answering:
    """The query service in a thread of a worker."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._http: HttpServer | None = None
        self._thread = threading.Thread(target=self._run, name="query service", daemon=True)

    def start(self, **_: Any) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, **_: Any) -> None:
        """End before the worker closes its index."""
        self._ending.set()
        if self._http:
            self._http.stop()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._answer()
            except Retryable:  # Redis may have been killed just now
                self._ending.wait(AGAIN_AFTER_S)

    def _answer(self) -> None:
        settings, versions = load_settings(), _dependencies().versions
        assert versions
        with live_index(versions) as followed, closing(open_listener(settings)) as entrance:
            catalogue = live_catalogue(followed, settings)
            self._http = HttpServer(service_of(catalogue), entrance, index=catalogue.index)
            if not self._ending.is_set():
                self._http.run()


def _dependencies() -> Dependencies:
    """Return what the worker's own tasks work with, index included."""
    task: Any = app.tasks[RECONCILE_SERVER]
    work: Work = task.__wrapped__.__self__
    return work._dependencies()  # pyright: ignore[reportPrivateUsage]  # nobody else holds the index


_answering = Answering()
signals.worker_ready.connect(_answering.start, weak=False)
signals.worker_shutting_down.connect(_answering.stop, weak=False)
