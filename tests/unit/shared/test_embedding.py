from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from shared.errors import ConfigInvalid, ModelUnavailable
from shared.text import embedding
from shared.text.embedding import BUNDLED_DIMENSION, FastEmbedder, name_passage, text_passage
from tests.support.builders import definition


@pytest.fixture(scope="module")
def embedder() -> FastEmbedder:
    return FastEmbedder()


def test_the_bundled_model_gives_unit_rows_of_its_dimension(embedder: FastEmbedder) -> None:
    vectors = embedder.passages(["list the files of a directory", "", "x" * 100_000, "a \ud800 lone surrogate"])

    assert vectors.shape == (4, BUNDLED_DIMENSION)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_a_texts_vector_does_not_depend_on_the_texts_beside_it(embedder: FastEmbedder) -> None:
    texts = ["a", "a much longer text about reading files", "b c"]

    together = embedder.passages(texts)
    alone = np.vstack([embedder.passages([text]) for text in texts])

    assert np.array_equal(together, alone)


def test_a_query_is_closest_to_what_it_is_about(embedder: FastEmbedder) -> None:
    vectors = embedder.passages(["read a file from disk", "send an e-mail", "what time is it in a city"])

    assert int(np.argmax(vectors @ embedder.query("current time in Tokyo"))) == 2


def test_nothing_to_embed_gives_no_rows_and_loads_no_model() -> None:
    embedder = FastEmbedder()

    assert embedder.passages([]).shape == (0, BUNDLED_DIMENSION)
    assert not embedder.is_loaded


def test_threads_that_come_first_at_the_same_time_share_one_model() -> None:
    embedder = FastEmbedder()
    rows: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []
    threads = [threading.Thread(target=lambda: rows.append(embedder.query("hello"))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(rows) == 4
    assert all(np.array_equal(rows[0], row) for row in rows)


def test_a_model_that_fastembed_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(ConfigInvalid, match="no model 'nobody/knows-it'"):
        _ = FastEmbedder("nobody/knows-it").dimension


def test_any_model_of_fastembed_is_known_by_its_dimension() -> None:
    assert FastEmbedder("BAAI/bge-small-en-v1.5").dimension == 384


def test_a_tool_is_embedded_by_its_names_and_by_what_it_says_of_itself() -> None:
    tool = definition("read_file", "Read a file.", filePath={}, max_bytes={})

    assert name_passage(tool, "mcp-files") == "mcp files: read file"
    assert text_passage(tool) == "read file: Read a file. Parameters: file Path max bytes"


def test_a_model_that_cannot_be_loaded_is_not_tried_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "bundled_model", lambda: tmp_path / "missing")
    embedder = FastEmbedder()

    with pytest.raises(ModelUnavailable, match="all-MiniLM") as first:
        embedder.query("anything")
    with pytest.raises(ModelUnavailable) as second:
        embedder.passages(["anything"])

    assert second.value is first.value
