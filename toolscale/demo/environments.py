"""Environments of their own for third-party servers, installed from lock files with hashes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shared.errors import Permanent, Retryable


class Environment(Protocol):
    """Programs that are installed together into one directory below the target directory."""

    @property
    def name(self) -> str:
        """Return the directory's name."""
        ...

    def programs(self, target_dir: Path) -> Path:
        """Return the absolute directory that holds the installed programs."""
        ...

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether exactly what the lock file says was installed there, to the end."""
        ...

    def install(self, target_dir: Path) -> None:
        """Install from scratch, replacing what is there.

        Raises:
            Retryable: the installer failed; its last line is the reason.
            Permanent: there is no such installer on this machine.
        """
        ...


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A virtual environment; by uv where it is installed, since it is fast, else by venv and pip."""

    name: str
    lock: Path

    def programs(self, target_dir: Path) -> Path:
        """Return the environment's `bin`."""
        return target_dir.resolve() / self.name / "bin"

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether the installation ended and its lock file is still the same."""
        return _is_complete(target_dir.resolve() / self.name, [self.lock])

    def install(self, target_dir: Path) -> None:
        """Make the virtual environment anew and install the lock file into it."""
        directory = _emptied(target_dir.resolve() / self.name)
        for command in _uv(directory, self.lock) if shutil.which("uv") else _pip(directory, self.lock):
            run(command, directory.parent)
        _complete(directory, [self.lock])


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """A directory with npm packages, installed by `npm ci`."""

    name: str
    package: Path
    lock: Path

    def programs(self, target_dir: Path) -> Path:
        """Return the directory of the packages' programs."""
        return target_dir.resolve() / self.name / "node_modules" / ".bin"

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether the installation ended, its lock file is the same, and Node.js is still there."""
        return shutil.which("node") is not None and _is_complete(target_dir.resolve() / self.name, [self.lock])

    def install(self, target_dir: Path) -> None:
        """Copy the package and lock files and install them, without running any package's scripts."""
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise Permanent("Node.js and npm are not installed")
        directory = _emptied(target_dir.resolve() / self.name)
        for file in (self.package, self.lock):
            shutil.copy(file, directory)
        run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], directory)
        _complete(directory, [self.lock])


def _uv(directory: Path, lock: Path) -> list[list[str]]:
    python = str(directory / "bin" / "python")
    return [
        ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(directory)],
        ["uv", "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", str(lock)],
    ]


def _pip(directory: Path, lock: Path) -> list[list[str]]:
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    return [
        [sys.executable, "-m", "venv", str(directory)],
        # compiling everything takes longer than installing it, and a server imports little of it
        [*pip, "install", "--no-compile", "--require-hashes", "-r", str(lock)],
    ]


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _is_complete(directory: Path, sources: Sequence[Path]) -> bool:
    stamp = directory / ".complete"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _fingerprint(directory, sources)


def _complete(directory: Path, sources: Sequence[Path]) -> None:
    (directory / ".complete").write_text(_fingerprint(directory, sources), encoding="utf-8")


def _fingerprint(directory: Path, sources: Sequence[Path]) -> str:
    """Return a digest of what is installed, by which Python, and where: programs carry absolute paths."""
    material = [*(source.read_bytes() for source in sources), sys.version.encode(), str(directory).encode()]
    return hashlib.sha256(b"\0".join(material)).hexdigest()


TIMEOUT_S = 300

# Installers spread their reason over several lines, and the last one alone seldom says it.
SHOWN_CHARACTERS = 600


def run(command: Sequence[str], cwd: Path) -> None:
    """Return when the program ended well; its output is not shown.

    Raises:
        Retryable: it failed, or did not end within TIMEOUT_S; the message ends with its own last lines.
        Permanent: it cannot be started.
    """
    try:
        subprocess.run(  # noqa: S603  # fixed programs and paths of our own
            command, cwd=cwd, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise Retryable(f"{_shown(command)} failed: {error.stderr.strip()[-SHOWN_CHARACTERS:]}") from error
    except subprocess.TimeoutExpired as error:
        raise Retryable(f"{_shown(command)} did not end within {TIMEOUT_S} s") from error
    except OSError as error:
        raise Permanent(f"{_shown(command)} cannot be started: {error}") from error


def _shown(command: Sequence[str]) -> str:
    return f"{Path(command[0]).name} {' '.join(command[1:4])}"


def prepare_scratch(directory: Path) -> Path:
    """Return `directory` with a `files` directory and, where git is installed, a `repository` in it.

    What is there already stays as it is.
    """
    (directory / "files").mkdir(parents=True, exist_ok=True)
    git = shutil.which("git")
    if git and not (directory / "repository" / ".git").exists():
        run([git, "init", "--quiet", "repository"], directory)
    return directory
