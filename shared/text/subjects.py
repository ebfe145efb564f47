"""Subjects: a fixed list of words for what servers are for, chosen by the model from the tools of a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared.text.embedding import ReferenceVectors

if TYPE_CHECKING:
    from shared.catalog import ToolVectors
    from shared.text.embedding import Embedder

SUBJECTS: Mapping[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Each subject with objects that its tools are about, as a list with commas."""

MOST_SUBJECTS = 3
# A subject of fewer tools of a server says little of it.
MIN_SHARE = 0.2


def subject_passages() -> list[str]:
    """Return a text for each subject, in their order."""
    return [f"{subject}: {objects}" for subject, objects in SUBJECTS.items()]


_passages = ReferenceVectors(subject_passages)


def subjects_of(tools: Sequence[ToolVectors], embedder: Embedder) -> tuple[str, ...]:
    """Return the subjects that are nearest to most of these tools, at most three; none without tools.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    import numpy as np  # noqa: PLC0415  # 0.1 s, which the start of a client's service does not need

    if not tools:
        return ()
    vectors = np.array([tool.name + tool.text for tool in tools])
    # not `@`: from twenty tools on, OpenBLAS would wake a thread for each core, and those spin for milliseconds
    cosines = np.einsum("td,sd->ts", vectors, _passages.of(embedder))
    nearest: list[int] = cosines.argmax(axis=1).tolist()
    subjects = list(SUBJECTS)
    votes = Counter(subjects[number] for number in nearest)
    best, *others = sorted(votes, key=lambda subject: (-votes[subject], subject))[:MOST_SUBJECTS]
    return (best, *(subject for subject in others if votes[subject] >= MIN_SHARE * len(tools)))
