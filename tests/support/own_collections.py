"""Engines for tests: collections of one test on a shared server, and collections on Edge that vanish as on a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from shared.index.points import CollectionSpec, Engine

if TYPE_CHECKING:
    from shared.index.points import PointCollection


class OwnCollections(Engine):
    """The collections of an engine whose names begin with a prefix, under their names without it."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix

    @override
    def ensure(self, spec: CollectionSpec) -> None:
        self._engine.ensure(replace(spec, name=self._prefix + spec.name))

    @override
    def collection(self, spec: CollectionSpec) -> PointCollection:
        return self._engine.collection(replace(spec, name=self._prefix + spec.name))

    @override
    def exists(self, name: str) -> bool:
        return self._engine.exists(self._prefix + name)

    @override
    def names(self) -> list[str]:
        return [name.removeprefix(self._prefix) for name in self._engine.names() if name.startswith(self._prefix)]

    @override
    def drop(self, name: str) -> None:
        self._engine.drop(self._prefix + name)

    @override
    def server_version(self) -> str:
        return self._engine.server_version()

    @override
    def close(self) -> None:
        self._engine.close()


class VanishingCollections(OwnCollections):
    """Collections that are looked up by name at each call, as on a server: once dropped, they raise IndexLost."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "")

    @override
    def collection(self, spec: CollectionSpec) -> PointCollection:
        return cast("PointCollection", _LookedUp(self._engine, spec))


class _LookedUp:
    def __init__(self, engine: Engine, spec: CollectionSpec) -> None:
        self._engine = engine
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.collection(self._spec), name)


@contextmanager
def own_collections(url: str) -> Generator[Engine]:
    """Yield an engine without collections on the server at `url`, and remove the collections that it then has."""
    from shared.index.client import ServerClient
    from shared.index.server import ServerEngine

    server = ServerEngine(ServerClient(url, os.environ.get("QDRANT_API_KEY")))
    with closing(OwnCollections(server, f"test-{uuid.uuid4().hex[:12]}-")) as engine:
        try:
            yield engine
        finally:
            for name in engine.names():
                engine.drop(name)
