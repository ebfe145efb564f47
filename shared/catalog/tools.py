"""Tools as the index stores, counts and finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.catalog.definitions import Encoding, Form, ToolDefinition, point_id
from shared.catalog.servers import Status

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class IndexedTool:
    """A tool in the index.

    `token_counts` counts the wire form, `model_counts` the model form. Both lack an encoding whose count failed.
    The heuristic has one estimate for both forms.
    `changed_since` is the ISO date of a change that no operator has accepted yet.
    """

    server_id: str
    definition: ToolDefinition
    digest: str
    token_counts: Mapping[Encoding, int]
    groups: frozenset[str] = frozenset()
    status: Status = "running"
    model_counts: Mapping[Encoding, int] = field(default_factory=dict["Encoding", int])
    changed_since: str | None = None

    def counts(self, form: Form) -> Mapping[Encoding, int]:
        """Return the counts of this form."""
        return self.model_counts if form == "model" else self.token_counts

    @property
    def qualified_name(self) -> str:
        """Return `server:tool`, the name for agents and people."""
        return f"{self.server_id}:{self.definition.name}"

    @property
    def definition_id(self) -> str:
        """Return an id that equal definitions share: the digest, or the point's id while the digest is cleared."""
        return self.digest or point_id(self.server_id, self.definition.name)

    @property
    def definition_name(self) -> str:
        """Return `tool@digest`, the name of the definition on any server, with the first 8 digits of its digest."""
        return f"{self.definition.name}@{self.digest[:8]}"


@dataclass(frozen=True, slots=True)
class ToolName:
    """A tool's server, name and digest; equal digests are equal definitions."""

    server_id: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class ToolPage:
    """A page of tools in a stable order; `next_after` is the last point id, None on the last page."""

    tools: Sequence[IndexedTool]
    next_after: str | None = None


@dataclass(frozen=True, slots=True)
class TokenSum:
    """The tokens of all counted tools in a scope, and how many tools could not be counted."""

    tokens: int
    counted: int
    uncounted: int

    @property
    def tools(self) -> int:
        """Return the number of tools, counted or not."""
        return self.counted + self.uncounted


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of hashed terms: `indices` are distinct, ascending and of 32 bits; `values` has a weight for each."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ToolVectors:
    """The vectors of a tool. The dense vectors are float32, unit length, of the collection's dimension.

    `name` is embedded from server and tool name, `text` from name, description and parameter names;
    `terms` are the tool's side of BM25.
    """

    name: NDArray[np.float32]
    text: NDArray[np.float32]
    terms: SparseVector


@dataclass(frozen=True, slots=True)
class ToolFeatures:
    """Token counts and vectors of a definition. Equal digests have equal vectors, on any server.

    `token_counts` and `model_counts` count the forms of the definition `wire`. Both lack an encoding whose count
    failed, and the heuristic, which also reads the server's id.
    """

    token_counts: Mapping[Encoding, int]
    model_counts: Mapping[Encoding, int]
    vectors: ToolVectors
    wire: str


@dataclass(frozen=True, slots=True)
class EmbeddedTool:
    """A tool ready to be written."""

    tool: IndexedTool
    vectors: ToolVectors


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """The vectors of a query. `dense` is float32, unit length; None searches by terms only.

    Without terms, `dense` decides alone.
    """

    dense: NDArray[np.float32] | None
    terms: SparseVector = SparseVector((), ())


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best tools of one query in three lists of at most `depth` scores by point id, best first.

    `name` and `text` are cosine similarities to the two dense vectors, `terms` are BM25 scores, all above 0.
    A list shorter than `depth` holds every matching tool of the scope.
    """

    depth: int
    name: Mapping[str, float]
    text: Mapping[str, float]
    terms: Mapping[str, float]

    @property
    def points(self) -> Set[str]:
        """Return the ids of all candidates."""
        return self.name.keys() | self.text.keys() | self.terms.keys()
