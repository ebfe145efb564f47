"""The end of a process that gets several signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

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
