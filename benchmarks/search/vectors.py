"""Vectors of texts kept in a file, so that a corpus is embedded once and not at every run."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.text.embedding import Embedder


class KeptEmbedder:
    """An embedder that remembers what it embedded, in a file once `keep` is called. For one thread.

    The file holds vectors by the hash of their text and no text.
    """

    def __init__(self, file: Path | None, embedder: Embedder) -> None:
        """Load the vectors of the file; None: cache for this run only."""
        self.model = embedder.model
        self.dimension = embedder.dimension
        self._file = file
        self._embedder = embedder
        self._rows = _read(file)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), dimension), float32, unit rows."""
        hashes = [sha256(text.encode("utf-8", "replace")).hexdigest() for text in texts]
        new = {digest: text for digest, text in zip(hashes, texts, strict=True) if digest not in self._rows}
        self._rows.update(zip(new, self._embedder.passages(list(new.values())), strict=True))
        return np.array([self._rows[digest] for digest in hashes], dtype=np.float32).reshape(-1, self.dimension)

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (dimension,), float32, unit length; the embedder remembers those."""
        return self._embedder.query(text)

    def keep(self) -> None:
        """Write the file, if there is to be one."""
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        rows = np.array(list(self._rows.values()), dtype=np.float32)
        with self._file.open("wb") as file:
            np.savez(file, hashes=np.array(list(self._rows)), rows=rows)


def _read(file: Path | None) -> dict[str, NDArray[np.float32]]:
    if file is None or not file.exists():
        return {}
    with np.load(file) as kept:
        return dict(zip(kept["hashes"].tolist(), kept["rows"], strict=True))
