"""Protects the secrets of this process from other processes of its user, such as stdio servers."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path

_PR_SET_DUMPABLE = 4
_SECRETS = frozenset(
    {
        "REDIS_URL",
        "REDIS_PASSWORD",
        "QDRANT_API_KEY",
        "CURSOR_KEY",
        "EVENTS_TOKEN",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    }
)
_PREFIX = "TOOLSCALE_"
_CREDENTIALS = "TOOLSCALE_CREDENTIAL_"

_INIT = Path(__file__).with_name("init.py")

_withheld: dict[str, str] = {}


def protect_memory() -> None:
    """Make the memory and the environment of this process, and of its forks, unreadable for its user; Linux only.

    The kernel then also writes no core dump, and lets no debugger of this user attach.
    In process 1 of a container, this function returns in a child, and process 1 becomes `shared.service.init`.

    Raises:
        OSError: the kernel refused.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the memory of this process cannot be protected")
    if os.getpid() == 1:
        _continue_in_child()


def _continue_in_child() -> None:
    from shared.service.init import FORWARDED  # noqa: PLC0415  # Windows has not all of these signals

    # blocked signals wait, also during `execve`, until process 1 forwards them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    if service := os.fork():
        os.execve(sys.executable, [sys.executable, "-I", "-S", str(_INIT), str(service)], {})  # noqa: S606  # a shell would have nothing to add
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def withhold_secrets() -> None:
    """Move the secrets of Toolscale out of `os.environ`, which child processes inherit, after the settings were read.

    The kernel's copy of the first environment stays; `protect_memory` protects it.
    """
    for name in [name for name in os.environ if _is_secret(name.upper())]:
        _withheld[name] = os.environ.pop(name)


def full_environment() -> Mapping[str, str]:
    """Return the environment with the withheld secrets, for credentials and for `${NAME}` in an `mcp.json`."""
    return ChainMap(_withheld, os.environ)


def _is_secret(name: str) -> bool:
    return name.removeprefix(_PREFIX) in _SECRETS or name.startswith(_CREDENTIALS)
