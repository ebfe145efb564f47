"""The container of an entry that runs `docker run`: it may outlive the client that runs it, and then ends here.

A program that does not end with its input, and ignores SIGTERM as the first process of a container does, stays when its
client is killed. The engine writes its id into a file. Labels find it without that, and what a killed process of
Toolscale left.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from shared.service.files import write_private

if TYPE_CHECKING:
    from shared.upstream.commands import ContainerRun
    from shared.upstream.target import StdioTarget

LABEL, CHILD_LABEL = "toolscale", "toolscale.child"
ENGINE_S = 10.0
"""Seconds for a command to the engine, besides those that a container has to end."""
_ID_FILE = "containers.id"

_swept: set[tuple[str, ...]] = set()
_sweeping = threading.Lock()

_log = structlog.get_logger()


class Container:
    """The container that a child with this mark runs, of the data directory with these logs."""

    def __init__(self, run: ContainerRun, target: StdioTarget, mark: str, env: Mapping[str, str]) -> None:
        self._run, self._target, self._env = run, target, env
        self._mark = mark.rstrip(".")
        self._files = Path(tempfile.mkdtemp(prefix="toolscale-"))
        self._owner = _owner(target.log.parent) if target.log else self._mark

    @property
    def command(self) -> list[str]:
        """Return the command that runs the container."""
        words = [self._target.command, *self._target.args]
        labels = ["--label", f"{LABEL}={self._owner}", "--label", f"{CHILD_LABEL}={self._mark}"]
        id_file = [] if "--cidfile" in self._run.options else ["--cidfile", str(self._files / "id")]
        return [*words[: self._run.at], *id_file, *labels, *words[self._run.at :]]

    async def sweep(self) -> None:
        """End what a killed process of this data directory left; once, before the first start of this process."""
        key = (self._owner, *self._run.engine)
        if self._target.log and key not in _swept:
            await anyio.to_thread.run_sync(_sweeping.acquire)  # others start after it: they would lose their containers
            try:
                if key not in _swept:
                    await self._remove(await self._labelled(LABEL, self._owner))
                _swept.add(key)
            finally:
                _sweeping.release()

    async def stop(self, seconds: float) -> None:
        """Ask the container to end, for so many seconds before the engine kills it."""
        if found := await self._ids():
            await self._engine("stop", "-t", str(round(seconds)), *found, within_s=seconds + ENGINE_S)

    async def remove(self) -> None:
        """Remove the container, whatever its state: another one may have its name."""
        await self._remove(await self._ids())
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._files, ignore_errors=True))

    async def _ids(self) -> list[str]:
        try:
            return (self._files / "id").read_text().split()
        except OSError:
            return await self._labelled(CHILD_LABEL, self._mark)

    async def _labelled(self, label: str, value: str) -> list[str]:
        return (await self._engine("ps", "-aq", "--filter", f"label={label}={value}")).split()

    async def _remove(self, ids: Sequence[str]) -> None:
        if ids:
            await self._engine("rm", "-f", *ids)

    async def _engine(self, *words: str, within_s: float = ENGINE_S) -> str:
        """Return the output of a command of the engine, empty if it fails."""
        with anyio.move_on_after(within_s):
            try:
                done = await anyio.run_process(
                    [*self._run.engine, *words], check=False, env=self._env, cwd=self._target.cwd
                )
            except OSError:
                return ""
            return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
        _log.warning("container_engine_silent", program=self._run.program, command=words[0], after_s=within_s)
        return ""


def _owner(logs: Path) -> str:
    """Return the id of a data directory by which its containers are found after a kill."""
    file = logs.parent / _ID_FILE
    if not file.exists():
        write_private(file, secrets.token_hex(8))
    return file.read_text().strip()
