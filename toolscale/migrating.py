"""How far another model is that is to take over, told beside the servers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from workers.intents import open_intents

if TYPE_CHECKING:
    from shared.settings import Settings


def migration(settings: Settings) -> str | None:
    """Return in a sentence how far the coming model is, None when none is coming.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        progress, now = intents.migration(), intents.now()
    if progress is None:
        return None
    how_far = f"{progress.done} of {progress.servers} servers are done"
    age_s = max(0, round(now - progress.at))
    return f"{progress.model} takes over once every tool is embedded by it: {how_far}, {age_s} s ago."
