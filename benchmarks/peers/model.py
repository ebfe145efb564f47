"""The bundled model for every system, so that they differ in all but that; its time is taken apart."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.vectors import KeptEmbedder
from shared.text.embedding import FastEmbedder


class TimedEmbedder:
    """The bundled model with a stopwatch. Vectors of tools are kept in a file; each query is asked once."""

    def __init__(self, kept: Path) -> None:
        self._model = FastEmbedder()
        self._kept = KeptEmbedder(kept, self._model)
        self._spent_s = 0.0
        self.model = self._model.model
        self.dimension = self._model.dimension

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), dimension), float32, unit rows."""
        with self._watched():
            return self._kept.passages(texts)

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (dimension,), float32, unit length."""
        with self._watched():
            return self._model.query(text)

    def lap_s(self) -> float:
        """Return the seconds spent in the model since the last lap."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def keep(self) -> None:
        """Write the vectors of tools to their file."""
        self._kept.keep()

    @contextmanager
    def _watched(self) -> Generator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - started
