"""The egress proxy of the environment for connections to MCP servers."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from shared.upstream.dial import HttpTarget
from shared.upstream.hosts import Hosts, ResolvedHost, is_loopback


def proxy_for(target: HttpTarget) -> str | None:
    """Return the proxy for this target by `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, or None.

    `NO_PROXY` may list names with their subdomains, addresses and networks. Loopback never has a proxy.
    """
    parts = urlsplit(target.url)
    host, proxies = parts.hostname or "", getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or is_loopback(host) or proxy_bypass(host):
        return None
    if _is_in_networks(host, target, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_networks(host: str, target: HttpTarget, no_proxy: str) -> bool:
    try:
        known = tuple(map(ipaddress.ip_address, target.addresses or (host,)))
    except ValueError:  # the operator's server has a name, which the proxy resolves
        return False
    parts = urlsplit(target.url)
    resolved = ResolvedHost(host, known, parts.scheme, parts.port or 0)
    return Hosts([entry.strip() for entry in no_proxy.split(",")]).contains(resolved)
