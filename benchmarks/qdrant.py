"""The Qdrant server at QDRANT_URL while a benchmark uses it: its process, its storage, and its optimizers."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import psutil

from benchmarks.throughput.machine import processor_s

GREEN_WITHIN_S = 1_800.0
POLL_S = 0.5


def server_process(url: str) -> psutil.Process:
    """Return the process that listens at this address of this machine.

    Raises:
        SystemExit: no process of this machine does.
    """
    port = urlsplit(url).port
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1] == port and connection.pid:  # type: ignore[misc]
            return psutil.Process(connection.pid)
    raise SystemExit(f"no process of this machine listens at {url}")


def server_cpu_s(url: str | None) -> float:
    """Return the processor seconds of the server since its start; 0 without a server."""
    return processor_s(server_process(url)) if url else 0.0


def storage_directory(url: str) -> Path:
    """Return the directory of the server's collections, from its environment."""
    process = server_process(url)
    return Path(process.cwd()) / process.environ().get("QDRANT__STORAGE__STORAGE_PATH", "storage")


def wait_until_indexed(url: str) -> None:
    """Return when the optimizers of all collections are idle."""
    for collection in read(url, "/collections")["result"]["collections"]:
        indexed_vectors(url, str(collection["name"]))


def indexed_vectors(url: str, collection: str) -> int:
    """Wait until the optimizers of this collection are idle; return the number of vectors in a graph.

    Raises:
        SystemExit: they are not idle within half an hour.
    """
    deadline = time.monotonic() + GREEN_WITHIN_S
    while time.monotonic() < deadline:
        state = read(url, f"/collections/{quote(collection)}")["result"]
        if state["status"] == "green":
            return int(state["indexed_vectors_count"])
        time.sleep(POLL_S)
    raise SystemExit(f"{collection} is not green after {GREEN_WITHIN_S:g} s")


def read(url: str, path: str) -> dict[str, Any]:
    """Return the JSON at this path of the server."""
    with urllib.request.urlopen(url + path, timeout=60) as response:
        return cast("dict[str, Any]", json.load(response))
