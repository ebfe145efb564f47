"""The write path's collaborators with a stopwatch on each, and how much passed through them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sized
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar, cast

from shared.index.tools import ToolIndex
from shared.intents.intents import Intents
from shared.text.embedding import Embedder
from workers.dependencies import Dependencies

P = ParamSpec("P")
T = TypeVar("T")

Stage = Literal["intent", "list", "compare", "count", "embed", "write"]
STAGES: tuple[Stage, ...] = ("intent", "list", "compare", "count", "embed", "write")

INTENT_STAGES: Mapping[str, Stage] = dict.fromkeys(("record", "begin", "commit", "next_revision"), "intent")
INDEX_STAGES: Mapping[str, Stage] = {
    "tool_states": "compare",
    "server": "compare",
    "features_by_digest": "compare",
    "upsert": "write",
    "delete": "write",
    "set_status_and_groups": "write",
    "put_server": "write",
    "token_sum": "write",  # taken for the server's record
    "uncounted": "write",
}


class Stages:
    """Seconds by stage, and items: texts counted (once per encoding), texts embedded, tools written or removed.

    Calls of several threads are added up, so that the seconds may be more than the clock shows.
    """

    def __init__(self) -> None:
        self.seconds: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self.items: dict[Stage, int] = dict.fromkeys(STAGES, 0)
        self._adding = threading.Lock()

    def around(self, stage: Stage, function: Callable[P, T], items: Callable[P, int]) -> Callable[P, T]:
        """Return the same function, timed."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                with self._adding:
                    self.seconds[stage] += time.perf_counter() - started
                    self.items[stage] += items(*args, **kwargs)

        return timed


def timed_dependencies(deps: Dependencies, stages: Stages) -> Dependencies:
    """Return the same collaborators with every call noted in `stages`."""
    return replace(
        deps,
        intents=cast("Intents", Timed(deps.intents, stages, INTENT_STAGES)),
        list_server=stages.around("list", deps.list_server, lambda _intent: 1),
        counters={
            encoding: stages.around("count", count, lambda _text: 1) for encoding, count in deps.counters.items()
        },
        embedder=cast("Embedder", Timed(deps.embedder, stages, {"passages": "embed"})),
        index=cast("ToolIndex", Timed(deps.index, stages, INDEX_STAGES)),
    )


class Timed:
    """Stands in for an object, with a stopwatch on some of its methods."""

    def __init__(self, inner: object, stages: Stages, stage_of: Mapping[str, Stage]) -> None:
        self._inner = inner
        self._stages = stages
        self._stage_of = stage_of

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        stage = self._stage_of.get(name)
        return attribute if stage is None else self._stages.around(stage, attribute, _passed[name])


def _none(*_: object, **__: object) -> int:
    return 0


def _size_of_last(*args: object) -> int:
    return len(cast("Sized", args[-1]))


# how many items a call's arguments hold
_passed: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys((*INTENT_STAGES, *INDEX_STAGES), _none),
    **dict.fromkeys(("passages", "upsert", "delete"), _size_of_last),
}
