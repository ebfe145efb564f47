"""Run the bundled model: a tokenizer and an ONNX graph that returns unit vectors.

The graph scales its activations by constants, so a vector depends on its own text alone. It has no attention mask:
texts share a batch only if they have the same number of tokens.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Generator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shared.memory import return_freed_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIMENSION = 384
# The model has no positions beyond.
MAX_TOKENS = 512
# Recall of tools is the same with all 512 tokens; a seventh of the tools of public servers has more than 64.
MAX_PASSAGE_TOKENS = 64
# Tokens of one run: larger batches are no faster, and need more memory.
BATCH_TOKENS = 256
# Short texts gain nothing from a second ONNX Runtime thread, and cost twice the processor time.
THREADS = 1


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
        """Return shape (len(texts), DIMENSION), float32, unit rows; a text is cut after MAX_PASSAGE_TOKENS."""
        import numpy as np  # noqa: PLC0415

        tokens = [_cut(self._tokens(text)) for text in texts]
        rows = np.empty((len(texts), DIMENSION), dtype=np.float32)
        for batch in batches([len(ids) for ids in tokens]):
            rows[batch] = self._run([tokens[position] for position in batch])
        return rows

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (DIMENSION,), float32, unit length; a text is cut after MAX_TOKENS."""
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


def _cut(tokens: list[int]) -> list[int]:
    """Return at most MAX_PASSAGE_TOKENS tokens, with the closing one."""
    return tokens if len(tokens) <= MAX_PASSAGE_TOKENS else [*tokens[: MAX_PASSAGE_TOKENS - 1], tokens[-1]]


def _session(path: Path) -> Any:
    import onnxruntime  # noqa: PLC0415  # 0.1 s to import

    options = cast("Any", onnxruntime).SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = THREADS
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
