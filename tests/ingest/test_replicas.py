"""A thousand replicas of one server cost what one server costs, with the real model, vocabularies and index."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.catalog import FORMS, Encoding, Scope
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from shared.text.embedding import FastEmbedder
from shared.text.tokens import Counter as Count
from shared.text.tokens import counters
from tests.support.builders import definition, listing, up
from tests.support.indexes import open_edge
from workers.dependencies import Dependencies
from workers.indexing.features import FeatureLocks
from workers.ingest import reconcile

pytestmark = [pytest.mark.process, pytest.mark.slow]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PACE = RetryPolicy(first_s=1.0, longest_s=4.0)
TOOLS = [definition(f"tool_{i}", f"Does thing {i} with a path", path={}) for i in range(20)]
THREADS = 8


@dataclass
class Watched:
    """The real model and vocabularies; `embedded` and `counted` list what they were asked, in order."""

    embedder: FastEmbedder = field(default_factory=FastEmbedder)
    embedded: list[str] = field(default_factory=list[str])
    counted: list[tuple[Encoding, str]] = field(default_factory=list[tuple[Encoding, str]])

    @property
    def model(self) -> str:
        return self.embedder.model

    @property
    def dimension(self) -> int:
        return self.embedder.dimension

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded.extend(texts)
        return self.embedder.passages(texts)

    def query(self, text: str) -> NDArray[np.float32]:
        return self.embedder.query(text)

    def counters(self) -> dict[Encoding, Count]:
        return {encoding: self._noting(encoding, count) for encoding, count in counters().items()}

    def _noting(self, encoding: Encoding, count: Count) -> Count:
        def counted(text: str) -> int:
            self.counted.append((encoding, text))
            return count(text)

        return counted


@pytest.fixture(params=["one worker", pytest.param("two workers", marks=pytest.mark.redis)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Intents]]:
    """The intents of one embedded worker, or those of two that share nothing but Redis."""
    with ExitStack() as opened:
        if request.param == "one worker":
            yield [opened.enter_context(closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), PACE)))]
        else:
            url = request.getfixturevalue("own_redis_url")
            yield [opened.enter_context(closing(Intents(RedisStorage(connect(url)), PACE))) for _ in range(2)]


def test_a_thousand_replicas_cost_a_worker_the_work_of_one(stores: list[Intents], tmp_path: Path) -> None:
    watched = Watched()
    replicas = [f"replica_{i}" for i in range(1_000)]
    for server_id in replicas:
        stores[0].record(up(server_id), due_in_s=60)

    with closing(open_edge(tmp_path / "index", "tools", watched.dimension)) as index:
        deps = Dependencies(
            intents=stores[0],
            index=index,
            embedder=watched,
            counters=watched.counters(),
            list_server=lambda _: listing(*TOOLS, declared_name="replicated"),
        )
        workers = itertools.cycle([replace(deps, intents=store, feature_locks=FeatureLocks()) for store in stores])
        with ThreadPoolExecutor(THREADS) as pool:
            runs = [pool.submit(reconcile, server_id, next(workers)) for server_id in replicas]
            written = sum(done.written for run in runs if (done := run.result(timeout=120)))
        summed = index.token_sum(Scope(), "cl100k_base")

    assert written == 20_000
    assert len(watched.counted) <= len(stores) * len(TOOLS) * len(FORMS) * len(watched.counters())
    assert len(set(watched.embedded)) == 2 * len(TOOLS)
    assert max(Counter(watched.embedded).values()) <= len(stores)
    count = counters()["cl100k_base"]
    assert (summed.tokens, summed.counted) == (1_000 * sum(count(tool.wire) for tool in TOOLS), 20_000)
