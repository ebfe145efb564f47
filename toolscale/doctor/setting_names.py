"""The names of all settings, and misspelt names in the environment."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import AliasChoices

from shared.settings import PREFIX, REMOVED, Settings

# Variables that other modules read: the service and the token of commands, and secrets by name.
_OF_COMMANDS = ("URL", "TOKEN")
_SECRETS = "CREDENTIAL_"
# Minimum similarity of a misspelt name to a setting, 0 to 1: LOGLEVEL has it, SERVICE_HOST has not.
_ALIKE = 0.8


def setting_names() -> set[str]:
    """Return the environment variables that are settings."""
    names: set[str] = set()
    for field, info in Settings.model_fields.items():
        alias = info.validation_alias
        names |= (
            {str(choice) for choice in alias.choices} if isinstance(alias, AliasChoices) else {PREFIX + field.upper()}
        )
    return names


def misspelt_settings(environment: Iterable[str]) -> dict[str, str | None]:
    """Return variables with our prefix that never were settings, each with the most similar setting."""
    known = {name.removeprefix(PREFIX): name for name in sorted(setting_names())}
    ours = (
        name.removeprefix(PREFIX) for name in sorted(environment) if name.startswith(PREFIX) and name not in REMOVED
    )
    unknown = [
        name for name in ours if name not in known and name not in _OF_COMMANDS and not name.startswith(_SECRETS)
    ]
    near = {name: get_close_matches(name, known, n=1, cutoff=_ALIKE) for name in unknown}
    return {PREFIX + name: known[meant[0]] if meant else None for name, meant in near.items()}
