"""`toolscale diff` and `approve`: changed definitions of a server's tools."""

from __future__ import annotations

from typing import Annotated

import typer

from shared.quoting import printable
from shared.service.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption, ServerArgument
from toolscale.console import out, print_json

ToolsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TOOL", help="Names of its tools; none: all.", show_default=False)
]


def diff(
    server: ServerArgument, tools: ToolsArgument = None, as_json: JsonOption = False, data_dir: DataDirOption = None
) -> None:
    """Compare the accepted definitions of a server's tools with the current ones."""
    from toolscale.client.definitions import as_object, changes, head  # noqa: PLC0415  # loads the broker's client
    from toolscale.client.definitions import diff as lines_of  # noqa: PLC0415

    found = changes(load_settings(data_dir=data_dir), server, tools or [])
    if as_json:
        print_json(as_object(found))
        return
    for name in found.changed:
        for line in (head(found, name), *lines_of(found, name), ""):
            out.print(printable(line), highlight=False, soft_wrap=True, markup=False)
    if not found.changed:
        out.print(f"{printable(server)} has no changed definitions.", highlight=False)


def approve(
    server: ServerArgument, tools: ToolsArgument = None, as_json: JsonOption = False, data_dir: DataDirOption = None
) -> None:
    """Accept the changed definitions of a server's tools, as diff shows them; its next reconciliation serves them.

    TOOL@DIGEST, as diff prints it, accepts a tool only if it did not change again since.
    """
    from toolscale.client.definitions import approve as accept  # noqa: PLC0415  # loads the broker's client

    configure_logging("WARNING")
    approval = accept(load_settings(data_dir=data_dir), server, tools or [])
    if as_json:
        print_json(approval.model_dump(mode="json"))
        return
    names = ", ".join(approval.accepted) or "nothing; it has no changed definitions"
    for line in (f"{server}: accepted {names}.", *((approval.request.sentence,) if approval.request else ())):
        out.print(printable(line), highlight=False, soft_wrap=True, markup=False)
