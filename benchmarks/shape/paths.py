"""The two main paths as they really run: one event with the reconciliation it brings, and one `find_tool` call.

The embedded stores, the bundled model and a scripted server with two tools take part. Celery runs the tasks in this
thread, by their public names; threads that these start count too. A function counts when its body ran. Lambdas and
comprehensions do not count. The reconciliation is the first of its process. The call is the second of its client:
the first one fills the caches.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import anyio
import structlog
from celery import Celery
from mcp import Client

from benchmarks.shape.tree import PACKAGES, ROOT, place
from query.catalogue import Catalogue, live_catalogue
from query.search.live_index import live_index
from query.server.mcp import build_server
from query.tools.registry import builtin_tools
from shared.events import ServerAnnouncement, ServerUp
from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import ScriptedServer, scripted_http
from workers.dependencies import Dependencies, open_dependencies
from workers.tasks import ACCEPT_EVENT, RECONCILE_SERVER, register_tasks, send_reconcile, waiting
from workers.work import Work

TOOLS = one_page(tool("read_file", "Read a file"), tool("write_file", "Write a file"))


@dataclass(frozen=True)
class Passed:
    """The functions, files and places that one run passes."""

    functions: int
    files: int
    places: int


class Recorder:
    """Collects the functions of the product that run in any thread while `recording` is open."""

    def __init__(self) -> None:
        self._is_on = False
        self._seen: set[CodeType] = set()

    @contextmanager
    def installed(self) -> Generator[None]:
        """Observe this thread and those that start before the block ends."""
        threading.setprofile(self._observe)
        sys.setprofile(self._observe)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Generator[None]:
        """Forget earlier functions, and collect those that run until the block ends."""
        self._seen.clear()
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def passed(self) -> Passed:
        """Return how much of the product ran."""
        functions = {code for code in self._seen if _is_function(code)}
        files = {Path(code.co_filename) for code in functions}
        return Passed(len(functions), len(files), len({place(file) for file in files}))

    def _observe(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._is_on and event == "call":
            self._seen.add(frame.f_code)


def main_paths() -> tuple[Passed, Passed]:
    """Return what the first reconciliation passes, its event included, and what one `find_tool` call passes."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    recorder = Recorder()
    with (
        TemporaryDirectory() as directory,
        scripted_http(lambda exchange: exchange.play(TOOLS)) as server,
        recorder.installed(),
    ):
        settings = load_settings(data_dir=Path(directory), redis_url=None, qdrant_url=None)
        with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as dependencies:
            reconciliation = _reconciliation(recorder, dependencies, server)
            assert dependencies.versions is not None
            with live_index(dependencies.versions) as live:
                return reconciliation, anyio.run(_call, recorder, live_catalogue(live, settings))


def _reconciliation(recorder: Recorder, dependencies: Dependencies, server: ScriptedServer) -> Passed:
    app = Celery("shape", broker="memory://localhost/")
    stores = (lambda: dependencies.intents, lambda: dependencies)
    wake = partial(send_reconcile, app), partial(waiting, app)
    register_tasks(app, Work(*stores, *wake, dependencies.metrics, message_time_s=60.0, sweep_interval_s=5.0))
    event = ServerUp(data=ServerAnnouncement(server_id="files", url=server.url)).model_dump(mode="json")
    with recorder.recording():
        app.tasks[ACCEPT_EVENT].apply(args=(event,), throw=True)
        app.tasks[RECONCILE_SERVER].apply(args=("files",), throw=True)
    assert dependencies.index.tool_states("files").keys() == {"read_file", "write_file"}
    return recorder.passed()


async def _call(recorder: Recorder, catalogue: Catalogue) -> Passed:
    async with Client(build_server(builtin_tools(catalogue))) as client:
        await client.call_tool("find_tool", {"tool_description": "read a file"})
        with recorder.recording():
            result = await client.call_tool("find_tool", {"tool_description": "read a file"})
    assert not result.is_error
    return recorder.passed()


def _is_function(code: CodeType) -> bool:
    """Return whether this is a named function of the product; bodies of classes and modules are not."""
    path = Path(code.co_filename)
    is_ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES
    return is_ours and not code.co_name.startswith("<") and bool(code.co_flags & CO_OPTIMIZED)
