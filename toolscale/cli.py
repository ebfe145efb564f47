"""The `toolscale` command. Results go to stdout, progress and logs to stderr.

Exit codes: 0 success; 1 a temporary failure; 2 the command, an event or a setting is wrong; 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Run the command line. An expected error prints one line on stderr, an interrupt prints nothing."""
    _prepare_streams()
    try:
        try:
            _run()
        finally:
            _flush_errors()
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        _end(error)


def _prepare_streams() -> None:
    """Let the console show what it can of any text, and a program run whose caller has closed its streams."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the program ends
        elif isinstance(stream, io.TextIOWrapper):  # not that of a test
            stream.reconfigure(errors="replace")


def _end(error: OSError) -> None:
    """End with one line about a file, or about an output that takes no more; without one for a closed pipe."""
    place = error.filename or "the output"
    in_data = "; --data-dir or TOOLSCALE_DATA_DIR names another data directory" if error.filename else ""
    with suppress(OSError):
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: {place}: {error.strerror or type(error).__name__}{in_data}\n")
            sys.stderr.flush()
    _drop(sys.stdout)
    sys.exit(1)


def _flush_errors() -> None:
    """Write what is left of notes and progress; where stderr takes no more, the result still counts."""
    try:
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Lose what a stream has left, which would fail again at the exit of Python."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run() -> None:
    from shared.service.process import imported_at_once, protect_memory  # noqa: PLC0415

    protect_memory()
    run = _serving() if sys.argv[1:2] == ["serve"] else None
    # these imports take seconds; inside this function an interrupt of them exits with 130 too
    with imported_at_once():
        from rich.text import Text  # noqa: PLC0415

        from shared.errors import Permanent, ToolscaleError  # noqa: PLC0415
        from shared.quoting import printable  # noqa: PLC0415
        from toolscale.console import print_notes  # noqa: PLC0415

        if run is None:
            from toolscale import app  # noqa: PLC0415

            run = app.run

    try:
        run()
    except ToolscaleError as error:
        print_notes(Text.assemble(("error:", "red"), " ", printable(str(error))))
        sys.exit(2 if isinstance(error, Permanent) else 1)


def _serving() -> Callable[[], None] | None:
    """Be the proxy of a client over stdio, or return the background service; None for the command itself.

    Both begin before the imports of the other commands, which take most of their time.
    """
    if not {"--stdio", "--background"}.intersection(sys.argv[2:]):
        return None
    from toolscale.client.background import HELD, place_of_command  # noqa: PLC0415
    from toolscale.client.instance import try_hold  # noqa: PLC0415

    place = place_of_command(sys.argv[2:])
    if place is None:
        return None
    if "--stdio" in sys.argv:
        from toolscale.stdio import serve_stdio  # noqa: PLC0415

        serve_stdio(place)
    held = try_hold(place.data_dir)
    if held is None:
        sys.exit(HELD)  # its starter waits for the process with the lock

    def run() -> None:
        from shared.service.logging import configure_logging  # noqa: PLC0415
        from shared.settings import load_settings  # noqa: PLC0415
        from toolscale.embedded.serve import serve  # noqa: PLC0415

        with held:
            settings = load_settings(data_dir=place.data_dir, mcp_config=place.mcp_config)
            configure_logging(settings.log_level)
            serve(settings, is_background=True)

    return run
