"""The `toolscale` command. Results go to stdout, progress and logs to stderr.

Exit codes: 0 success; 1 a temporary failure; 2 the command, an event or a setting is wrong; 130 interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. An expected error prints one line on stderr, an interrupt prints nothing."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    from shared.service.process import imported_at_once, protect_memory  # noqa: PLC0415

    protect_memory()
    # these imports take seconds; inside this function an interrupt of them exits with 130 too
    with imported_at_once():
        from rich.text import Text  # noqa: PLC0415

        from shared.errors import Permanent, ToolscaleError  # noqa: PLC0415
        from shared.quoting import printable  # noqa: PLC0415
        from toolscale.app import app  # noqa: PLC0415
        from toolscale.console import err  # noqa: PLC0415

    try:
        app()
    except ToolscaleError as error:
        err.print(Text.assemble(("error:", "red"), " ", printable(str(error))), soft_wrap=True)
        sys.exit(2 if isinstance(error, Permanent) else 1)
