"""The variables that a child process inherits: those that it needs to run and to install itself, and no credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BASIC = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"})
_LOCALE = frozenset({"LANG", "LANGUAGE", "TZ"})
_DIRECTORIES = frozenset({"TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"})
_CERTIFICATES = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"}
)
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY"})
_PACKAGE_MANAGERS = ("UV_", "PIP_", "NPM_CONFIG_")

_PLAIN = _BASIC | _LOCALE | _DIRECTORIES | _CERTIFICATES
_SECRET = re.compile(r"AUTH|TOKEN|PASSW|SECRET|CREDENTIAL|USERNAME|(?:^|_)(?:KEY|OTP)$")


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this environment that a child process gets, as docs/operations.md lists them."""
    return {name: value for name, value in environ.items() if _is_inherited(name, value)}


def _is_inherited(name: str, value: str) -> bool:
    if value.startswith("()"):
        return False  # a function of the shell
    if name in _PLAIN or name.startswith("LC_"):
        return True
    upper = name.upper()  # proxies and the settings of npm also have names in lower case
    is_of_network = upper in _PROXIES or upper.startswith(_PACKAGE_MANAGERS)
    # a URL with a user or a query may contain a password or a token
    return is_of_network and not _SECRET.search(upper) and not {"@", "?"} & set(value)
