"""The notifications process with a complete read of the intents in each poll, as before `IntentStore.changes`."""

from __future__ import annotations

import sys
from functools import partial
from unittest.mock import patch

from workers.notifications import __main__ as notifications
from workers.notifications import supervisor
from workers.notifications.running_servers import RunningServers

if __name__ == "__main__":
    with patch.object(supervisor, "RunningServers", partial(RunningServers, reread_s=0.0)):
        sys.exit(notifications.main())
