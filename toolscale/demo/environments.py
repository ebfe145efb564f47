"""Isolated environments for third-party servers, installed from lock files with hashes."""

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
    """Programs in one directory below the target directory."""

    @property
    def name(self) -> str:
        """Return the directory's name."""
        ...

    def programs(self, target_dir: Path) -> Path:
        """Return the absolute directory that holds the installed programs."""
        ...

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether the installation of this lock file is complete."""
        ...

    def install(self, target_dir: Path) -> None:
        """Install from scratch, replacing an earlier installation.

        Raises:
            Retryable: the installer failed; the message ends with its output.
            Permanent: the installer is missing on this machine.
        """
        ...


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A virtual environment, installed by uv if present, else by venv and pip."""

    name: str
    lock: Path

    def programs(self, target_dir: Path) -> Path:
        """Return the environment's `bin`."""
        return target_dir.resolve() / self.name / "bin"

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether the installation is complete and its lock file unchanged."""
        return _is_complete(target_dir.resolve() / self.name, [self.lock])

    def install(self, target_dir: Path) -> None:
        """Create a new virtual environment and install the lock file into it."""
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
        """Return `node_modules/.bin`."""
        return target_dir.resolve() / self.name / "node_modules" / ".bin"

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether Node.js exists, the installation is complete and its lock file unchanged."""
        return shutil.which("node") is not None and _is_complete(target_dir.resolve() / self.name, [self.lock])

    def install(self, target_dir: Path) -> None:
        """Copy the package and lock files and install them without running package scripts."""
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise Permanent("Node.js and npm are not installed")
        directory = _emptied(target_dir.resolve() / self.name)
        for file in (self.package, self.lock):
            shutil.copy(file, directory)
        run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], directory)
        _complete(directory, [self.lock])


# --no-deps: a lock file has all packages, and pip would also ask for a pin of each extra
def _uv(directory: Path, lock: Path) -> list[list[str]]:
    python = str(directory / "bin" / "python")
    return [
        ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(directory)],
        ["uv", "pip", "install", "--quiet", "--python", python, "--no-deps", "--require-hashes", "-r", str(lock)],
    ]


def _pip(directory: Path, lock: Path) -> list[list[str]]:
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [
        [sys.executable, "-m", "venv", str(directory)],
        # compiling takes longer than installing, and a server imports few modules
        [*pip, "--no-compile", "--no-deps", "--require-hashes", "-r", str(lock)],
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
    """Return a digest of the lock files, the Python version and the path: programs contain absolute paths."""
    material = [*(source.read_bytes() for source in sources), sys.version.encode(), str(directory).encode()]
    return hashlib.sha256(b"\0".join(material)).hexdigest()


TIMEOUT_S = 300

# Installers print the reason on several lines.
SHOWN_CHARACTERS = 600


def run(command: Sequence[str], cwd: Path) -> None:
    """Run the program to its end without showing its output.

    Raises:
        Retryable: it failed, or exceeded TIMEOUT_S; the message ends with its last lines.
        Permanent: it cannot be started.
    """
    try:
        subprocess.run(  # noqa: S603  # programs and paths are fixed
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
    """Return `directory` with a `files` directory and, if git is installed, a `repository`.

    Existing files stay unchanged.
    """
    (directory / "files").mkdir(parents=True, exist_ok=True)
    git = shutil.which("git")
    if git and not (directory / "repository" / ".git").exists():
        run([git, "init", "--quiet", "repository"], directory)
    return directory
