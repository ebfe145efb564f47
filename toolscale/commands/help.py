"""Commands and groups whose help ends with examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

Function = TypeVar("Function", bound=Callable[..., Any])

HEADING = "Examples:"


def group(text: str, *examples: str, cls: type[Group] | None = None) -> typer.Typer:
    """Return a group of commands, with this text and these examples in its help."""
    return typer.Typer(
        cls=cls or Group,
        help=text,
        epilog=_epilog(examples),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(app: typer.Typer, name: str, *examples: str, panel: str | None = None) -> Callable[[Function], Function]:
    """Return a decorator that adds a command to the group, with these examples in its help."""
    return app.command(name, cls=_Command, epilog=_epilog(examples), rich_help_panel=panel)


def _epilog(examples: tuple[str, ...]) -> str:
    return "\n\n".join((HEADING, *examples))  # the help shows each paragraph in a line


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _without_type_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group whose help shows no type of an option without a value."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, without a type of flags."""
        return _without_type_of_flags(super().get_params(ctx))


def _without_type_of_flags(params: list[Any]) -> list[Any]:
    """Return the parameters; the help shows no type of an option without a value."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
    return params
