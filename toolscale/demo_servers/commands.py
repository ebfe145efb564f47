"""Run another program to its end, and say why when it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from shared.errors import Permanent, Retryable

TIMEOUT_S = 300

# Installers spread their reason over several lines, and the last one alone seldom says it.
SHOWN_CHARACTERS = 600


def run(command: Sequence[str], cwd: Path) -> None:
    """Return when the program ended well; its output is not shown.

    Raises:
        Retryable: it failed, or did not end within TIMEOUT_S; the message ends with its own last lines.
        Permanent: it cannot be started.
    """
    try:
        subprocess.run(  # noqa: S603  # fixed programs and paths of our own
            command, cwd=cwd, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise Retryable(f"{_shown(command)} failed: {error.stderr.strip()[-SHOWN_CHARACTERS:]}") from error
    except subprocess.TimeoutExpired as error:
        raise Retryable(f"{_shown(command)} did not end within {TIMEOUT_S} s") from error
    except OSError as error:
        raise Permanent(f"{_shown(command)} cannot be started: {error}") from error


def _shown(command: Sequence[str]) -> str:
    return f"{Path(command[0]).name} {' '.join(command[1:4])}"
