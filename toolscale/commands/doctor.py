"""`toolscale doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shared.errors import ConfigInvalid
from shared.quoting import printable
from shared.service.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import err, print_json, print_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.settings import Settings
    from toolscale.doctor.installation import Finding

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("problem", "red")}


AuditOption = Annotated[
    bool, typer.Option("--audit", help="Also compare the token counts of every server with those of its tools.")
]


def doctor(audit: AuditOption = False, as_json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """Check settings, files, Redis, index, model, vocabularies and clock, and suggest repairs.

    Exit code 1 means a problem; warnings do not change the exit code.
    """
    configure_logging("ERROR")  # the findings report every problem
    found = findings(data_dir, audit=audit)
    if as_json:
        print_json([finding.model_dump(mode="json") for finding in found])
    else:
        for finding in found:
            print_lines(_line(finding))
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(1)


def findings(data_dir: Path | None, *, audit: bool) -> list[Finding]:
    """Return the findings of all checks, also where one of them fails."""
    from toolscale.doctor import installation, stores  # noqa: PLC0415  # load both sides

    found = list(installation.check_names(os.environ))
    try:
        settings = load_settings(data_dir=data_dir)
    except ConfigInvalid as error:
        advice = "correct it; .env.example lists the valid values"
        return [*found, installation.problem("settings", str(error), advice)]
    checks: dict[str, list[Callable[[Settings], Iterator[Finding]]]] = {
        "settings and files": [
            installation.check_settings,
            installation.check_data_dir,
            installation.check_config,
            installation.check_tokens,
            installation.check_producers,
            installation.check_policy,
            installation.check_permissions,
            installation.check_scripts,
        ],
        "Redis and workers": [],
        "servers, index and service": [stores.check_intents, stores.check_index, stores.check_service],
        "model and vocabularies": [installation.check_model, installation.check_vocabularies],
        "token counts": [stores.check_counts] if audit else [],
    }
    if settings.redis_url:
        from toolscale.doctor import broker  # noqa: PLC0415  # loads Redis's client

        checks["Redis and workers"] = [broker.check_redis, broker.check_workers]
    with err.status("Checking ...") as status:
        for what, of_kind in checks.items():
            status.update(f"Checking {what} ...")
            for check in of_kind:
                found += _of(check, settings)
    return found


def _of(check: Callable[[Settings], Iterator[Finding]], settings: Settings) -> Iterator[Finding]:
    from toolscale.doctor.installation import problem  # noqa: PLC0415  # as above

    try:
        yield from check(settings)
    except Exception as error:  # noqa: BLE001  # the other findings may name the cause
        about = check.__name__.removeprefix("check_").replace("_", " ")
        # its text may quote a secret
        yield problem(about, f"the check ended early: {type(error).__name__}", "see the other findings")


def _line(finding: Finding) -> Text:
    word, style = _MARKS[finding.level]
    line = Text.assemble((f"{word:8}", style), f"{finding.about:15} ", printable(finding.found))
    return line.append(f"\n{'':24} {printable(finding.advice)}", style="bold") if finding.advice else line
