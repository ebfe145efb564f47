"""The notification listeners as a process, for the scaled composition: `python -m workers.notifications`.

Of several processes on one Redis, one listens; the others take over when it ends.
"""

from __future__ import annotations

import sys
import threading
from functools import partial

import structlog

from shared.errors import ToolscaleError
from shared.service.logging import configure_logging
from shared.service.process import interrupt_once
from shared.settings import Settings, load_service_settings
from workers.monitoring.checks import warn_if_index_unreachable
from workers.notifications.supervisor import SOURCE, ListeningLease, connection_limit, listeners_running
from workers.process import source_process

# The supervisor reads the intents every two seconds.
READY_WITHIN_S = 25.0

_log = structlog.get_logger()


def main() -> int:
    """Listen until a signal; return the exit code, 1 when the listeners could not start."""
    configure_logging("INFO")
    interrupt_once()
    try:
        _listen(load_service_settings())
    except ToolscaleError as error:
        _log.error("notifications_failed", kind=type(error).__name__, reason=str(error))
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _listen(settings: Settings) -> None:
    configure_logging(settings.log_level)
    warn_if_index_unreachable(settings)
    with (
        source_process(settings, [SOURCE], READY_WITHIN_S) as process,
        ListeningLease(process.intents) as lease,
        listeners_running(
            *(settings, process.intents, process.emit),
            may_listen=lease.is_held,
            beat=partial(process.beat, SOURCE),
        ),
    ):
        _log.info("notifications_started", listen=settings.subscribe, most=connection_limit())
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
