"""The request for the index version of the settings, made when a worker starts."""

from __future__ import annotations

import threading

import structlog

from shared.errors import IndexUnavailable, ModelUnavailable
from shared.index.versions import IndexVersions

_log = structlog.get_logger()


class ModelRollout:
    """Requests the index version of the settings. Safe to call from several threads."""

    def __init__(self, versions: IndexVersions) -> None:
        self._versions = versions
        self._requesting = threading.Lock()
        self._requested = False
        self._last_reason = ""

    def request_once(self) -> None:
        """Request the version once per process; if its model cannot be loaded, log it and try again later.

        Returns at once while another thread is requesting, since loading may include a download.
        """
        if self._requested or not self._requesting.acquire(blocking=False):
            return
        try:
            self._request()
        except (IndexUnavailable, ModelUnavailable) as error:
            self._warn_once(str(error))
        finally:
            self._requesting.release()

    def _request(self) -> None:
        own, store = self._versions.own, self._versions.store
        stored = store.versions()
        if stored.active and stored.requested != own:
            if stored.active != own:
                self._versions.embedder(own.model).query("ready")
            store.request_version(own)
            _log.info("index_version_requested", model=own.model, collection=own.name, active=stored.active.name)
        self._requested = stored.active is not None

    def _warn_once(self, reason: str) -> None:
        if reason != self._last_reason:
            _log.warning("index_version_request_failed", model=self._versions.own.model, reason=reason)
            self._last_reason = reason
