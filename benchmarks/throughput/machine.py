"""Where a run took place, and what else ran there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
from pydantic import BaseModel, ConfigDict

PACKAGES = (
    "celery",
    "fastembed",
    "mcp",
    "onnxruntime",
    "qdrant-edge-py",
    "redis",
    "tiktoken",
    "toolscale",
)


T = TypeVar("T")


class Machine(BaseModel):
    """Hardware and versions."""

    model_config = ConfigDict(frozen=True)

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str]


class Conditions(BaseModel):
    """Load of the machine by other processes during a measurement."""

    model_config = ConfigDict(frozen=True)

    subject: str
    seconds: float
    load_1m: float
    """Load average at the end; it includes what this run did."""
    others_percent: float
    """Processor time that other programs (or, on a virtual machine, its host) took, of all cores together."""


def this_machine() -> Machine:
    """Return this machine."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in PACKAGES},
    )


def processor_s(process: psutil.Process) -> float:
    """Return the seconds of processor time that the process took so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


class Watch:
    """Watches the machine from when it is made until it is asked for the conditions."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._started = time.perf_counter()
        self._others_s = _others_s()

    def conditions(self) -> Conditions:
        """Return what else happened; processes that this one started count as its own once they have ended."""
        seconds = time.perf_counter() - self._started
        available_s = seconds * (os.cpu_count() or 1)
        others_percent = 100 * (_others_s() - self._others_s) / available_s
        return Conditions(
            subject=self._subject,
            seconds=round(seconds, 1),
            load_1m=round(os.getloadavg()[0], 2),
            others_percent=round(max(others_percent, 0.0), 1),
        )


class Watches:
    """The conditions of subjects that are measured one after the other."""

    def __init__(self) -> None:
        self.conditions: list[Conditions] = []

    def measure(self, subject: str, measure: Callable[[], T]) -> T:
        """Return the result of `measure`; keep and print the conditions."""
        watch = Watch(subject)
        found = measure()
        self.conditions.append(watch.conditions())
        print(f"{subject}: measured in {self.conditions[-1].seconds:.0f} s", flush=True)
        return found


def _others_s() -> float:
    """Return the processor seconds that were not idle and not this process's or its ended children's."""
    machine, own = psutil.cpu_times(), os.times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    # guests are counted in user time already
    guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    return sum(machine) - idle - guests - (own.user + own.system + own.children_user + own.children_system)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    return named[1] if named else platform.machine()
