"""`toolscale logs`: the last lines of a stdio server's stderr, and its last failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import ConfigInvalid
from shared.quoting import printable
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption, ServerArgument
from toolscale.console import err, out, print_json

if TYPE_CHECKING:
    from shared.intents.intent import Intent


def logs(
    server: ServerArgument,
    lines: Annotated[int, typer.Option(min=1, help="At most so many of the last lines.")] = 50,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show the last lines that a stdio server wrote to stderr, and its last failure.

    `toolscale serve` and `toolscale call` store these lines in the data directory, with credentials replaced.
    """
    from shared.upstream.log import last_lines, log_directory  # noqa: PLC0415
    from toolscale.client.server_names import unknown  # noqa: PLC0415  # loads the store's client
    from toolscale.client.servers import servers, state  # noqa: PLC0415

    settings = load_settings(data_dir=data_dir)
    directory = log_directory(settings)
    if directory is None:
        raise ConfigInvalid("workers with REDIS_URL keep no lines of servers; read the log of the workers")
    known = {intent.server_id: intent for intent in servers(settings)}
    if server not in known:
        raise unknown(server, known)
    intent, found = known[server], last_lines(directory, server, lines)
    if as_json:
        failure = {"failures": intent.failures, "last_error": intent.last_error}
        print_json({"server_id": server, "state": state(intent), **failure, "lines": found})
        return
    for line in found:
        out.print(printable(line), highlight=False, soft_wrap=True)
    if not found:
        err.print(_without_lines(intent), highlight=False, soft_wrap=True)
    if intent.last_error:
        out.print(printable(f"{state(intent)}: {intent.last_error}"), highlight=False, soft_wrap=True)


def _without_lines(intent: Intent) -> str:
    if intent.announcement.transport != "stdio":
        return f"{printable(intent.server_id)} is reached by a URL, so Toolscale does not see its stderr."
    return f"{printable(intent.server_id)} wrote nothing to stderr."
