"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from shared.errors import ToolscaleError
from toolscale.client.instance import FILE
from toolscale.client.service import open_service


def key_and_value(text: str, name: str) -> tuple[str, str]:
    """Return the parts of KEY=VALUE.

    Raises:
        BadParameter: the text of the parameter `name` has another form.
    """
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint=name)
    return key, value


def complete_server() -> list[str]:
    """Return the server ids that a shell may complete: those of a running service, since none is started for this."""
    from shared.settings import load_settings  # noqa: PLC0415

    url, token = os.environ.get("TOOLSCALE_URL"), os.environ.get("TOOLSCALE_TOKEN")
    try:
        settings = load_settings()
        if not (url or settings.redis_url or (settings.data_dir / FILE).exists()):
            return []
        with open_service(url, token) as service:
            return [row["server_id"] for row in service.servers()["servers"]]
    except ToolscaleError:
        return []


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of the index and the intents.", show_default=False)
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        envvar="TOOLSCALE_URL", help="URL of the service; default: the one of this data directory.", show_default=False
    ),
]
TokenOption = Annotated[
    str | None, typer.Option(envvar="TOOLSCALE_TOKEN", help="Bearer token for that service.", show_default=False)
]
ServerArgument = Annotated[
    str,
    typer.Argument(metavar="SERVER", help="The server's id.", show_default=False, autocompletion=complete_server),
]
BudgetOption = Annotated[
    int | None, typer.Option(min=1, help="Limit of tokens for its definitions.", show_default=False)
]
McpJsonOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="An mcp.json; default: the one of `serve`, else the user's files of all clients.",
        show_default=False,
    ),
]  # fmt: skip
# A server that no file names yet: its command or its URL.
CommandArgument = Annotated[
    list[str] | None, typer.Argument(help="The command of a stdio server, after `--`.", show_default=False)
]
ServerUrlOption = Annotated[
    str | None, typer.Option("--url", help="Its URL, in place of a command.", show_default=False)
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A variable of the command; repeat it for several.", show_default=False),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A header for the URL; repeat it for several.", show_default=False),
]
