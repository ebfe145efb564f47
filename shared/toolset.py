"""Toolsets: named subsets of the catalogue. No I/O here."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from shared.catalog import Selection, StoredDocument
from shared.server_ids import checked_server_id

# A name is a part of a URL's path, without escapes.
TOOLSET_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
MAX_ENTRIES = 1_000

ToolsetName = Annotated[str, StringConstraints(pattern=TOOLSET_NAME)]


def _checked_entry(entry: str) -> str:
    server, colon, tool = entry.partition(":")  # a server's id contains no colon
    if colon and not tool:
        raise ValueError("expected a tool after the colon")
    return f"{checked_server_id(server)}{colon}{tool}"


Entry = Annotated[str, StringConstraints(max_length=400), AfterValidator(_checked_entry)]


class Toolset(BaseModel):
    """A named subset of the catalogue, and a token budget for its definitions.

    `tools` are `server:tool`, or a server's id for all of its tools. The tools need not exist.
    `budget_tokens` only causes a warning, unless `enforce` is set: then tools beyond the budget are excluded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ToolsetName
    tools: Annotated[tuple[Entry, ...], Field(max_length=MAX_ENTRIES)]
    description: Annotated[str, Field(max_length=500)] = ""
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    enforce: bool = False

    @property
    def selection(self) -> Selection:
        """Return the selected tools and servers."""
        return Selection(
            servers=frozenset(entry for entry in self.tools if ":" not in entry),
            tools=frozenset(entry for entry in self.tools if ":" in entry),
        )


class StoredToolset(StoredDocument):
    """A toolset as it is stored; `Toolset` is also the body of a request, and rejects unknown fields."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def of(cls, toolset: Toolset) -> StoredToolset:
        """Return the document of a toolset."""
        return cls.model_validate(toolset.model_dump())

    @property
    def toolset(self) -> Toolset:
        """Return the toolset, without fields of a newer release.

        Raises:
            ValidationError: it is invalid.
        """
        return Toolset.model_validate(self.model_extra, extra="ignore")
