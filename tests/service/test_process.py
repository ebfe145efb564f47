"""What a process sets up when it starts: its end by signals, its freed memory, and its imports."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.service.process import imported_at_once
from tests.support.waiting import eventually
from tests.support.warm import start

BY_A_SIGNAL = """
import sys
from shared.service.process import interrupt_once
interrupt_once()
try:
    print("runs", flush=True)
    sys.stdin.readline()
finally:
    print("closes", flush=True)
    sys.stdin.readline()
    print("has closed", flush=True)
"""
BY_ITSELF = """
import sys
from shared.service.process import ignore_interrupts, interrupt_once
interrupt_once()
ignore_interrupts()
print("closes", flush=True)
sys.stdin.readline()
print("has closed", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "first"), [(BY_A_SIGNAL, signal.SIGTERM), (BY_A_SIGNAL, signal.SIGINT), (BY_ITSELF, None)]
)
def test_signals_do_not_break_off_the_end_of_a_process(
    tmp_path: Path, program: str, first: signal.Signals | None
) -> None:
    theirs, ours = os.pipe()
    log = tmp_path / "log"
    with log.open("wb") as output, os.fdopen(ours, "wb") as to_process:
        process = start([sys.executable, "-c", program], stdin=theirs, stdout=output, stderr=output)
        os.close(theirs)
        if first:
            eventually(lambda: "runs" in log.read_text())
            process.send_signal(first)
        eventually(lambda: "closes" in log.read_text())

        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        to_process.write(b"\n")
        to_process.flush()
        process.wait(60)

    assert "has closed\n" in log.read_text()


# The C library keeps a freed heap below a block in use; the largest block that it maps separately grows with each free.
FREES = """
import ctypes, pathlib, sys
from shared.service.process import return_freed_memory

def resident_mib():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) // 256

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
blocks = [library.malloc(100 << 10) for _ in range(1_000)]
for block in blocks:
    ctypes.memset(block, 1, 100 << 10)
before = resident_mib()
for block in blocks[:-1]:
    library.free(block)
return_freed_memory()
sys.exit(0 if resident_mib() < before - 80 else 1)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the settings are those of glibc")
def test_freed_memory_below_a_block_in_use_is_returned() -> None:
    assert subprocess.run([sys.executable, "-c", FREES], timeout=60, check=False).returncode == 0


def test_collections_begin_again_after_imports_also_after_one_that_failed() -> None:
    with imported_at_once():
        assert not gc.isenabled()
    assert gc.isenabled()

    with pytest.raises(ImportError), imported_at_once():
        raise ImportError
    assert gc.isenabled()
