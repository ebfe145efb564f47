"""What a worker opens does not wait for what does not answer."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from shared.errors import IndexUnavailable
from shared.settings import load_settings
from workers.dependencies import LazyDependencies

pytestmark = pytest.mark.process


def test_intents_are_open_while_the_index_accepts_connections_without_answering(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(2) as threads:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        settings = load_settings(data_dir=tmp_path, redis_url=None, qdrant_url=f"http://127.0.0.1:{port}")
        opened = LazyDependencies(settings)
        looking = threads.submit(opened.dependencies)
        with closing(silent.accept()[0]):
            recording = threads.submit(opened.intents)
            found = recording.result(timeout=60)

            assert not looking.done()
            assert found.intent("docs") is None
        assert isinstance(looking.exception(timeout=60), IndexUnavailable)
        opened.close()
