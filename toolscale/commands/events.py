"""`toolscale emit`, `resync` and `dead-letters`: events of servers, recorded durably."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.catalog import Transport
from shared.errors import Permanent, ServerUnknown
from shared.quoting import printable
from toolscale.client.service import Service, open_operations
from toolscale.commands.help import command, group
from toolscale.commands.options import (
    DataDirOption,
    JsonOption,
    ServerArgument,
    TokenOption,
    UrlOption,
    complete_server,
    key_and_value,
)
from toolscale.console import FIRST_SERVERS, Column, err, print_json, print_lines, print_notes, print_table

if TYPE_CHECKING:
    from query.operations import Operations
    from shared.intents.intent import Intent

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the reconciliation; exit code 1 if it fails.")]

Object = dict[str, Any]

emit_app = group(
    "Report that a server started, stopped or changed.", "toolscale emit up docs --url http://127.0.0.1:9000/mcp --wait"
)


@command(emit_app, "up", "toolscale emit up docs --url http://127.0.0.1:9000/mcp --wait")
def up(
    server: ServerArgument,
    url: Annotated[str | None, typer.Option(help="Its URL; none for stdio.", show_default=False)] = None,
    transport: Annotated[Transport, typer.Option(help="Its MCP transport.")] = "streamable-http",
    group: Annotated[list[str] | None, typer.Option(help="A group that may see it; repeat it for several.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label of it; repeat it for several.")
    ] = None,
    credential_ref: Annotated[str | None, typer.Option(help="Name of the secret that workers send to it.")] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Announce a running server: list its tools and make them findable."""
    labels = dict(key_and_value(text, "--label") for text in label or [])
    data = {"server_id": server, "url": url, "transport": transport, "groups": group or [], "labels": labels}
    _emit(_document("up", {**data, "credential_ref": credential_ref}), wait, as_json, data_dir)


@command(emit_app, "down", "toolscale emit down docs")
def down(
    server: ServerArgument, wait: WaitOption = False, as_json: JsonOption = False, data_dir: DataDirOption = None
) -> None:
    """Report a stopped server: hide its tools, and keep them for its return."""
    _emit(_document("down", {"server_id": server}), wait, as_json, data_dir)


@command(emit_app, "changed", "toolscale emit changed docs --wait")
def changed(
    server: ServerArgument, wait: WaitOption = False, as_json: JsonOption = False, data_dir: DataDirOption = None
) -> None:
    """Report changed tools of a known server: list them again."""
    _emit(_document("changed", {"server_id": server}), wait, as_json, data_dir)


@command(emit_app, "event", "toolscale emit event event.json")
def event(
    file: Annotated[typer.FileText, typer.Argument(help="A CloudEvent as JSON; - for standard input.")],
    wait: WaitOption = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Send a CloudEvent as it is."""
    _emit(file.read(), wait, as_json, data_dir)


def resync(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER", help="Their ids; none: all.", show_default=False, autocompletion=complete_server
        ),
    ] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Reconcile these servers, or every server that should run, now."""
    with open_operations(url, token, data_dir) as operations:
        recorded = operations.resync(servers or [])
        if recorded:
            _report(operations, recorded, data_dir, wait=wait, as_json=as_json, is_one=False)
    if not recorded:
        print_json([]) if as_json else print_lines(f"No server should be running. {FIRST_SERVERS}")


def dead_letters(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Show at most this many, newest first.")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show the latest rejected events and messages, with the reasons.

    With --json, each has its whole message. After a repair, send an event again with `toolscale emit event`.
    """
    with open_operations(url, token, data_dir) as operations:
        letters = operations.dead_letters(limit)
    if as_json:
        print_json(letters)
        return
    rows = [
        (
            datetime.fromtimestamp(letter["at"], UTC).isoformat(timespec="seconds"),
            printable(letter["reason"]),
            printable(letter["body"][:200]),
        )
        for letter in letters
    ]
    if rows:
        print_table((Column("when"), Column("reason"), Column("message")), rows)
    else:
        print_lines("There are no dead letters.")


def _document(kind: str, data: Object) -> Object:
    from shared.events import TYPE_PREFIX  # noqa: PLC0415  # loads the models of events

    head = {"specversion": "1.0", "id": str(uuid.uuid4()), "source": "toolscale/cli"}
    return {**head, "type": f"{TYPE_PREFIX}.{kind}", "data": data}


def _emit(raw: str | Object, wait: bool, as_json: bool, data_dir: Path | None) -> None:
    # `--url` is that of the announced server
    url, token = os.environ.get("TOOLSCALE_URL"), os.environ.get("TOOLSCALE_TOKEN")
    with open_operations(url, token, data_dir) as operations:
        try:
            recorded = operations.record(raw)
        except Permanent as error:
            if isinstance(raw, dict):
                print_notes(printable(_hint(raw["data"], str(error).partition(":")[0], operations)))
            raise
        _report(operations, [recorded], data_dir, wait=wait, as_json=as_json, is_one=True)


def _hint(data: Object, field: str, operations: Operations | Service) -> str:
    """Return the option or the command that corrects an event whose field is invalid."""
    if field == "data.server_id" and "url" not in data:
        known = [intent["server_id"] for intent in operations.intents_of()]
        near = ServerUnknown.near(data["server_id"], known).candidates
        if near and data["server_id"] not in known:
            return f"did you mean {' or '.join(near)}?"
        return "`toolscale ls` shows the servers; `toolscale emit up` announces one"
    if field == "data":
        return "give --url URL; a stdio server has --transport stdio, and its command in the mcp.json: `toolscale add`"
    option = field.removeprefix("data.").partition(".")[0].rstrip("s").replace("_", "-")
    return (
        f"correct --{option}"
        if option in ("url", "group", "label", "credential-ref")
        else "see `toolscale emit --help`"
    )


def _report(
    operations: Operations | Service,
    intents: Sequence[Object],
    data_dir: Path | None,
    *,
    wait: bool,
    as_json: bool,
    is_one: bool,
) -> None:
    """Print the recorded events, or with `wait` the results of their reconciliations.

    Raises:
        Exit: with 1 if a reconciliation failed.
    """
    from shared.settings import load_settings  # noqa: PLC0415
    from shared.upstream.target import STDIO_START_TIMEOUT_S  # noqa: PLC0415
    from toolscale.client.wait import patience_s, recorded, wait_for  # noqa: PLC0415

    def read(server_ids: Sequence[str]) -> dict[str, Intent]:
        found = map(_intent, operations.intents_of(server_ids))
        return {intent.server_id: intent for intent in found}

    emitted = [_intent(intent) for intent in intents]
    if not wait:
        documents = [recorded(intent) for intent in emitted]
        sentences = [
            f"{each.server_id}: recorded as generation {each.desired} ({each.status}); it will be reconciled."
            for each in emitted
        ]
        failed = False
    else:
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        settings = load_settings(data_dir=data_dir)
        waited = wait_for(read, emitted, patience_s(settings), threading.Event(), install_s=STDIO_START_TIMEOUT_S)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("servers"))
        # on stderr; nothing where that is no terminal
        bar = Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal)
        with bar as progress:
            results = list(progress.track(waited, total=len(emitted), description="Reconciling"))
        results.sort(key=lambda result: result.emitted.server_id)
        documents, sentences = [result.as_object() for result in results], [result.sentence for result in results]
        failed = not all(result.is_good for result in results)
    if as_json:
        print_json(documents[0] if is_one else documents)
    else:
        print_lines(*map(printable, sentences))
    if failed:
        raise typer.Exit(1)


def _intent(document: Object) -> Intent:
    from shared.intents.intent import Intent  # noqa: PLC0415  # loads the models of the intents

    return Intent.model_validate(document, extra="ignore")
