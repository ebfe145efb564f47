from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigInvalid, ModelUnavailable
from shared.text import embedding
from shared.text.embedding import (
    BATCH_TOKENS,
    BUNDLED_DIMENSION,
    MAX_PASSAGE_TOKENS,
    FastEmbedder,
    batches,
    name_passage,
    text_passage,
)
from tests.support.builders import definition


@pytest.fixture(scope="module")
def embedder() -> FastEmbedder:
    return FastEmbedder()


def test_the_bundled_model_gives_unit_rows_of_its_dimension(embedder: FastEmbedder) -> None:
    vectors = embedder.passages(["list the files of a directory", "", "x" * 100_000, "a \ud800 lone surrogate"])

    assert vectors.shape == (4, BUNDLED_DIMENSION)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_texts_of_many_lengths_keep_their_vectors_in_any_order_and_company(embedder: FastEmbedder) -> None:
    texts = [" ".join(["tool", "file", "city"][(i * j) % 3] for j in range(i % 40)) for i in range(120)]
    alone = np.vstack([embedder.passages([text]) for text in texts])
    order = np.random.default_rng(0).permutation(len(texts))

    together = embedder.passages([texts[int(i)] for i in order])

    assert np.abs(together - alone[order]).max() < 1e-5


def test_a_passage_is_cut_after_its_first_tokens_and_a_query_is_not(embedder: FastEmbedder) -> None:
    start = "list files " * (MAX_PASSAGE_TOKENS // 2)

    passages = embedder.passages([start + "in Tokyo", start + "on the moon"])

    assert np.array_equal(passages[0], passages[1])
    assert not np.allclose(embedder.query(start + "in Tokyo"), embedder.query(start + "on the moon"))


@given(st.lists(st.integers(1, 70), max_size=60))
def test_batches_have_each_text_once_and_one_length_each(lengths: list[int]) -> None:
    found = list(batches(lengths))

    assert sorted(position for batch in found for position in batch) == list(range(len(lengths)))
    assert all(len({lengths[position] for position in batch}) == 1 for batch in found)
    assert all(sum(lengths[position] for position in batch) <= BATCH_TOKENS for batch in found)


def test_threads_that_come_first_at_the_same_time_load_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Mock(wraps=embedding.BundledModel)
    monkeypatch.setattr(embedding, "BundledModel", loads)
    embedder = FastEmbedder()
    assert embedder.passages([]).shape == (0, BUNDLED_DIMENSION)
    assert loads.call_count == 0

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(embedder.query, ["read", "write", "send", "list"]))

    assert loads.call_count == 1


def test_a_model_that_fastembed_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(ConfigInvalid, match="no model 'nobody/knows-it'"):
        _ = FastEmbedder("nobody/knows-it").dimension
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

    with pytest.raises(ModelUnavailable, match="tools-minilm") as first:
        embedder.query("anything")
    with pytest.raises(ModelUnavailable) as second:
        embedder.passages(["anything"])

    assert second.value is first.value
