"""The events API as a process, for the scaled composition: `python -m workers.events_api`."""

from __future__ import annotations

import sys

import structlog

from shared.errors import ToolscaleError
from shared.service.logging import configure_logging
from shared.service.process import interrupt_once
from shared.settings import load_service_settings
from workers.events_api.app import serve

_log = structlog.get_logger()


def main() -> int:
    """Serve until a signal; return the exit code, 1 when the API could not start."""
    configure_logging("INFO")
    interrupt_once()
    try:
        serve(load_service_settings())
    except ToolscaleError as error:
        _log.error("events_api_failed", kind=type(error).__name__, reason=str(error))
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
