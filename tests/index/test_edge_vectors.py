"""Dense vectors of an embedded index: float16, and in shards of earlier builds still float32."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.catalog import SparseVector
from shared.index import edge
from shared.index.edge import EdgeCollection
from shared.index.points import CollectionSpec, NamedVector, Point
from tests.support.fakes import unit_vector

pytestmark = pytest.mark.process

DIMENSION = 384
SPEC = CollectionSpec("tools", {"digest": "keyword"}, DIMENSION, ("name",), ("terms",))
FIRST, SECOND = (str(UUID(int=number)) for number in (1, 2))


def point(point_id: str, seed: int) -> Point:
    return Point(point_id, {"digest": point_id}, {"name": unit_vector(seed, DIMENSION)})


def stored(index: EdgeCollection, point_id: str) -> NDArray[np.float32]:
    vector = index.sample_by_value("digest", [point_id], ["digest"])[point_id].vectors["name"]
    assert not isinstance(vector, SparseVector)
    return vector


def test_a_shard_of_float32_is_searched_and_written_by_this_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(edge, "VectorStorageDatatype", SimpleNamespace(Float16=None))
        with closing(EdgeCollection(tmp_path / "tools", SPEC)) as index:
            index.upsert([point(FIRST, 1)])

    with closing(EdgeCollection(tmp_path / "tools", SPEC)) as index:
        index.upsert([point(SECOND, 2)])
        (found,) = index.query([NamedVector("name", unit_vector(2, DIMENSION))], {}, 9)
        kept = stored(index, FIRST)

    assert list(found) == [SECOND, FIRST]
    np.testing.assert_allclose(kept, unit_vector(1, DIMENSION), atol=1e-7)


def test_a_new_shard_holds_float16(tmp_path: Path) -> None:
    with closing(EdgeCollection(tmp_path / "tools", SPEC)) as index:
        index.upsert([point(FIRST, 1)])
        kept = stored(index, FIRST)

    np.testing.assert_array_equal(kept, unit_vector(1, DIMENSION).astype(np.float16))
