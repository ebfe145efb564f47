"""Resident memory of this process."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

MIB = 1 << 20


class Footprint:
    """Resident memory in MiB by moment, in the order noted."""

    def __init__(self) -> None:
        self.mib: dict[str, float] = {}

    def note(self, moment: str) -> None:
        """Remember how much is resident now."""
        self.mib[moment] = round(psutil.Process().memory_info().rss / MIB, 1)

    def note_peak(self) -> None:
        """Remember the most that ever was resident, where the system keeps it."""
        peak = _peak_mib()
        if peak is not None:
            self.mib["peak"] = max(peak, *self.mib.values())  # the system notes it a little late


def _peak_mib() -> float | None:
    # not getrusage: on Linux a child's ru_maxrss begins with what its parent had when it was forked
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return round(int(found[1]) / 1024, 1) if found else None
