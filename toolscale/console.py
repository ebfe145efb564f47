"""Where the command line prints: results on stdout, everything else on stderr; no colour when piped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

# no markup: what is printed comes from servers and events as well
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Where index and intents are kept.", show_default=False)
]


def print_json(document: object) -> None:
    """Print one JSON document in ASCII, unwrapped and without colour."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def plain(text: str) -> str:
    """Return someone else's text as one line that a terminal does not act upon."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text)
