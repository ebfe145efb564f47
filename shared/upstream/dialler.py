"""How a process reaches servers as its operator allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shared.upstream.config_file import ConfigFile
from shared.upstream.dial import Configured, Dialler

if TYPE_CHECKING:
    from shared.settings import Settings


def operators_dialler(settings: Settings, environ: Mapping[str, str], configured: Configured | None = None) -> Dialler:
    """Return the dialler of these settings, with these servers of the operator's own or those of its file.

    The file is asked each time, so that a changed command or header is used by the next connection.
    """
    if configured is None:
        configured = ConfigFile(settings.config, environ) if settings.config else {}
    return Dialler(
        configured,
        settings.allowed_hosts,
        settings.credentials_dir,
        environ,
        credentials_hosts=settings.credentials_hosts,
    )
