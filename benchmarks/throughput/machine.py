"""Where a run took place, and what else ran there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

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

# How long the machine is watched before a subject, while this run does nothing.
WATCH_S = 0.5


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
    """What the machine was doing just before a subject was measured, this run being idle."""

    model_config = ConfigDict(frozen=True)

    subject: str
    load_1m: float
    """Load average of the last minute; it includes what this run did in it."""
    busy_percent: float
    """Processor time used by others, of all cores together."""


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


def conditions(subject: str) -> Conditions:
    """Watch the machine for half a second."""
    busy = psutil.cpu_percent(interval=WATCH_S)
    return Conditions(subject=subject, load_1m=round(os.getloadavg()[0], 2), busy_percent=busy)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    return named[1] if named else platform.machine()
