"""The embedded engine's directory outlives its process and has one owner."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.catalog import Endpoint, Scope, ServerRecord, SparseVector, TokenSum
from shared.errors import ConfigInvalid, IndexUnavailable
from shared.index import edge
from shared.index.edge import FLUSH_EVERY, EdgeCollection
from shared.index.points import CollectionSpec, NamedVector, Point
from shared.index.records import SERVERS_COLLECTION, TOOLSETS_COLLECTION
from shared.index.versions import IndexVersion
from shared.settings import load_settings
from tests.support.fakes import DIMENSION, asking, closest, embedded, make_tool, unit_vector
from tests.support.indexes import OpenIndex, open_edge, open_index

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]

WRITE_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from shared.catalog import Endpoint, ServerRecord
from tests.support.indexes import open_edge
from tests.support.fakes import DIMENSION, embedded, make_tool

index = open_edge(Path(sys.argv[1]), "tools", DIMENSION)
for i in count(1):
    index.upsert([embedded(make_tool("s", f"t{i}", tokens=1), i)])
    index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(), revision=i))
    print(i, flush=True)
"""

HOLD_UNTIL_TOLD = """
import sys
from pathlib import Path
from tests.support.indexes import open_edge

index = open_edge(Path(sys.argv[1]), "tools", int(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
index.close()
"""


@contextmanager
def _python(script: str, *arguments: object) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _opened(directory: Path) -> closing[OpenIndex]:
    return closing(open_edge(directory, "tools", DIMENSION))


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    tool = make_tool("git", "log", tokens=12, groups=("dev",))
    record = ServerRecord(server_id="git", endpoint=Endpoint(), revision=3)
    with _opened(tmp_path) as index:
        index.upsert([embedded(tool)])
        index.put_server(record)

    with _opened(tmp_path) as index:
        assert closest(index, asking(), Scope(groups=frozenset({"dev"})), 5) == [tool]
        assert index.token_sum(Scope(), "cl100k_base") == TokenSum(12, 1, 0)
        assert index.servers(newer_than=2) == [record]


def test_every_confirmed_write_survives_a_kill(tmp_path: Path) -> None:
    with _python(WRITE_FOR_EVER, tmp_path) as process:
        confirmed = [int(_line(process)) for _ in range(300)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)

    with _opened(tmp_path) as index:
        found = index.tool_states("s").keys()
        record = index.server("s")
        summed = index.token_sum(Scope(), "cl100k_base")

    assert {f"t{i}" for i in range(1, confirmed + 1)} <= found
    assert record is not None
    assert record.revision >= confirmed
    assert summed == TokenSum(len(found), len(found), 0)


def test_a_second_process_is_told_who_uses_the_directory(tmp_path: Path) -> None:
    with _python(HOLD_UNTIL_TOLD, tmp_path, DIMENSION) as process:
        assert _line(process) == "open"

        with pytest.raises(ConfigInvalid, match=f"another Toolscale process uses {tmp_path}"):
            open_edge(tmp_path, "tools", DIMENSION)
        with pytest.raises(ConfigInvalid, match="another Toolscale process uses"):
            open_edge(tmp_path, "tools-of-another-model", 8)

        process.communicate(timeout=60)
        assert process.returncode == 0

    with _opened(tmp_path) as index:
        assert index.servers() == []


def test_of_several_that_open_a_new_directory_at_once_one_gets_it(tmp_path: Path) -> None:
    def attempt(_: int) -> OpenIndex | ConfigInvalid:
        try:
            return open_edge(tmp_path, "tools", DIMENSION)
        except ConfigInvalid as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(attempt, range(4)))

    winners = [outcome for outcome in outcomes if isinstance(outcome, OpenIndex)]
    assert len(winners) == 1
    winners[0].close()


def test_a_refused_directory_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "edge_config.json").write_text("{")

    with pytest.raises(IndexUnavailable, match="tools") as refused:
        open_edge(tmp_path, "tools", DIMENSION)

    with closing(open_edge(tmp_path, "others", DIMENSION)) as index:
        assert index.servers() == []
    assert refused.tb is not None  # it was held till here, and with it all that open_edge had in its hands


def test_a_closed_index_says_that_it_does_not_answer_and_closes_again(tmp_path: Path) -> None:
    index = open_edge(tmp_path, "tools", DIMENSION)
    index.close()

    with pytest.raises(IndexUnavailable):
        index.server("s")
    index.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigInvalid, match=r"data_dir: cannot create .*/file/index"):
        open_edge(tmp_path / "file" / "index", "tools", DIMENSION)


def test_more_writes_than_fit_between_two_flushes_are_all_there(tmp_path: Path) -> None:
    tools = [embedded(make_tool("s", f"t{i}"), vector=unit_vector(0)) for i in range(FLUSH_EVERY // 2 + 1)]
    with _opened(tmp_path) as index:
        index.upsert(tools)
        index.upsert(tools)

        assert index.token_sum(Scope(), "cl100k_base").counted == len(tools)


def test_without_a_server_the_index_lies_in_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QDRANT_URL", raising=False)
    monkeypatch.delenv("TOOLSCALE_QDRANT_URL", raising=False)

    with closing(open_index(load_settings(data_dir=tmp_path), "a/model", DIMENSION)):
        created = {path.name for path in (tmp_path / "index").iterdir()}

    assert created == {IndexVersion("a/model", DIMENSION).name, SERVERS_COLLECTION, TOOLSETS_COLLECTION}


def test_another_model_or_dimension_is_another_collection() -> None:
    names = {IndexVersion(model, size).name for model, size in (("a/b", 384), ("a/c", 384), ("a/b", 768))}

    assert len(names) == 3
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)


# --- dense vectors: float16, and in shards of earlier builds still float32 ---

WIDTH = 384
VECTORS = CollectionSpec("tools", {"digest": "keyword"}, WIDTH, ("name",), ("terms",))
FIRST, SECOND = (str(UUID(int=number)) for number in (1, 2))


def point(point_id: str, seed: int) -> Point:
    return Point(point_id, {"digest": point_id}, {"name": unit_vector(seed, WIDTH)})


def stored(index: EdgeCollection, point_id: str) -> NDArray[np.float32]:
    vector = index.sample_by_value("digest", [point_id], ["digest"])[point_id].vectors["name"]
    assert not isinstance(vector, SparseVector)
    return vector


def test_a_shard_of_float32_is_searched_and_written_by_this_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(edge, "VectorStorageDatatype", SimpleNamespace(Float16=None))
        with closing(EdgeCollection(tmp_path / "tools", VECTORS)) as index:
            index.upsert([point(FIRST, 1)])

    with closing(EdgeCollection(tmp_path / "tools", VECTORS)) as index:
        index.upsert([point(SECOND, 2)])
        (found,) = index.query([NamedVector("name", unit_vector(2, WIDTH))], {}, 9)
        kept = stored(index, FIRST)

    assert list(found) == [SECOND, FIRST]
    np.testing.assert_allclose(kept, unit_vector(1, WIDTH), atol=1e-7)


def test_a_new_shard_holds_float16(tmp_path: Path) -> None:
    with closing(EdgeCollection(tmp_path / "tools", VECTORS)) as index:
        index.upsert([point(FIRST, 1)])
        kept = stored(index, FIRST)

    np.testing.assert_array_equal(kept, unit_vector(1, WIDTH).astype(np.float16))
