"""A server as the first process of a container, which ignores SIGTERM: `containerised_server.py KIND`.

Of KIND `lives-on` it does not end with its input.
"""

from __future__ import annotations

import signal
import sys
import time

from lines import serve  # type: ignore[import-not-found]  # beside this program, which runs alone

signal.signal(signal.SIGTERM, signal.SIG_IGN)
serve(lambda _, __: "done")
if sys.argv[1] == "lives-on":
    time.sleep(600)
