from __future__ import annotations

import gc

import pytest

from shared.service.process import imported_at_once


def test_collections_begin_again_after_the_block() -> None:
    with imported_at_once():
        assert not gc.isenabled()

    assert gc.isenabled()


def test_collections_begin_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), imported_at_once():
        raise ImportError

    assert gc.isenabled()
