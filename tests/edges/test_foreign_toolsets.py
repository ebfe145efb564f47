"""A toolset of which a caller sees no tool is for it as one that does not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from query.caller import USING, Caller
from shared.toolset import Toolset
from tests.toolsets.test_toolsets import answer, client_of

pytestmark = pytest.mark.anyio

FOREIGN = {
    "of another group": Toolset(name="ops", tools=("secret:read", "secret"), description="cAnArY", budget_tokens=777),
    "enforced": Toolset(name="ops", tools=("secret",), description="cAnArY", budget_tokens=777, enforce=True),
    "of servers that are gone": Toolset(name="ops", tools=("gone", "gone:a", "gone:b"), description="cAnArY"),
    "of other tools": Toolset(name="ops", tools=("time:gone", "git:gone"), budget_tokens=777),
    "empty": Toolset(name="ops", tools=(), description="cAnArY"),
}
EVE = Caller("eve", frozenset({"dev"}), permissions=USING)


async def shown_to(caller: Caller, *toolsets: Toolset, **asked: str) -> dict[str, Any]:
    async with client_of(caller, *toolsets) as client:
        return await answer(client, "get_active_toolset", **asked)


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_named_toolset_without_a_visible_tool_is_none(kind: str) -> None:
    assert await shown_to(EVE, FOREIGN[kind], name="ops") == await shown_to(EVE, name="ops")


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_toolset_that_a_path_chooses_is_none_too(kind: str) -> None:
    chooses = replace(EVE, toolset="ops")

    assert await shown_to(chooses, FOREIGN[kind]) == await shown_to(chooses)


@pytest.mark.parametrize("caller", [replace(EVE, groups=None), replace(EVE, permissions=USING | {"toolsets:write"})])
async def test_who_sees_all_or_writes_toolsets_sees_what_is_missing(caller: Caller) -> None:
    shown = await shown_to(caller, FOREIGN["of servers that are gone"], name="ops")

    assert shown["description"] == "cAnArY"


async def test_a_toolset_with_a_visible_tool_is_shown() -> None:
    shown = await shown_to(EVE, Toolset(name="ops", tools=("git:log", "secret:read"), description="ours"), name="ops")

    assert [tool["name"] for tool in shown["tools"]] == ["log"]
    assert shown["description"] == "ours"
