"""The `toolscale` command. Results go to stdout, progress and logs to stderr.

Exit codes: 0 done; 1 it did not work out, trying again may; 2 the command, an event or a setting is wrong;
130 it was interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an expected error is one line on stderr, and an interrupt none: neither is a traceback."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    # loading takes a while; here an interrupt meanwhile is one like any other
    from rich.text import Text  # noqa: PLC0415

    from shared.errors import Permanent, ToolscaleError  # noqa: PLC0415
    from toolscale.app import app  # noqa: PLC0415
    from toolscale.console import err, plain  # noqa: PLC0415

    try:
        app()
    except ToolscaleError as error:
        err.print(Text.assemble(("error:", "red"), " ", plain(str(error))), soft_wrap=True)
        sys.exit(2 if isinstance(error, Permanent) else 1)
