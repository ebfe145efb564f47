"""`toolscale dead-letters`: shows rejected events and messages, sends them again, and deletes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from shared.observability.logging import configure_logging
from shared.settings import Settings, load_settings
from shared.text.display import printable
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import out, print_json

if TYPE_CHECKING:
    from toolscale.client.dead_letters import RetryResult

Action = Literal["show", "retry", "clear"]


def dead_letters(
    action: Annotated[Action, typer.Argument(help="show, retry, or clear: delete all.", show_default="show")] = "show",
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 20,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before clear deletes.")] = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show rejected events and messages, with the reasons; send the events again, or delete all.

    retry sends each event as it was sent, the oldest first, and deletes those that are accepted.
    An event whose body was cut, or of a producer with its own token, cannot be sent again. Then the exit code is 1.
    """
    settings = load_settings(data_dir=data_dir)
    if action == "show":
        _show(settings, limit, as_json=as_json)
    elif action == "retry":
        _retry(settings, as_json=as_json)
    else:
        _clear(settings, is_confirmed=yes, as_json=as_json)


def _show(settings: Settings, limit: int, *, as_json: bool) -> None:
    from toolscale.client.dead_letters import dead_letters as read  # noqa: PLC0415  # loads the store's client

    letters = read(settings, limit)
    if as_json:
        print_json([letter.model_dump(mode="json") for letter in letters])
        return
    table = Table("when", "reason", "message", box=None, header_style="bold")
    for letter in letters:
        table.add_row(_time(letter.at), printable(letter.reason), printable(letter.body[:200]))
    out.print(table if letters else "There are no dead letters.")


def _retry(settings: Settings, *, as_json: bool) -> None:
    from toolscale.client.dead_letters import retry  # noqa: PLC0415  # loads the broker's client

    configure_logging("WARNING")
    results = list(retry(settings))
    if as_json:
        print_json([result.model_dump(mode="json") for result in results])
    else:
        _print_results(results)
    if any(result.outcome != "accepted" for result in results):
        raise typer.Exit(1)


def _print_results(results: Sequence[RetryResult]) -> None:
    for result in results:
        if result.reason:
            out.print(f"{_time(result.at)}: {printable(result.reason)}", highlight=False, soft_wrap=True)
    counts = Counter(result.outcome for result in results)
    numbers = (f"{counts[outcome]} {outcome}" for outcome in ("accepted", "refused", "incomplete"))
    out.print(", ".join(numbers) if results else "There are no dead letters.", highlight=False)


def _clear(settings: Settings, *, is_confirmed: bool, as_json: bool) -> None:
    from toolscale.client.dead_letters import clear  # noqa: PLC0415  # loads the store's client

    if not is_confirmed:
        typer.confirm("Delete all dead letters?", abort=True, err=True)
    deleted = clear(settings)
    if as_json:
        print_json({"deleted": deleted})
    else:
        out.print(f"{deleted} dead letters are deleted.", highlight=False)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
