"""Let the clock of this process differ from the machine's: Python imports this where it is on the path."""

from __future__ import annotations

import os
import time

import time_machine

time_machine.travel(time.time() + float(os.environ["CHAOS_CLOCK_AHEAD_S"]), tick=True).start()
