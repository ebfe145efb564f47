"""A scripted installer, run as a program: `python installer.py CACHE [SECONDS]`; then it is a good server.

As `npx` does, it leaves a broken cache when it is killed, and undoes its work on SIGTERM, which takes a second,
or as long as the file CACHE/stubborn exists.
Without SECONDS it installs until the file CACHE/finish exists. CACHE/starts has a line for each start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

UNDO_S = 1.0
SERVER = Path(__file__).with_name("stdio_server.py")


def main(cache: Path, seconds: float | None) -> None:
    cache.mkdir(exist_ok=True)
    with (cache / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if (cache / "half-written").exists():
        sys.exit(f"the cache {cache} is broken")
    if not (cache / "installed").exists():
        install(cache, seconds)
    os.execv(sys.executable, [sys.executable, str(SERVER), "good"])


def install(cache: Path, seconds: float | None) -> None:
    def undo(*_: object) -> None:
        time.sleep(UNDO_S)
        while (cache / "stubborn").exists():
            time.sleep(0.02)
        (cache / "half-written").unlink()
        sys.exit(1)

    signal.signal(signal.SIGTERM, undo)
    (cache / "half-written").touch()
    began = time.monotonic()
    while time.monotonic() - began < seconds if seconds is not None else not (cache / "finish").exists():
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (cache / "half-written").rename(cache / "installed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None)
