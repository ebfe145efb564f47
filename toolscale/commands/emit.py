"""The `toolscale emit` commands."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, track

from shared.catalog import Transport
from shared.errors import EventInvalid
from shared.events import TYPE_PREFIX
from shared.quoting import printable
from shared.service.logging import configure_logging
from shared.settings import Settings, load_settings
from toolscale.commands.help import command, group
from toolscale.commands.options import DataDirOption, JsonOption, ServerArgument, complete_server, key_and_value
from toolscale.console import err, out, print_json

if TYPE_CHECKING:
    from toolscale.client.emit import EmitResult

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the reconciliation; exit code 1 if it fails.")]

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
    with _near_names(server, data_dir):
        _emit(_document("down", {"server_id": server}), wait, as_json, data_dir)


@command(emit_app, "changed", "toolscale emit changed docs --wait")
def changed(
    server: ServerArgument, wait: WaitOption = False, as_json: JsonOption = False, data_dir: DataDirOption = None
) -> None:
    """Report changed tools of a known server: list them again."""
    with _near_names(server, data_dir):
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
    data_dir: DataDirOption = None,
) -> None:
    """Reconcile these servers, or every server that should run, now."""
    from toolscale.client.emit import resync as request  # noqa: PLC0415  # loads the broker's client

    configure_logging("WARNING")
    settings = load_settings(data_dir=data_dir)
    requested = request(settings, servers or [])
    recorded = list(
        track(requested, "Requesting reconciliations", console=err, transient=True, disable=not err.is_terminal)
    )
    if wait:
        _await(recorded, settings, as_json)
    elif as_json:
        print_json([emitted.model_dump(mode="json") for emitted in recorded])
    else:
        _print_lines([emitted.sentence for emitted in recorded])


def _print_lines(sentences: Sequence[str]) -> None:
    for sentence in sentences or ["No server should be running."]:
        out.print(printable(sentence), highlight=False, soft_wrap=True)


def _await(recorded: Sequence[EmitResult], settings: Settings, as_json: bool, *, is_one: bool = False) -> None:
    """Wait for these reconciliations and print their results.

    Raises:
        Exit: with 1 if any failed.
    """
    from toolscale.client.wait import wait  # noqa: PLC0415  # loads the broker's client

    with _progress() as progress:
        results = progress.track(wait(settings, recorded), total=len(recorded), description="Reconciling")
        ended = sorted(results, key=lambda result: result.emitted.server_id)
    if as_json:
        documents = [result.as_object() for result in ended]
        print_json(documents[0] if is_one else documents)
    else:
        _print_lines([result.sentence for result in ended])
    if not all(result.is_good for result in ended):
        raise typer.Exit(1)


def _progress() -> Progress:
    """Return a display of ended and all servers on stderr; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("servers"))
    return Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def _near_names(server: str, data_dir: Path | None) -> Generator[None]:
    """Print similar server ids if an event names an unknown server."""
    from toolscale.client.server_names import announced, unknown  # noqa: PLC0415  # loads the store's client

    try:
        yield
    except EventInvalid as error:
        known = announced(load_settings(data_dir=data_dir))
        near = unknown(server, known).candidates
        if error.field == "data.server_id" and near and server not in known:
            err.print(printable(f"did you mean {' or '.join(near)}?"), highlight=False)
        raise


def _document(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    head = {"specversion": "1.0", "id": str(uuid.uuid4()), "source": "toolscale/cli"}
    return {**head, "type": f"{TYPE_PREFIX}.{kind}", "data": data}


def _emit(raw: str | dict[str, Any], wait: bool, as_json: bool, data_dir: Path | None) -> None:
    from toolscale.client.emit import emit_raw  # noqa: PLC0415  # loads the broker's client

    configure_logging("ERROR")  # the command prints the result, or the error
    settings = load_settings(data_dir=data_dir)
    emitted = emit_raw(raw, settings)
    if wait:
        _await([emitted], settings, as_json, is_one=True)
    elif as_json:
        print_json(emitted.model_dump(mode="json"))
    else:
        _print_lines([emitted.sentence])
