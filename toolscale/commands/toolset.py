"""`toolscale toolset`: the toolsets of a running service, by its HTTP API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from shared.quoting import printable
from shared.settings import load_settings
from toolscale.commands.help import command, group
from toolscale.commands.options import BudgetOption, DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import out, print_json

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
    _print_toolset(_ask("PUT", f"/{quote(name, safe='')}", url, token, data_dir, toolset), as_json=as_json)


@command(toolset_app, "show", "toolscale toolset show dev")
def show(
    name: NameArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show a toolset: its entries, its budget and its purpose."""
    _print_toolset(_ask("GET", f"/{quote(name, safe='')}", url, token, data_dir), as_json=as_json)


@command(toolset_app, "list", "toolscale toolset list --json")
def list_toolsets(
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show all toolsets."""
    toolsets = _ask("GET", "", url, token, data_dir)["toolsets"]
    if as_json:
        print_json(toolsets)
        return
    table = Table("toolset", "entries", "budget", "purpose", box=None, header_style="bold")
    for toolset in toolsets:
        table.add_row(toolset["name"], str(len(toolset["tools"])), _budget(toolset), printable(toolset["description"]))
    out.print(table if toolsets else "There is no toolset.")


@command(toolset_app, "delete", "toolscale toolset delete dev")
def delete(
    name: NameArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Delete a toolset; callers whose tokens name it see nothing from then on."""
    _ask("DELETE", f"/{quote(name, safe='')}", url, token, data_dir)
    if as_json:
        print_json({"deleted": name})
    else:
        out.print(f"{printable(name)} is deleted.", highlight=False)


def _print_toolset(toolset: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(toolset)
        return
    for entry in toolset["tools"]:
        out.print(printable(entry), highlight=False, soft_wrap=True)
    if budget := _budget(toolset):
        out.print(f"Budget, in tokens: {budget}", highlight=False)
    if toolset["description"]:
        out.print(printable(toolset["description"]), highlight=False, soft_wrap=True)


def _budget(toolset: dict[str, Any]) -> str:
    return f"{toolset.get('budget_tokens', '')}{' enforced' if toolset['enforce'] else ''}"


def _ask(method: str, path: str, url: str | None, token: str | None, data_dir: Path | None, body: object = None) -> Any:
    """Return the JSON of the response; None for an empty response.

    Raises:
        ServiceUnreachable: it does not answer, or with a server error.
        ServiceRejected: it rejects the request; the message has the reason.
        InstanceMismatch: another service answers at the address of this catalogue's service.
    """
    from toolscale.client.instance import service_url  # noqa: PLC0415
    from toolscale.client.toolsets import request_toolsets  # noqa: PLC0415  # takes long to import

    return request_toolsets(method, path, url or service_url(load_settings(data_dir=data_dir)), token, body)
