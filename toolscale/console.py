"""Where the command line prints: results on stdout, everything else on stderr; no colour when piped."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def print_json(document: object) -> None:
    """Print one JSON document, unwrapped and without colour."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
