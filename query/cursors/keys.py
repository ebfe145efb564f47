"""The keys that seal cursors: the operator's, or a generated one, which the data directory keeps."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from query.cursors.sealing import KEY_BYTES
from shared.errors import ConfigInvalid
from shared.service.files import make_private_directory, write_private

if TYPE_CHECKING:
    from shared.settings import Settings

KEY_FILE = "cursor.key"

_log = structlog.get_logger()


def cursor_keys(settings: Settings) -> list[bytes]:
    """Return the keys; the first one seals.

    Raises:
        ConfigInvalid: the key file cannot be read or written.
    """
    if settings.cursor_key:
        return [_derived(secret) for secret in settings.cursor_key.split(",")]
    if settings.is_embedded:
        return [_derived(_kept_secret(settings.data_dir / KEY_FILE))]
    _log.info("cursor_key_missing")  # of no consequence to a single query service
    return [secrets.token_bytes(KEY_BYTES)]


def _derived(secret: str) -> bytes:
    derivation = HKDF(hashes.SHA512(), KEY_BYTES, salt=None, info=b"toolscale cursors")
    return derivation.derive(secret.strip().encode())


def _kept_secret(path: Path) -> str:
    """Return the secret in this file; create the file if missing, readable only by its owner."""
    try:
        return path.read_text(encoding="ascii") if path.exists() else _new_secret(path)
    except (OSError, UnicodeError) as error:
        raise ConfigInvalid(f"the key of the cursors, {path}: {error}") from error


def _new_secret(path: Path) -> str:
    secret = secrets.token_hex(KEY_BYTES)
    make_private_directory(path.parent)
    write_private(path, secret)
    return secret
