"""The `toolscale` application with all its commands. Each is imported when it runs: most need little of the rest."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from shared.errors import UsageInvalid
from toolscale.commands.help import Group, command, group
from toolscale.console import out

RUN, INSPECT, ANNOUNCE, SHARE = "Run it", "Inspect it", "Announce servers", "Share it"


class Source(NamedTuple):
    """Where a command is defined, `module:name` in `toolscale.commands`, its panel of the help, and examples.

    `logs`: it may log. The others only ask a service.
    """

    place: str
    panel: str
    examples: tuple[str, ...] = ()
    logs: bool = False


COMMANDS = {
    "serve": Source("serve:serve", RUN, ("toolscale serve --config ~/.cursor/mcp.json",), logs=True),
    "demo": Source("serve:demo", RUN, ("toolscale demo",), logs=True),
    "import": Source(
        "clients:import_servers",
        RUN,
        ("toolscale import --from cursor --apply", "toolscale import --apply --connect"),
        logs=True,
    ),
    "connect": Source(
        "clients:connect", RUN, ("toolscale connect cursor", "toolscale connect codex --remove"), logs=True
    ),
    "add": Source(
        "config:add",
        RUN,
        (
            "toolscale add time -- uvx mcp-server-time",
            "toolscale add docs --url https://docs.example/mcp --header 'Authorization=Bearer ${DOCS_TOKEN}'",
        ),
        logs=True,
    ),
    "remove": Source("config:remove", RUN, ("toolscale remove docs",), logs=True),
    "login": Source("sign_in:login", RUN, ("toolscale login linear", "toolscale login linear --no-browser")),
    "logout": Source("sign_in:logout", RUN, ("toolscale logout linear", "toolscale logout --caller ann")),
    "sign-ins": Source("sign_in:sign_ins", INSPECT, ("toolscale sign-ins",)),
    "costs": Source("costs:costs", INSPECT, ("toolscale costs --config .demo/mcp.json",), logs=True),
    "lint": Source(
        "lint:lint",
        INSPECT,
        (
            "toolscale lint -- python -m my_server",
            "toolscale lint --url http://127.0.0.1:8000/mcp --fail-on error",
            "toolscale lint --server time --config mcp.json --sarif lint.sarif",
        ),
        logs=True,
    ),
    "find": Source("tools:find", INSPECT, ("toolscale find what time is it in Tokyo --limit 3",)),
    "ls": Source(
        "servers:list_servers",
        INSPECT,
        ("toolscale ls", "toolscale ls --failing", "toolscale ls --url http://127.0.0.1:8765"),
    ),
    "show": Source("servers:show", INSPECT, ("toolscale show time",)),
    "describe": Source("tools:describe", INSPECT, ("toolscale describe time:get_current_time",)),
    "call": Source("tools:call", INSPECT, ("toolscale call time:get_current_time timezone=Asia/Tokyo",)),
    "logs": Source("servers:logs", INSPECT, ("toolscale logs time", "toolscale logs time --lines 200")),
    "diff": Source("definitions:diff", INSPECT, ("toolscale diff time",), logs=True),
    "approve": Source(
        "definitions:approve",
        INSPECT,
        ("toolscale approve time", "toolscale approve time get_time@5e884898da28047151d0e56f8dc62927"),
        logs=True,
    ),
    "resync": Source("events:resync", ANNOUNCE, ("toolscale resync time --wait",), logs=True),
    "doctor": Source("doctor:doctor", RUN, ("toolscale doctor",), logs=True),
    "backup": Source("backup:backup", RUN, ("toolscale backup backups/2026-11-21",), logs=True),
    "restore": Source("backup:restore", RUN, ("toolscale restore backups/2026-11-21",), logs=True),
    "dead-letters": Source("events:dead_letters", INSPECT, ("toolscale dead-letters --limit 5",), logs=True),
    "savings": Source("savings:savings", INSPECT, ("toolscale savings 7d",)),
    "advice": Source("savings:advice", INSPECT, ("toolscale advice", "toolscale advice --toolset dev --budget 3000")),
    "emit": Source("events:emit_app", ANNOUNCE, logs=True),
    "token": Source("token:token_app", SHARE),
    "toolset": Source("toolset:toolset_app", SHARE),
    "watch": Source("watch:watch_app", ANNOUNCE, logs=True),
}


class _Commands(Mapping[str, Any]):
    """The commands by name; a command is imported when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _loaded(name, COMMANDS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _loaded(name: str, source: Source) -> Any:
    module, _, attribute = source.place.partition(":")
    found = getattr(importlib.import_module(f"toolscale.commands.{module}"), attribute)
    if source.logs:
        _configure_logging()
    if isinstance(found, typer.Typer):
        made = get_command(found)
    else:
        alone = typer.Typer(add_completion=False)
        command(alone, name, *source.examples)(found)
        made = get_command(alone)
    made.name = name
    assert isinstance(made, TyperCommand | TyperGroup)
    made.rich_help_panel = source.panel
    return made


def _configure_logging() -> None:
    from shared.errors import ConfigInvalid  # noqa: PLC0415
    from shared.service.logging import configure_logging  # noqa: PLC0415
    from shared.settings import load_settings  # noqa: PLC0415

    try:
        level = load_settings().log_level
    except ConfigInvalid:
        level = "INFO"  # a command that needs the settings reports the error; --help does not need them
    configure_logging(level)


class _App(Group):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()


app = group(
    "One searchable catalogue of the tools of many MCP servers, and what it saves in tokens.",
    "toolscale serve --config ~/.cursor/mcp.json",
    "toolscale find what time is it in Tokyo",
    cls=_App,
)


def run() -> None:
    """Run the command line; a wrong option or argument is an error in one line, as any other."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(1)
    except TyperException as error:
        found: Any = error
        message, context = str(found.format_message()), getattr(found, "ctx", None)
        if "\n" in message or not message:  # the help of a group
            found.show()
            sys.exit(found.exit_code)
        seen = f"see `{context.command_path} --help`" if context else "see `toolscale --help`"
        raise UsageInvalid(f"{message.rstrip('.')}; {seen}") from error
    sys.exit(code if isinstance(code, int) else 0)


def _print_version(requested: bool) -> None:
    if requested:
        out.print(f"toolscale {importlib.metadata.version('toolscale')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options before any command."""
