"""`python -P hold.py DIRECTORY TOOLS`: serve a catalogue with the build in PYTHONPATH until stdin ends.

It prints the URL and the process id of the service, and imports only modules that the earlier build has too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.serving.plan import FULL
from benchmarks.serving.service import serving


def main() -> None:
    """Fill the catalogue, and serve it."""
    with serving(Path(sys.argv[1]), int(sys.argv[2]), FULL) as service:
        print(service.url, service.process.pid, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
