"""Freed memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The C library keeps a freed heap below a block in use; the largest block that it maps separately grows with each free.
PROGRAM = """
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


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are those of glibc")
def test_freed_memory_below_a_block_in_use_is_returned() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=False).returncode == 0
