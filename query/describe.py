"""Full definitions of tools whose names are known."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from query.answer import FoundTool, found
from query.catalogue import Catalogue
from query.locate import locate
from query.request import Name
from shared.catalog import Encoding, Scope
from shared.errors import ServerNotRunning, ToolNotFound
from shared.tokens import is_estimate


class DescribeRequest(BaseModel):
    """The tools that a caller wants to know in full."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    names: Name | Annotated[list[Name], Field(min_length=1, max_length=50)]
    """`server:tool`, or the tool's name where only one server has it."""
    encoding: Encoding | None = None
    """To count tokens in."""

    @property
    def distinct(self) -> list[str]:
        """Return every name once, in the order in which they were asked for."""
        return [self.names] if isinstance(self.names, str) else list(dict.fromkeys(self.names))


class NotDescribed(BaseModel):
    """A name without a tool, and why."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    reason: str
    candidates: list[str] | None = None
    """What may have been meant, as server:tool."""


class DescribeAnswer(BaseModel):
    """The tools that were asked for, in that order, and the names that stand for none."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tools: list[FoundTool]
    encoding: Encoding
    """What token_count is in."""
    estimated: bool | None = None
    """True: token_count is an estimate."""
    not_found: list[NotDescribed] | None = None

    def as_object(self) -> dict[str, Any]:
        """Return the answer as it is sent, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def describe_tools(request: DescribeRequest, allowed: Scope, catalogue: Catalogue) -> DescribeAnswer:
    """Return the definitions of the allowed tools of these names; what stands for none is said with its reason.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    catalogue = catalogue.pinned()
    encoding = request.encoding or catalogue.encoding
    described = [_describe(name, allowed, catalogue, encoding) for name in request.distinct]
    problems = [each for each in described if isinstance(each, NotDescribed)]
    return DescribeAnswer(
        tools=[each for each in described if isinstance(each, FoundTool)],
        encoding=encoding,
        estimated=is_estimate(encoding) or None,
        not_found=problems or None,
    )


def _describe(name: str, allowed: Scope, catalogue: Catalogue, encoding: Encoding) -> FoundTool | NotDescribed:
    try:
        tool = locate(name, allowed, catalogue)
    except ToolNotFound as error:
        return NotDescribed(name=name, reason=error.reason, candidates=list(error.candidates) or None)
    except ServerNotRunning as error:
        return NotDescribed(name=name, reason=str(error))
    record = catalogue.index.server(tool.server_id)
    return found(tool, None, record.stale_since if record else None, encoding)
