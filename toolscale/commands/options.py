"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    """Return the server ids that a shell may complete."""
    from toolscale.client.server_names import announced_if_known  # noqa: PLC0415  # loads the store's client

    return announced_if_known()


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of the index and the intents.", show_default=False)
]
UrlOption = Annotated[
    str | None,
    typer.Option(help="URL of the query service; default: the service of this catalogue.", show_default=False),
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
