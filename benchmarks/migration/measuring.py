"""Fill two index versions with the same tools, and time the listings of a migration and a pass over both."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.migration.results import Size
from shared.catalog import Endpoint, ServerRecord
from shared.index.points import Engine, walk
from shared.index.tools import ToolIndex
from shared.index.versions import tools_spec
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.fakes import embedded, make_tool
from tests.support.index_versions import NEW, OLD, Catalogue, active_version, index_version, migrate
from workers.maintenance.migrate import PAGE

TOOLS_PER_SERVER = 20
A_WRITE = 500


def measure(engine: Engine, tools: int, repetitions: int) -> Size:
    """Measure on an empty engine, and leave its collections to the caller."""
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(Intents(SqliteStorage(Path(directory) / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents,
    ):
        shop = Catalogue(engine, intents)
        shop.worker(OLD)
        worker = shop.worker(NEW)
        assert worker.rollout
        worker.rollout.request_once()
        assert worker.versions
        store = worker.versions.store
        active, following = store.index(index_version(OLD)), store.index(index_version(NEW))
        servers = _fill(active, following, tools)
        stored = engine.collection(tools_spec(index_version(OLD)))
        page_s = _timed(lambda: active.share(0, limit=PAGE), repetitions)
        facet_s = _timed(active.servers_with_tools, repetitions)
        scan_s = _timed(lambda: {row["server_id"] for row in walk(stored, {}, ("server_id",))}, repetitions)
        began = time.perf_counter()
        while active_version(worker).version != index_version(NEW):
            migrate(worker, lambda _: None)
        pass_s = time.perf_counter() - began
    return Size(tools=tools, servers=servers, page_s=page_s, facet_s=facet_s, scan_s=scan_s, pass_s=round(pass_s, 2))


def _timed(work: Callable[[], object], repetitions: int) -> tuple[float, ...]:
    def once() -> float:
        began = time.perf_counter()
        work()
        return round(time.perf_counter() - began, 5)

    return tuple(once() for _ in range(repetitions))


def _fill(active: ToolIndex, following: ToolIndex, tools: int) -> int:
    servers = max(1, tools // TOOLS_PER_SERVER)
    each = [embedded(make_tool(f"server-{n % servers}", f"tool-{n // servers}")) for n in range(tools)]
    for start in range(0, tools, A_WRITE):
        for index in (active, following):
            index.upsert(each[start : start + A_WRITE])
    for number in range(servers):
        active.put_server(ServerRecord(server_id=f"server-{number}", endpoint=Endpoint(), revision=number + 1))
    return servers
