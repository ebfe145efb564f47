"""`toolscale token`: bearer tokens of the query service's callers, and of producers of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from pydantic import ValidationError

from query.auth.tokens import TokenEntry, as_toml
from query.caller import USING, Permission
from shared.errors import ConfigInvalid
from shared.service.token_file import HolderT, digest, is_name, new_token
from shared.validation import first_problem
from toolscale.commands.help import command, group
from toolscale.commands.options import BudgetOption, JsonOption
from toolscale.console import err, print_json, print_lines

token_app = group("Bearer tokens of callers and of producers of events.", "toolscale token new agents --groups dev,ops")


@command(token_app, "new", "toolscale token new agents --groups dev,ops --read-only")
def new(
    name: Annotated[str, typer.Argument(help="The caller's name in logs: letters, digits, `_` and `-`.")],
    groups: Annotated[
        str | None, typer.Option(help="The groups whose tools it sees, separated by commas.", show_default=False)
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="It sees the tools of all groups.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="It may find tools but not call them.")] = False,
    toolset: Annotated[str | None, typer.Option(help="The toolset that it receives.", show_default=False)] = None,
    budget_tokens: BudgetOption = None,
    enforce_budget: Annotated[
        bool, typer.Option("--enforce-budget", help="Leave out tools above the budget, instead of a warning.")
    ] = False,
    manages_toolsets: Annotated[
        bool, typer.Option("--manages-toolsets", help="It may see, write and delete toolsets as well.")
    ] = False,
    operates: Annotated[
        bool, typer.Option("--operates", help="It may also record events, approve changes and back up; all groups.")
    ] = False,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a new token, which is not stored, and its entry for the file of TOOLSCALE_TOKENS_FILE."""
    _check_name(name)
    token = new_token()
    if not (all_groups or _parts(groups)):
        raise ConfigInvalid("name the tools that it sees: --groups a,b or --all-groups")
    if operates and (toolset or not all_groups):
        raise ConfigInvalid("--operates is for every server, so it needs --all-groups and no --toolset")
    permissions: set[Permission] = {"catalog:read"} if read_only else set(USING)
    if manages_toolsets:
        permissions.add("toolsets:write")
    if operates:
        permissions.add("operate")
    entry = _checked(
        TokenEntry,
        sha256=digest(token),
        groups=["*"] if all_groups else _parts(groups),
        permissions=frozenset(permissions),
        toolset=toolset,
        budget_tokens=budget_tokens,
        enforce_budget=enforce_budget,
        expires_at=datetime.now(UTC) + timedelta(days=days) if days else None,
    )
    _print(name, token, as_toml(name, entry), "TOOLSCALE_TOKENS_FILE", as_json=as_json)


@command(token_app, "producer", "toolscale token producer ci --id-prefixes ci/ --hosts '*.ci.lan' --groups ci")
def producer(
    name: Annotated[str, typer.Argument(help="The producer's name: letters, digits, `_` and `-`.")],
    id_prefixes: Annotated[str, typer.Option(help="Its servers' ids begin with one of these, separated by commas.")],
    hosts: Annotated[str, typer.Option(help="Hosts and networks of its servers, separated by commas.")],
    groups: Annotated[
        str | None, typer.Option(help="Groups that it may use, separated by commas.", show_default=False)
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="It may use all groups.")] = False,
    credentials: Annotated[
        str | None, typer.Option(help="Credentials that it may name, separated by commas.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a new token of a producer of events, which is not stored, and its table for TOOLSCALE_PRODUCERS_FILE."""
    from workers.events_api.producers import ProducerRights  # noqa: PLC0415  # loads the write side

    _check_name(name)
    token = new_token()
    rights = _checked(
        ProducerRights,
        sha256=digest(token),
        id_prefixes=_parts(id_prefixes),
        hosts=_parts(hosts),
        groups=["*"] if all_groups else _parts(groups),
        credentials=_parts(credentials),
    )
    _print(name, token, rights.table(name), "TOOLSCALE_PRODUCERS_FILE", as_json=as_json)


def _checked(holder: type[HolderT], **fields: object) -> HolderT:
    """Return the table of a holder.

    Raises:
        ConfigInvalid: a field is invalid, such as a group `a,*`.
    """
    try:
        return holder.model_validate(fields)
    except ValidationError as error:
        raise ConfigInvalid(first_problem(error)) from error


def _check_name(name: str) -> None:
    if not is_name(name):
        raise ConfigInvalid(f"expected a name of at most 64 letters, digits, `_` and `-`, got {name!r}")


def _print(name: str, token: str, table: str, setting: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "token": token, "entry": table})
        return
    err.print(f"The token of {name}; it cannot be shown again:")
    print_lines(token)
    err.print(f"\nFor the file of {setting}:\n")
    print_lines(table)


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
