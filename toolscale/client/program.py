"""The command of this program, for the configuration of a client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.settings import Settings


def stdio_command(settings: Settings) -> list[str]:
    """Return the command that serves this data directory over stdio, with absolute paths."""
    config = ["--config", str(settings.mcp_config.resolve())] if settings.mcp_config else []
    return [*_program(), "serve", "--stdio", *config, "--data-dir", str(settings.data_dir.resolve())]


def _program() -> list[str]:
    """Return the command of this program with absolute paths: it is often missing in the PATH of a client."""
    program = Path(sys.argv[0]).resolve()
    return [sys.executable, "-m", "toolscale"] if program.name == "__main__.py" else [str(program)]
