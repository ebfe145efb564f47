"""Detection of entries for Toolscale itself, whose import would index its own tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import urlsplit

from shared.settings import Settings
from shared.upstream.target import StdioTarget, Target

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal")  # noqa: S104  # compared, not bound
_PROGRAM = re.compile(r"toolscale(\.exe)?([\[=<>~!:@].*)?", re.IGNORECASE)
_NAME = "toolscale"

Address = tuple[str, int]


def is_own_endpoint(server_id: str, target: Target, settings: Settings) -> bool:
    """Return whether an entry is Toolscale: by its name, its command or its address."""
    if server_id.lower() == _NAME or (isinstance(target, StdioTarget) and _starts_toolscale(target)):
        return True
    own = set(_own_addresses(settings))
    return any(address in own or _NAME in address[0].split(".") for address in _addresses(target))


def _starts_toolscale(target: StdioTarget) -> bool:
    words = [word for text in (target.command, *target.args) for word in text.split()]
    programs = [at for at, word in enumerate(words) if _PROGRAM.fullmatch(re.split(r"[\\/]", word)[-1])]
    if programs and "serve" in words[programs[0] + 1 :]:
        return True
    return ("-m", "query") in pairwise(words) and "--stdio" in words


def _own_addresses(settings: Settings) -> Iterator[Address]:
    for host in (*_LOOPBACK, settings.host, *settings.allowed_http_hosts):
        yield host.lower(), settings.port
    if settings.public_url and (address := _address(settings.public_url)):
        yield address


def _addresses(target: Target) -> Iterator[Address]:
    """Yield the addresses of a target, also URLs among the arguments of a bridge."""
    texts = [word for text in target.args for word in text.split()] if isinstance(target, StdioTarget) else [target.url]
    for text in texts:
        if address := _address(text):
            yield address


def _address(url: str) -> Address | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.hostname.lower(), port or (443 if parts.scheme == "https" else 80)
