"""The model of this process's settings, asked for once: the worker that started last decides."""

from __future__ import annotations

import threading

import structlog

from shared.editions import Editions
from shared.errors import IndexUnavailable, ModelUnavailable

_log = structlog.get_logger()


class OwnModel:
    """Asks for the edition of the settings to be made and put into service. Safe to call from several threads."""

    def __init__(self, editions: Editions) -> None:
        self._editions = editions
        self._asking = threading.Lock()
        self._asked = False
        self._last_reason = ""

    def ask_once(self) -> None:
        """Ask unless this process did; a model that cannot be loaded is not asked for, and tried again later.

        Returns at once while another thread is asking, since loading may mean to download.
        """
        if self._asked or not self._asking.acquire(blocking=False):
            return
        try:
            self._ask()
        except (IndexUnavailable, ModelUnavailable) as error:
            self._tell(str(error))
        finally:
            self._asking.release()

    def _ask(self) -> None:
        own, store = self._editions.own, self._editions.store
        service = store.service()
        if service.edition and service.wanted != own:
            if service.edition != own:
                self._editions.embedder(own.model).query("ready")
            store.want(own)
            _log.info("edition_wanted", model=own.model, collection=own.name, in_service=service.edition.name)
        self._asked = service.edition is not None

    def _tell(self, reason: str) -> None:
        if reason != self._last_reason:
            _log.warning("edition_not_wanted", model=self._editions.own.model, reason=reason)
            self._last_reason = reason
