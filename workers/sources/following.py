"""Make the catalogue follow the operator's file: it says what should run, not what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shared.events import ServerChanged, ServerDown, ServerEvent, ServerRef
from workers.intents.contract import Intent, IntentStore
from workers.sources.mcp_json import SOURCE, Config


def follow(config: Config, intents: IntentStore, emit: Callable[[ServerEvent], Intent]) -> list[Intent]:
    """Announce every server of the file, and look again at every other that should be running.

    The file is the truth for what came from it: a server that it no longer names, or disables, is taken down.
    One that it names and that cannot be used now, for a variable that is not set say, is left as it is.
    Safe to repeat, from several workers too: an event only says "look".
    """
    announced = [emit(event) for event in config.events()]
    named = config.named | {intent.server_id for intent in announced}
    others = [intent for intent in intents.intents() if intent.server_id not in named]
    return announced + [emit(event) for event in _follow_ups(others)]


def _follow_ups(others: Iterable[Intent]) -> Iterator[ServerEvent]:
    for intent in others:
        if intent.status == "running":
            ref = ServerRef(server_id=intent.server_id)
            yield ServerDown(source=SOURCE, data=ref) if intent.source == SOURCE else ServerChanged(data=ref)
