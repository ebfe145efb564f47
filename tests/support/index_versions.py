"""A catalogue on a real engine, with workers that use different models."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shared.catalog import Scope
from shared.errors import LeaseHeld
from shared.index import versions as stored
from shared.index.points import Engine
from shared.index.records import SERVERS_SPEC
from shared.index.versions import IndexStore, IndexVersion, IndexVersions, OpenVersion
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.text.embedding import Embedder
from shared.text.tokens import estimate
from tests.support.builders import World
from tests.support.fakes import DIMENSION, SaltedEmbedder
from tests.support.own_collections import own_collections
from tests.support.present import present
from workers import work
from workers.dependencies import Dependencies
from workers.ingest import reconcile
from workers.upkeep import migrate as migration
from workers.upkeep import recover
from workers.upkeep.audit import AuditRounds
from workers.upkeep.migrate import ModelRollout

QDRANT_URL = os.environ.get("QDRANT_URL")
ENGINES = ("edge", *(["server"] if QDRANT_URL else []))

OLD, NEW = "models/old", "models/new"


def index_version(model: str) -> IndexVersion:
    """Return the index version of a test's model."""
    return IndexVersion(model, DIMENSION)


@dataclass
class Catalogue:
    """The index, the intents and the servers, which all workers of a test share."""

    engine: Engine
    intents: Intents
    world: World = field(default_factory=World)

    def worker(self, model: str, make_embedder: Callable[[str], Embedder] = SaltedEmbedder) -> Dependencies:
        """Return what a worker process works with that has just started with this model."""
        versions = IndexVersions(IndexStore(self.engine), make_embedder(model), make_embedder)
        versions.store.ensure_active_version(versions.own)
        active, _ = versions.current()
        return Dependencies(
            self.intents,
            active.index,
            active.embedder,
            {"heuristic": estimate},
            self.world.list_server,
            versions=versions,
            rollout=ModelRollout(versions),
        )


def active_version(deps: Dependencies) -> OpenVersion:
    """Return the active index version as this process sees it now."""
    return present(deps.versions).current()[0]


def store_of(deps: Dependencies) -> IndexStore:
    """Return the store of this worker's index versions."""
    return present(deps.versions).store


def request_own_model(deps: Dependencies) -> None:
    """Request the model of this worker, as its start does."""
    present(deps.rollout).request_once()


def tools_found(deps: Dependencies, status: str = "running") -> set[str]:
    """Return the qualified names of the tools in service that have this status."""
    tools = active_version(deps).index.tools(Scope(status=status), limit=10_000).tools  # type: ignore[arg-type]  # any text
    return {tool.qualified_name for tool in tools}


def reconcile_all(deps: Dependencies) -> None:
    """Reconcile every requested server, as workers do, until none is left."""
    for intent in list(deps.intents.intents()):
        try:
            reconcile(intent.server_id, deps)
        except LeaseHeld:
            continue


def migrate(deps: Dependencies, released: Callable[[str], None], slice_s: float = migration.SLICE_S) -> None:
    """Run a slice of the migration with this worker's dependencies."""
    migration.migrate(present(deps.versions), deps.intents, released, slice_s)


def maintain_index(deps: Dependencies) -> None:
    """Maintain the index as this worker's sweep does."""
    request_own_model(deps)
    work.maintain_index(present(deps.versions), deps.intents, AuditRounds(1.0), lambda _: None)


def rebuild_if_lost(deps: Dependencies) -> None:
    """Rebuild a lost index with this worker's dependencies."""
    recover.rebuild_if_lost(present(deps.versions), deps.intents)


def forget_versions(shop: Catalogue) -> None:
    """Make the index equal to one from before index versions."""
    points = [stored._id(role) for role in ("active", "requested", "complete")]  # pyright: ignore[reportPrivateUsage]  # what the release before did not write
    shop.engine.collection(SERVERS_SPEC).delete(points)


@contextmanager
def catalogue(engine: str, directory: Path) -> Generator[Catalogue]:
    """Yield an empty catalogue on this engine and remove what it held."""
    with _engine(engine, directory / "index") as opened, closing(_intents(directory)) as intents:
        yield Catalogue(opened, intents)


def _intents(directory: Path) -> Intents:
    return Intents(SqliteStorage(directory / "intents.sqlite3"), RetryPolicy(first_s=0.05, longest_s=1.0))


@contextmanager
def _engine(name: str, directory: Path) -> Generator[Engine]:
    if name == "server":
        with own_collections(str(QDRANT_URL)) as server:
            yield server
        return
    from shared.index.edge import EdgeEngine

    with closing(EdgeEngine(directory)) as edge:
        yield edge


@contextmanager
def running(work: Callable[[], object], times: int = 1) -> Generator[Callable[[], int]]:
    """Do this over and over in threads until the block ends; yield how often it was done. A failure is raised."""
    stopped, done, failures = threading.Event(), [0], list[BaseException]()

    def run() -> None:
        try:
            while not stopped.is_set():
                work()
                done[0] += 1
        except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: done[0]
    finally:
        stopped.set()
        for thread in threads:
            thread.join(30)
        if failures:
            raise failures[0]
