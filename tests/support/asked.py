"""A client's user and model, who answer what a server asks them."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)

KINDS = ("form", "url", "sampling", "roots")
"""What the tool `asks` of the callable server can ask for."""

ANSWERS: dict[str, Any] = {
    "form": {"action": "accept", "content": {"branch": "main"}},
    "url": {"action": "accept"},
    "sampling": {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"},
    "roots": {"roots": [{"uri": "file:///home/ann"}]},
}
"""The answers of a Person, as the server gets them."""


class Person:
    """The user and the model of a client, and what they were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def elicited(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        is_url = isinstance(params, ElicitRequestURLParams)
        return ElicitResult(action="accept", content=None if is_url else {"branch": "main"})

    async def sampled(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.asked.append("sampling")
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Paris"), model="m")

    async def listed(self, context: ClientRequestContext) -> ListRootsResult:
        self.asked.append("roots")
        return ListRootsResult(roots=[Root.model_validate({"uri": "file:///home/ann"})])

    def client(self, target: Any, mode: str) -> Client:
        """Return a client of this person, which can be asked everything."""
        return Client(
            target,
            mode=mode,
            elicitation_callback=self.elicited,
            sampling_callback=self.sampled,
            list_roots_callback=self.listed,
        )
