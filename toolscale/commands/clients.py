"""`toolscale import` and `connect`: the servers of MCP clients, and Toolscale in their place."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from shared.errors import ConfigInvalid
from shared.quoting import printable
from shared.server_ids import server_id
from shared.settings import Settings, load_settings
from shared.text.tokens import PROFILE
from shared.upstream.masking import masked, masked_servers
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import err, number_columns, print_json, print_lines, print_notes, print_table, thousands
from toolscale.mcp_clients.clients import (
    CLIENTS,
    Client,
    ClientFile,
    client_files,
    entry_for,
    file_to_connect,
    known_or_named,
    this_machine,
)
from toolscale.mcp_clients.connect import ConnectionPlan, connecting, disconnecting
from toolscale.mcp_clients.files import FILE_NAME, McpJson, config_path, dumped, read_mcp_json, write_with_backup
from toolscale.mcp_clients.find import FoundServers, find_servers
from toolscale.mcp_clients.merge import Became, Merged, MergeOutcome, OnConflict, merge

if TYPE_CHECKING:
    from toolscale.costs import CostReport

Show = Callable[..., None]
"""Prints lines."""

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Write a client's file without a question.")]

_BECAME: Mapping[Became, str] = {
    "added": "{outcome.name}: added",
    "renamed": "{outcome.name}: added, renamed from {outcome.server.server_id}",
    "replaced": "{outcome.name}: replaced",
    "there already": "{outcome.name}: there already",
    "kept out": "{outcome.name}: another server, or this one with more tools, has this name; "
    "use `--on-conflict rename` or `replace`",
}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class _Import:
    """The `mcp.json` before, the servers found, and the merged servers."""

    target: McpJson
    found: FoundServers
    merged: Merged

    @property
    def changes(self) -> bool:
        return self.merged.servers != self.target.servers


@dataclass(frozen=True, slots=True)
class _Move:
    """A client's change: all its servers before, and those that stay, both by their names in the `mcp.json`.

    `others` are servers of the client that are not in the `mcp.json`. `unlisted` have the reason why each could not be
    listed; they stay too.
    """

    plan: ConnectionPlan
    before: tuple[str, ...]
    staying: tuple[str, ...]
    others: tuple[str, ...]
    unlisted: Mapping[str, str]


def import_servers(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="A client's file; none: those of all clients.", show_default=False),
    ] = None,
    client: Annotated[
        list[Client] | None, typer.Option("--from", help="This client's files; repeat it for several.")
    ] = None,
    project: Annotated[
        Path, typer.Option(help="Directory with a project's files.", show_default="here")
    ] = Path(),
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="The mcp.json to import into; default: TOOLSCALE_MCP_CONFIG, or the data directory.",
            show_default=False,
        ),
    ] = None,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="Action if a different server has the same name.")
    ] = "keep",
    apply: Annotated[bool, typer.Option("--apply", help="Write the file; without it nothing is written.")] = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Let the clients start Toolscale in place of these servers.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:  # fmt: skip
    """Import the servers of Claude, Cursor, VS Code and other clients; without --apply it only shows the changes.

    With --connect it lists all servers, and shows the tokens before and after. The clients lose the servers that it
    could list, and start Toolscale instead. Exit code 1 means that a server stayed, since it could not be listed.
    """
    settings = load_settings(mcp_config=config, data_dir=data_dir)
    candidates = _candidates(files or [], client or [], project.absolute())
    target, found = read_mcp_json(config_path(settings)), find_servers(candidates, this_machine(), settings)
    imported = _Import(target, found, merge(target.servers, found.servers, on_conflict))
    writes = apply and imported.changes
    backup = target.write(imported.merged.servers) if writes else None
    if not as_json:
        _print_import(imported, candidates)
        if writes:
            _print_written(target, backup, settings, clients_start_it=connect)
    lists = connect and apply and imported.merged.servers
    report = _costs_of(settings.model_copy(update={"mcp_config": target.path})) if lists else None
    moves, problems = _moves(imported, settings, _unlisted(imported, report)) if connect else ([], [])
    show = print_notes if as_json else print_lines
    moved = [(move, _apply(move.plan, show, is_confirmed=yes, writes=apply)) for move in moves]
    for problem in problems:
        print_notes(printable(problem))
    if as_json:
        print_json(_as_object(imported, moved, report, backup, applied=writes))
    elif report:
        _print_savings([move for move, result in moved if result["written"]], report)
        _print_unlisted(moves, report, target)
    elif not apply and (imported.changes or moved):
        err.print("\nNothing was written; --apply does.")
    if any(move.unlisted for move in moves):
        raise typer.Exit(1)


def connect(
    client: Annotated[Client, typer.Argument(help="The client whose file to change.", show_default=False)],
    url: Annotated[
        str | None,
        typer.Option(help="Connect to a running service at this URL; default: the client starts Toolscale.",
                     show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove Toolscale from the file again.")] = False,
    yes: YesOption = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The mcp.json that Toolscale serves.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:  # fmt: skip
    """Add Toolscale to the configuration of a client, and keep a backup of the file.

    It shows the change and asks before it writes. The rest of the file stays as it is, with its comments.
    With --remove, servers that `import --connect` moved to Toolscale return from the backup.
    """
    settings = load_settings(mcp_config=config, data_dir=data_dir)
    if remove:
        plan = disconnecting(client, this_machine(), map(server_id, read_mcp_json(config_path(settings)).servers))
    else:
        plan = connecting(client, this_machine(), _own_entry(client, settings, url))
    written = _apply(plan, print_notes if as_json else print_lines, is_confirmed=yes)
    if as_json:
        print_json(written)


def _candidates(files: Sequence[Path], clients: Sequence[Client], project: Path) -> list[ClientFile]:
    """Return the files to read: the named ones, and those of these clients; of all clients if none is named."""
    named = [known_or_named(file.absolute(), this_machine(), project) for file in files]
    return named if files and not clients else [*named, *client_files(this_machine(), project, clients or Client)]


def _own_entry(client: Client, settings: Settings, url: str | None = None) -> dict[str, Any]:
    """Return the entry of the service at a URL, or of a process that the client starts."""
    from toolscale.client.service import mcp_address  # noqa: PLC0415  # loads the HTTP client
    from toolscale.stdio import stdio_command  # noqa: PLC0415

    return entry_for(client, stdio_command(settings), None if url is None else mcp_address(url))


def _apply(plan: ConnectionPlan, show: Show, *, is_confirmed: bool, writes: bool = True) -> dict[str, Any]:
    """Show a plan, write it if it is confirmed, and return the result as JSON."""
    path = printable(str(plan.path))
    backup, is_written = None, False
    if plan.before == plan.after:
        show(f"{path}: nothing to change.")
    else:
        show(*_difference(*plan.shown(), path))
        is_written = writes and (is_confirmed or typer.confirm(f"Write {path}?", err=True))
    if is_written:
        backup = write_with_backup(plan.path, plan.after)
        title = CLIENTS[plan.client].title
        print_notes(f"Written: {path}; restart {title} to load it.")
    if backup:
        print_notes(f"Backup: {printable(str(backup))}")
    return {
        "client": plan.client,
        "path": str(plan.path),
        "written": is_written,
        "backup": str(backup) if backup else None,
        "moved": list(plan.moved),
        "returned": list(plan.returned),
    }


def _unlisted(imported: _Import, report: CostReport | None) -> dict[str, str]:
    """Return the imported servers that could not be listed, with the reasons; none before an attempt."""
    if report is None:
        return {}
    listed = {server.server_id for server in report.servers if server.cost}
    # an entry that cannot be used is reported by its name
    reasons = {server_id(server.server_id): server.problem or "" for server in report.servers}
    names = {outcome.name for outcome in imported.merged.outcomes if outcome.became != "kept out"}
    return {name: reasons.get(name, "it was not listed") for name in names - listed}


def _moves(imported: _Import, settings: Settings, unlisted: Mapping[str, str]) -> tuple[list[_Move], list[str]]:
    """Return the change of each client of which the user's own files have servers, and the reasons against others."""
    by_client: dict[Client, list[MergeOutcome]] = {}
    for outcome in imported.merged.outcomes:
        if outcome.server.file.client and outcome.server.project is None:
            by_client.setdefault(outcome.server.file.client, []).append(outcome)
    moves, problems = list[_Move](), list[str]()
    for client, outcomes in by_client.items():
        try:
            moves.append(_move(client, outcomes, imported.found, settings, unlisted))
        except ConfigInvalid as error:
            problems.append(f"{CLIENTS[client].title} is not connected: {error}")
    return moves, problems


def _move(
    client: Client,
    outcomes: Sequence[MergeOutcome],
    found: FoundServers,
    settings: Settings,
    unlisted: Mapping[str, str],
) -> _Move:
    path = file_to_connect(client, this_machine())
    kept_out = {outcome.server.server_id for outcome in outcomes if outcome.became == "kept out"}
    in_file = {outcome.server.server_id for outcome in outcomes if outcome.server.file.path.resolve() == path}
    moved = in_file - kept_out - {outcome.server.server_id for outcome in outcomes if outcome.name in unlisted}
    stay = {outcome.name for outcome in outcomes if outcome.server.server_id not in moved | kept_out}
    skipped = (
        each.reason.partition(":")[0]
        for each in found.skipped
        if each.file.client is client and each.file.project is None and each.kind != "repeated"
    )
    return _Move(
        connecting(client, this_machine(), _own_entry(client, settings), moved),
        tuple(sorted({outcome.name for outcome in outcomes if outcome.became != "kept out"})),
        tuple(sorted(stay)),
        tuple(sorted(kept_out | {name for name in skipped if name != "toolscale"})),
        {name: unlisted[name] for name in sorted(stay & unlisted.keys())},
    )


def _costs_of(settings: Settings) -> CostReport:
    """List the servers of the `mcp.json` and return the costs of their tools."""
    from toolscale.commands.costs import report_of  # noqa: PLC0415  # loads both sides

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ends every server
    return report_of(settings)


def _print_import(imported: _Import, candidates: Sequence[ClientFile]) -> None:
    """Print the changed lines of the file, and a line for each server found and for each that cannot be imported."""
    if not imported.found.read:
        err.print("None of these files exists:", *(printable(str(file.path)) for file in candidates), sep="\n  ")
        err.print("`toolscale add` adds a server without a client.")
        return
    target, path = imported.target, printable(str(imported.target.path))
    before = dumped({target.key: masked_servers(target.servers, {})})
    after = dumped({target.key: masked_servers(imported.merged.servers, target.servers)})
    print_lines(*_difference(before, after, str(target.path)))
    if imported.changes:
        print_lines("")
    print_lines(*map(printable, _remarks(imported)))
    if not imported.changes:
        print_lines(f"{path}: nothing to change.")


def _remarks(imported: _Import) -> Iterator[str]:
    for outcome in imported.merged.outcomes:
        server = outcome.server
        project = server.project if server.project and server.project not in server.file.path.parents else None
        origin = f"{server.file.title}, {server.file.path}{f', for {project}' if project else ''}"
        known_as = outcome.became == "there already" and outcome.name != server.server_id
        also = f", found as {server.server_id}" if known_as else ""
        yield f"{_BECAME[outcome.became].format(outcome=outcome)}{also} ({origin})"
        if server.unset:
            yield f"  not set here, required where Toolscale runs: {', '.join(server.unset)}"
    for skipped in imported.found.skipped:
        means = "" if skipped.kind == "repeated" else "cannot be imported: "
        yield f"{means}{skipped.reason} ({skipped.file.title}, {skipped.file.path})"
    if switched_off := [each for each in imported.found.skipped if each.kind == "switched off"]:
        yield f"switched off: {len(switched_off)}"
    if ignored := sorted(frozenset[str]().union(*(server.without_effect for server in imported.found.servers))):
        yield f"without effect in Toolscale: {', '.join(ignored)}"


def _difference(before: str, after: str, path: str) -> Iterator[Text]:
    """Yield the changed lines of a file."""
    lines = unified_diff(before.splitlines(), after.splitlines(), path, f"{path}, changed", lineterm="")
    for number, line in enumerate(lines):
        yield Text(printable(line), style="bold" if number < 2 else _STYLES.get(line[:1], ""))  # noqa: PLR2004  # the names


def _print_written(target: McpJson, backup: Path | None, settings: Settings, *, clients_start_it: bool) -> None:
    print_notes(f"\nWritten: {printable(str(target.path))}")
    if backup:
        lost = "; only it still has the comments" if target.has_comments else ""
        print_notes(f"Backup: {printable(str(backup))}{lost}")
    if clients_start_it:
        return
    is_usual = target.path == (settings.data_dir / FILE_NAME).resolve()
    served = "" if is_usual else f" --config {printable(str(target.path))}"
    print_notes(f"Serve it: toolscale serve{served}")


def _print_savings(written: Sequence[_Move], report: CostReport) -> None:
    """Name the servers that clients keep, and print the costs before and after."""
    for move in written:
        if stays := (*(name for name in move.staying if name not in move.unlisted), *move.others):
            title = CLIENTS[move.plan.client].title
            print_notes(f"{title} keeps {printable(', '.join(stays))}.")
    titles = [(CLIENTS[move.plan.client].title, move) for move in written]
    rows = [
        (title, *map(thousands, _savings_of(move, report).values())) for title, move in (*titles, ("all servers", None))
    ]
    print_table(number_columns("client", "tools", "tokens before", "tokens after"), rows)


def _print_unlisted(moves: Sequence[_Move], report: CostReport, target: McpJson) -> None:
    """Name the servers with a problem, and those that stayed in their clients for it, with what to do."""
    staying = {name for move in moves for name in move.unlisted}
    for server in report.servers:
        if server.problem and server.server_id not in staying:
            counted = "" if server.cost else "not counted: "
            print_notes(f"{printable(server.server_id)}: {counted}{printable(server.problem)}")
    for move in moves:
        for name, reason in move.unlisted.items():
            print_notes(
                printable(f"{name} stays in {CLIENTS[move.plan.client].title}, since it was not listed: {reason}")
            )
    if staying:
        path = printable(str(target.path))
        print_notes(f"Sign in, or correct the entry in {path}; then the same command moves what can be listed.")


def _savings_of(move: _Move | None, report: CostReport) -> dict[str, int]:
    """Return the tools of a client before, and the tokens before and after; None stands for all servers."""
    costs = {server.server_id: server.cost for server in report.servers if server.cost}
    before = costs.keys() if move is None else costs.keys() & set(move.before)
    staying = set[str]() if move is None else costs.keys() & set(move.staying)

    def tokens(names: Iterable[str]) -> int:
        return sum(costs[name].tokens[PROFILE] for name in names)

    return {
        "tools": sum(costs[name].tools for name in before),
        "tokens_before": tokens(before),
        "tokens_after": report.own.tokens[PROFILE] + tokens(staying),
    }


def _as_object(
    imported: _Import,
    moved: Sequence[tuple[_Move, dict[str, Any]]],
    report: CostReport | None,
    backup: Path | None,
    *,
    applied: bool,
) -> dict[str, Any]:
    """Return the import as JSON; without secrets, and with clients only if they are connected."""
    found = {
        "target": str(imported.target.path),
        "applied": applied,
        "backup": str(backup) if backup else None,
        "read": [str(file.path) for file in imported.found.read],
        "servers": [
            {
                "name": outcome.name,
                "became": outcome.became.replace(" ", "_"),
                "found_as": outcome.server.server_id,
                "client": outcome.server.file.client,
                "path": str(outcome.server.file.path),
                "project": str(outcome.server.project) if outcome.server.project else None,
                "unset_variables": list(outcome.server.unset),
                "entry": masked(outcome.server.entry),
            }
            for outcome in imported.merged.outcomes
        ],
        "without_effect": sorted(frozenset[str]().union(*(each.without_effect for each in imported.found.servers))),
        "left_out": [
            {
                "reason": skipped.reason,
                "kind": skipped.kind.replace(" ", "_"),
                "client": skipped.file.client,
                "path": str(skipped.file.path),
            }
            for skipped in imported.found.skipped
        ],
    }
    if report is None:
        return found | ({"clients": [result for _, result in moved]} if moved else {})
    return found | {
        "clients": [result | _savings_of(move, report) | {"unlisted": dict(move.unlisted)} for move, result in moved],
        "total": _savings_of(None, report),
        "encoding": report.encoding,
    }
