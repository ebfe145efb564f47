"""The ids of announced servers, for shell completion and for corrections of a misspelt id."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from difflib import get_close_matches

from shared.errors import ServerUnknown, ToolscaleError
from shared.intents.intents import open_intents
from shared.settings import Settings, load_settings


def announced(settings: Settings) -> list[str]:
    """Return the ids of all announced servers.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        return [intent.server_id for intent in intents.intents()]


def announced_if_known() -> list[str]:
    """Return the same for shell completion; empty if the store is missing or does not answer."""
    try:
        settings = load_settings()
        return announced(settings) if settings.data_dir.exists() or not settings.is_embedded else []
    except ToolscaleError:
        return []


def unknown(server: str, known: Iterable[str]) -> ServerUnknown:
    """Return the error for a server that was never announced; it names similar ids."""
    return ServerUnknown(server, tuple(get_close_matches(server, list(known))))
