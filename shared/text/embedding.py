"""Vectors of tools and queries; the write side and the read side must use the same version.

The default model is the bundled one, so the first run needs no network, and no fastembed: this is the only module that
imports it. The bundled model is a tokenizer and an ONNX graph that returns unit vectors. The graph scales its
activations by constants, so a vector depends on its own text alone. It has no attention mask: texts share a batch only
if they have the same number of tokens.
"""

from __future__ import annotations

import importlib.resources
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakKeyDictionary

from shared.catalog import QueryVectors, ToolVectors
from shared.errors import ConfigInvalid, ModelUnavailable
from shared.service.process import return_freed_memory
from shared.text import BUNDLED_MODEL
from shared.text.bm25 import query_terms, tool_terms, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.catalog import ToolDefinition

BUNDLED_DIMENSION = 384
# The model has no positions beyond.
MAX_TOKENS = 512
# Recall of tools is the same with all 512 tokens; a seventh of the tools of public servers has more than 64.
MAX_PASSAGE_TOKENS = 64
# Tokens of one run: larger batches are no faster, and need more memory.
BATCH_TOKENS = 256
# Short texts gain nothing from a second ONNX Runtime thread, and cost twice the processor time.
THREADS = 1

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


class ReferenceVectors:
    """The vectors of fixed texts: an embedder embeds them once, on first use. Safe to call from several threads."""

    def __init__(self, passages: Callable[[], Sequence[str]]) -> None:
        self._passages = passages
        self._by_embedder: WeakKeyDictionary[Embedder, NDArray[np.float32]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, embedder: Embedder) -> NDArray[np.float32]:
        """Return the texts' vectors, shape (texts, dimension), unit rows.

        Raises:
            ModelUnavailable: the model cannot be loaded.
        """
        with self._lock:
            if embedder not in self._by_embedder:
                vectors = embedder.passages(self._passages())
                vectors.flags.writeable = False  # all callers share them
                self._by_embedder[embedder] = vectors
            return self._by_embedder[embedder]


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
        if self.model == BUNDLED_MODEL:
            return BUNDLED_DIMENSION
        from fastembed import TextEmbedding  # noqa: PLC0415  # 2 s to import

        try:
            return int(TextEmbedding.get_embedding_size(self.model))
        except ValueError as error:
            raise ConfigInvalid(f"embedding_model: fastembed has no model {self.model!r}") from error

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
            if self._loaded:
                return self._loaded
            if self._failure and time.monotonic() - self._failed_at_s < RELOAD_AFTER_S:
                raise self._failure
            try:
                self._loaded = _load(self.model)
            except Exception as error:  # fastembed, its hub and ONNX Runtime share no class of errors
                self._failure = ModelUnavailable(f"the embedding model {self.model} cannot be loaded: {error}")
                self._failed_at_s = time.monotonic()
                raise self._failure from error
            return self._loaded


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


def tool_vectors(tools: Sequence[ToolDefinition], declared_name: str, embedder: Embedder) -> list[ToolVectors]:
    """Return the vectors of a server's tools, in their order; equal texts are embedded once.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    passages = [(name_passage(tool, declared_name), text_passage(tool)) for tool in tools]
    distinct = list(dict.fromkeys(chain.from_iterable(passages)))
    vector_of = dict(zip(distinct, embedder.passages(distinct), strict=True))
    return [
        ToolVectors(vector_of[name], vector_of[text], tool_terms(tool, declared_name))
        for tool, (name, text) in zip(tools, passages, strict=True)
    ]


def query_vectors(text: str, embedder: Embedder, characters: int | None = None) -> QueryVectors:
    """Return a query's vectors; the model reads at most so many of its first characters, BM25 all.

    Raises:
        ModelUnavailable: the model cannot be loaded; `keyword_vectors` needs no model.
    """
    return QueryVectors(embedder.query(text[:characters]), query_terms(text))


def keyword_vectors(text: str) -> QueryVectors:
    """Return the vectors of a query without a model: its terms."""
    return QueryVectors(None, query_terms(text))


class BundledModel:
    """The model that ships with Toolscale. Safe to call from several threads."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415  # not needed to start a process

        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._session = _session(directory / "model.onnx")
        return_freed_memory()  # the file, as it was read

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), BUNDLED_DIMENSION), float32, unit rows; a text is cut after MAX_PASSAGE_TOKENS."""
        import numpy as np  # noqa: PLC0415

        tokens = [self._tokens(text) for text in texts]
        # with the closing one
        tokens = [
            ids if len(ids) <= MAX_PASSAGE_TOKENS else [*ids[: MAX_PASSAGE_TOKENS - 1], ids[-1]] for ids in tokens
        ]
        rows = np.empty((len(texts), BUNDLED_DIMENSION), dtype=np.float32)
        for batch in batches([len(ids) for ids in tokens]):
            rows[batch] = self._run([tokens[position] for position in batch])
        return rows

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (BUNDLED_DIMENSION,), float32, unit length; a text is cut after MAX_TOKENS."""
        vector: NDArray[np.float32] = self._run([self._tokens(text)])[0]
        return vector

    def _tokens(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def _run(self, tokens: list[list[int]]) -> NDArray[np.float32]:
        import numpy as np  # noqa: PLC0415

        rows: NDArray[np.float32] = self._session.run(None, {"input_ids": np.array(tokens, dtype=np.int64)})[0]
        return rows


def bundled_model() -> Path:
    """Return the directory of the model that ships with Toolscale."""
    return Path(str(importlib.resources.files("shared") / "assets" / "tools-minilm-l6-v2"))


def batches(lengths: Sequence[int]) -> Generator[list[int]]:
    """Yield each position once, in lists of equal lengths of at most BATCH_TOKENS in total."""
    for length, equal in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        positions, size = list(equal), max(1, BATCH_TOKENS // max(1, length))
        for start in range(0, len(positions), size):
            yield positions[start : start + size]


def _session(path: Path) -> Any:
    import onnxruntime  # noqa: PLC0415  # 0.1 s to import

    options = cast("Any", onnxruntime).SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = THREADS
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


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


def _clean(text: str) -> str:
    """Return the text without lone surrogates, which the tokenizer rejects; no model reads 20,000 characters."""
    return text[:20_000].encode("utf-8", "replace").decode("utf-8")


def _unit(row: NDArray[np.generic]) -> NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415  # as above

    vector = np.asarray(row, dtype=np.float32)
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector


def _load(model: str) -> _Model:
    return BundledModel(bundled_model()) if model == BUNDLED_MODEL else _FastembedModel(model)
