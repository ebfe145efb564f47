"""Scores of runs by `evaluate.py` of the data set, which is not part of this project."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.retrieval.data import ToolKey
from benchmarks.retrieval.results import Score


class Evaluation:
    """The evaluation script of a data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._script = _load(data / "evaluate.py")

    def score(self, queries: str, run: Mapping[str, Sequence[ToolKey]]) -> Score:
        """Return the means over the queries of a set and their 95 % intervals, in percent."""
        asked = self._script.load_jsonl(self._data / "queries" / f"{queries}.jsonl")
        mean: dict[str, Any] = self._script.score(asked, dict(run), ci=True)[0]
        return Score(
            recall_at_5=_percent(mean["recall@5"]),
            recall_at_8=_percent(mean["recall@8"]),
            recall_at_10=_percent(mean["recall@10"]),
            interval_at_5=_interval(mean["ci"]["recall@5"]),
            interval_at_10=_interval(mean["ci"]["recall@10"]),
        )

    def recalls(self, queries: str, run: Mapping[str, Sequence[ToolKey]], cut: int) -> list[float]:
        """Return the recall at this cut-off of each query that the run has."""
        asked = self._script.load_jsonl(self._data / "queries" / f"{queries}.jsonl")
        scores = (self._script.score_query(query, run[query["id"]]) for query in asked if query["id"] in run)
        return [score[f"recall@{cut}"] for score in scores]


def _load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("retrieval_evaluate", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _interval(bounds: tuple[float, float]) -> tuple[float, float]:
    return _percent(bounds[0]), _percent(bounds[1])


def _percent(share: float) -> float:
    return round(100 * share, 1)
