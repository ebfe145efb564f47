"""A process that reads an access token once: `python -m tests.support.refreshing DIRECTORY URL CALLER`."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from shared.upstream.oauth import OAuthServer
from shared.upstream.sign_ins import SecretKey, SignIns, SqliteEntries
from shared.upstream.target import HttpTarget
from shared.upstream.tokens import AccessTokens


def main(directory: str, url: str, caller: str) -> None:
    """Print the access token, or none, after the log."""
    place = Path(directory)
    sign_ins = SignIns(SqliteEntries(place / "sign-ins.sqlite3"), SecretKey(None, place / "secret.key"))
    token = anyio.run(AccessTokens(sign_ins, OAuthServer("srv", url, HttpTarget), caller).current)
    sys.stdout.write(f"token: {token or ''}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
