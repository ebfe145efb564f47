"""The parts of a command that name a program, a package or an image: these are no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Programs that start a package or an image, which is their first argument that is neither an option nor its value.
_RUNNER = re.compile(
    r"(?:.*[\\/])?(?:npx|bunx|pnpx|uvx|pipx|uv|npm|pnpm|yarn|bun|docker|podman|nerdctl)(?:\.(?:exe|cmd))?",
    re.IGNORECASE,
)
_SUBCOMMANDS = ("run", "exec", "dlx", "x", "tool", "container")
_FLAGS = ("-y", "--yes", "-q", "--quiet", "-i", "-t", "-it", "-ti", "-d", "--rm", "--init", "--interactive", "--tty")
_BEFORE_PACKAGE = ("--from", "--with", "--package")
_PACKAGE = re.compile(
    r"@?[a-z][\w.-]{0,60}(?:/[\w.-]{1,60})*(?:\[[\w,-]+\])?(?:(?:@|:|[=<>~!]=)[\w.-]{1,40})?", re.IGNORECASE
)
_MODULE_RUNNER = re.compile(r"(?:.*[\\/])?python[\d.]*(?:\.exe)?", re.IGNORECASE)
_MODULE = re.compile(r"[A-Za-z_][\w.]{0,60}")
_SCRIPT = re.compile(r"[\w./\\-]{1,200}\.(?:py|js|mjs|cjs|ts|sh|jar)")
_PATH = re.compile(r"([~.]{0,2}[\\/]|[A-Za-z]:).*")


def program_of(command: str) -> str:
    """Return the program at the beginning of a command, which may hold arguments too."""
    return command.partition(" -")[0] if _PATH.fullmatch(command) else command.partition(" ")[0]


def packages(command: str, words: Sequence[str]) -> frozenset[int]:
    """Return the positions of the arguments that name the package, image, module or script of a command."""
    scripts = (at for at, word in enumerate(words) if _SCRIPT.fullmatch(word))
    if _MODULE_RUNNER.fullmatch(command) and words[:1] == ["-m"] and _MODULE.fullmatch("".join(words[1:2])):
        return frozenset((1, *scripts))
    return frozenset((*(_packages(words) if _RUNNER.fullmatch(command) else ()), *scripts))


def _packages(words: Sequence[str]) -> Iterator[int]:
    before = ""
    for at, word in enumerate(words):
        takes_value = before.startswith("-") and "=" not in before and before not in _FLAGS
        if before in _BEFORE_PACKAGE or not (takes_value or word.startswith("-") or word in _SUBCOMMANDS):
            if _PACKAGE.fullmatch(word):
                yield at
            if before not in _BEFORE_PACKAGE:
                return
        before = word
