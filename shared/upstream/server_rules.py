"""The options of servers without an entry in the `mcp.json`: those of events, labels and Kubernetes.

The operator's policy file has a table for some of them; the first whose conditions hold decides.

    [[servers]]
    servers = ["mail-*"]
    labels = { team = "sales" }
    excludeTools = ["delete_*"]

An entry of the `mcp.json` decides alone for its server: it and the rules are never merged.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import ConfigInvalid
from shared.service.files import WatchedFile
from shared.upstream.mcp_json import ConfigFile
from shared.upstream.options import OptionKeys, ServerOptions, Text
from shared.validation import first_problem

if TYPE_CHECKING:
    from shared.settings import Settings

ReadOptions = Callable[[str, Mapping[str, str]], ServerOptions]
"""Returns the options of a server with these labels, as they are now. Safe to call from any thread."""


class ServerRule(OptionKeys):
    """One table `[[servers]]`; an absent condition always holds. Ids and values of labels are shell patterns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    labels: Annotated[dict[Text, Text], Field(min_length=1)] | None = None
    stateful: bool = False

    def covers(self, server_id: str, labels: Mapping[str, str]) -> bool:
        """Return whether the conditions hold: one of the ids, and all labels."""
        return (self.servers is None or any(fnmatchcase(server_id, pattern) for pattern in self.servers)) and all(
            name in labels and fnmatchcase(labels[name], pattern) for name, pattern in (self.labels or {}).items()
        )


class PolicyTables(BaseModel):
    """The content of the policy file; the query service reads `rules`, those of calls, and `scripts`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: tuple[ServerRule, ...] = ()
    rules: Any = ()
    scripts: Any = ()


PolicyT = TypeVar("PolicyT", bound=PolicyTables)


def read_policy_file(path: Path, tables: type[PolicyT]) -> PolicyT:
    """Return the tables of the file.

    Raises:
        ConfigInvalid: the file is unreadable, is not TOML, or has an invalid table.
    """
    try:
        return tables.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigInvalid(f"{path}: {first_problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"{path}: expected TOML in UTF-8: {error}") from error


def options_reader(settings: Settings, environ: Mapping[str, str]) -> ReadOptions:
    """Return a function that reads both files again after a change.

    Raises:
        ConfigInvalid: the policy file is invalid.
    """
    entry_options = ConfigFile(settings.mcp_config, environ).options if settings.mcp_config else _no_entry
    policy = WatchedFile(settings.policy_file, _read_tables) if settings.policy_file else None

    def read(server_id: str, labels: Mapping[str, str]) -> ServerOptions:
        if (found := entry_options(server_id)) is not None:
            return found
        return rule_options(policy.read().servers if policy else (), server_id, labels)

    return read


def no_options(server_id: str, labels: Mapping[str, str]) -> ServerOptions:  # noqa: ARG001  # as ReadOptions
    """Return the options of a server that the operator does not mention."""
    return ServerOptions()


def rule_options(rules: Sequence[ServerRule], server_id: str, labels: Mapping[str, str]) -> ServerOptions:
    """Return the options of the first rule for this server; without one, the default options."""
    for rule in rules:
        if rule.covers(server_id, labels):
            return rule.options(is_stateful=rule.stateful)
    return ServerOptions()


def _no_entry(server_id: str) -> ServerOptions | None:  # noqa: ARG001  # as of a file without entries
    return None


def _read_tables(path: Path) -> PolicyTables:
    return read_policy_file(path, PolicyTables)
