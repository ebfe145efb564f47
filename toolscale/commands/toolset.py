"""`toolscale toolset`: the toolsets of a service."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from shared.quoting import printable
from toolscale.client.service import open_service
from toolscale.commands.help import command, group
from toolscale.commands.options import BudgetOption, DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import Column, print_json, print_lines, print_table

toolset_app = group(
    "Named subsets of the catalogue, kept by a running service.",
    "toolscale toolset create dev git time:get_current_time",
)

NameArgument = Annotated[str, typer.Argument(help="The toolset: letters, digits, `_` and `-`.")]


@command(toolset_app, "create", "toolscale toolset create dev git time:get_current_time --budget-tokens 3000 --enforce")
def create(
    name: NameArgument,
    tools: Annotated[list[str], typer.Argument(help="`server:tool`, or a server for all of its tools.")],
    description: Annotated[str, typer.Option(help="Its purpose.")] = "",
    budget_tokens: BudgetOption = None,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Leave out tools above the budget, the least called first.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write a toolset, replacing the one of this name."""
    toolset: dict[str, Any] = {"name": name, "tools": tools, "description": description, "enforce": enforce}
    toolset |= {"budget_tokens": budget_tokens} if budget_tokens else {}
    with open_service(url, token, data_dir) as service:
        _print_toolset(service.put(_path(name), toolset), as_json=as_json)


@command(toolset_app, "show", "toolscale toolset show dev")
def show(
    name: NameArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show a toolset: its entries, its budget and its purpose."""
    with open_service(url, token, data_dir) as service:
        _print_toolset(service.get(_path(name)), as_json=as_json)


@command(toolset_app, "list", "toolscale toolset list --json")
def list_toolsets(
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show all toolsets."""
    with open_service(url, token, data_dir) as service:
        toolsets = service.get("/toolsets")["toolsets"]
    if as_json:
        print_json(toolsets)
        return
    rows = [
        (toolset["name"], str(len(toolset["tools"])), _budget(toolset), printable(toolset["description"]))
        for toolset in toolsets
    ]
    if rows:
        print_table(tuple(map(Column, ("toolset", "entries", "budget", "purpose"))), rows)
    else:
        print_lines("There is no toolset. `toolscale toolset create NAME SERVER` writes one.")


@command(toolset_app, "delete", "toolscale toolset delete dev")
def delete(
    name: NameArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Delete a toolset; callers whose tokens name it see nothing from then on."""
    with open_service(url, token, data_dir) as service:
        service.delete(_path(name))
    if as_json:
        print_json({"deleted": name})
    else:
        print_lines(f"{printable(name)} is deleted.")


def _print_toolset(toolset: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(toolset)
        return
    print_lines(*map(printable, toolset["tools"]))
    if budget := _budget(toolset):
        print_lines(f"Budget, in tokens: {budget}")
    if toolset["description"]:
        print_lines(printable(toolset["description"]))


def _path(name: str) -> str:
    return f"/toolsets/{quote(name, safe='')}"


def _budget(toolset: dict[str, Any]) -> str:
    return f"{toolset.get('budget_tokens', '')}{' enforced' if toolset['enforce'] else ''}"
