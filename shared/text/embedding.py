"""Embed texts; the only module that imports fastembed.

The default is the bundled model, so the first run needs no network, and no fastembed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from shared.errors import ConfigInvalid, ModelUnavailable
from shared.text import BUNDLED_MODEL
from shared.text.bundled import DIMENSION, THREADS, BundledModel, bundled_model
from shared.text.terms import words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.catalog import ToolDefinition

BUNDLED_DIMENSION = DIMENSION

# One text at a time: many models of fastembed scale their activations over the whole batch, so a text's vector would
# depend on the other texts.
BATCH_SIZE = 1
QUERY_CACHE_SIZE = 1024
# Seconds until a failed load is retried: a failing download may itself take so long.
RELOAD_AFTER_S = 60.0


class Embedder(Protocol):
    """A model for the write side and the read side. Safe to call from several threads.

    `passages` and `query` raise ModelUnavailable if the model cannot be loaded.
    """

    @property
    def model(self) -> str:
        """Return the model's name, part of the collection's name."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of each vector."""
        ...

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), dimension), float32, unit rows."""
        ...

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (dimension,), float32, unit length."""
        ...


class _Model(Protocol):
    """A loaded model; rows may have any length."""

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]: ...

    def query(self, text: str) -> NDArray[np.float32]: ...


class FastEmbedder:
    """An embedder that loads its model on first use, after any fork."""

    def __init__(self, model: str = BUNDLED_MODEL) -> None:
        self.model = model
        self._loaded: _Model | None = None
        self._loading = threading.Lock()
        self._failure: ModelUnavailable | None = None
        self._failed_at_s = -math.inf
        self._cached_query = lru_cache(QUERY_CACHE_SIZE)(self._embed_query)

    @property
    def dimension(self) -> int:
        """Return the length of each vector, without loading the model."""
        return BUNDLED_DIMENSION if self.model == BUNDLED_MODEL else _dimension_of(self.model)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), dimension), float32, unit rows; a text's row does not depend on the others."""
        import numpy as np  # noqa: PLC0415  # 0.1 s, which the start of a client's service does not need

        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return self._model().passages([_clean(text) for text in texts])

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (dimension,), float32, unit length; the last thousand queries are cached."""
        return self._cached_query(text)

    def _embed_query(self, text: str) -> NDArray[np.float32]:
        vector = self._model().query(_clean(text))
        vector.flags.writeable = False  # the cache shares it
        return vector

    def _model(self) -> _Model:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load_or_recall()
            return self._loaded

    def _load_or_recall(self) -> _Model:
        if self._failure and time.monotonic() - self._failed_at_s < RELOAD_AFTER_S:
            raise self._failure
        try:
            return _load(self.model)
        except Exception as error:  # fastembed, its hub and ONNX Runtime share no class of errors
            self._failure = ModelUnavailable(f"the embedding model {self.model} cannot be loaded: {error}")
            self._failed_at_s = time.monotonic()
            raise self._failure from error


class _FastembedModel:
    """A model of fastembed, with unit rows."""

    def __init__(self, model: str) -> None:
        from fastembed import TextEmbedding  # noqa: PLC0415  # 2 s to import

        self._model = TextEmbedding(model, threads=THREADS)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np  # noqa: PLC0415

        return np.vstack([_unit(row) for row in self._model.passage_embed(list(texts), batch_size=BATCH_SIZE)])

    def query(self, text: str) -> NDArray[np.float32]:
        return _unit(next(iter(self._model.query_embed(text))))


def known_models() -> list[str]:
    """Return the names of all supported models."""
    from fastembed import TextEmbedding  # noqa: PLC0415  # 2 s to import

    return [BUNDLED_MODEL, *(str(model["model"]) for model in TextEmbedding.list_supported_models())]


def name_passage(tool: ToolDefinition, declared_name: str) -> str:
    """Return the short text of a tool: the words of the server's and the tool's name."""
    return f"{words(declared_name)}: {words(tool.name)}"


def text_passage(tool: ToolDefinition) -> str:
    """Return the long text of a tool: name, description, parameter names.

    The server's texts would only make its tools similar, and parameter descriptions did not improve recall.
    """
    parameters = " ".join(words(name) for name in tool.parameters)
    named = f"{words(tool.name)}: {tool.description}"
    return f"{named} Parameters: {parameters}" if parameters else named


def _clean(text: str) -> str:
    """Return the text without lone surrogates, which the tokenizer rejects; no model reads 20,000 characters."""
    return text[:20_000].encode("utf-8", "replace").decode("utf-8")


def _unit(row: NDArray[np.generic]) -> NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415  # as above

    vector = np.asarray(row, dtype=np.float32)
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector


def _dimension_of(model: str) -> int:
    from fastembed import TextEmbedding  # noqa: PLC0415  # 2 s to import

    try:
        return int(TextEmbedding.get_embedding_size(model))
    except ValueError as error:
        raise ConfigInvalid(f"embedding_model: fastembed has no model {model!r}") from error


def _load(model: str) -> _Model:
    return BundledModel(bundled_model()) if model == BUNDLED_MODEL else _FastembedModel(model)
