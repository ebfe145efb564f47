"""The target of a connection, the reasons why its program cannot be started, and its credentials.

Messages about a server must not contain its credentials.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from shared.upstream.commands import packages

if TYPE_CHECKING:
    from shared.upstream.tokens import AccessTokens

SHORTEST = 8
"""Minimum characters of a credential; hiding shorter values would make messages unreadable."""

SENDABLE = re.compile(r"([!-~]([ -~]*[!-~])?)?")
"""The value of a header that can be sent."""
NOT_SENDABLE = "expected ASCII characters on one line; a variable in it may be empty, or hold more than the value"

PROJECT = "${workspaceFolder}"
"""The variable of Cursor and VS Code for the directory that a client works in."""

STDIO_START_TIMEOUT_S = 300.0
"""Until a stdio server's first message, unless its last start succeeded: `npx` and `uvx` install packages first."""

_CREDENTIAL_NAME = re.compile(
    r"key(?!w|b)|token(?!i)|secret|passw|pwd|auth(?!or(?!i))|credential|cookie", re.IGNORECASE
)
_RELATIVE = ("./", "../", ".\\", "..\\")
_PATH = re.compile(r"(~|\.{1,2})?/[^\s:]*")
_PLAIN_NAME = re.compile(r"@?[a-z]+([-_./@][a-z]+)*")
_USER_PASSWORD = re.compile(r"[^\s:/]:([^\s:@/]+)@")  # also without a scheme, as in the name of an image
_SIMILAR = 0.8
# A near name would be that of another program, but for a version, as in python3.
_WELL_KNOWN = re.compile(
    r"docker|podman|nerdctl|npx|npm|pnpm|pnpx|yarn|bunx?|deno|node|uvx?|pipx|python\d*|java|dotnet|go|cargo|ruby|php",
)


@dataclass(frozen=True, slots=True)
class StdioTarget:
    """A server that is a child process, with the variables that children inherit and `env`.

    `entry` is the target as it was before it was set in a project.
    `log` is the file for the child's stderr, if it is kept. A process belongs to its `owner`; callers share it if that
    is empty.
    """

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    log: Path | None = field(default=None, compare=False, repr=False)
    owner: str = ""
    entry: StdioTarget | None = field(default=None, compare=False, repr=False)

    @property
    def depends_on_project(self) -> bool:
        """Return whether it has the variable of the client's project, or a path that is relative to it."""
        texts = (self.command, *self.args, *self.env.values(), self.cwd or "")
        if any(PROJECT in text for text in texts):
            return True
        if self.cwd is not None:
            return not Path(self.cwd).is_absolute()
        return any(text.startswith(_RELATIVE) for text in (self.command, *self.args))

    def in_project(self, directory: str) -> StdioTarget:
        """Return the target with its variable replaced, and its paths relative to this directory."""

        def replaced(text: str) -> str:
            return text.replace(PROJECT, directory)

        return replace(
            self,
            command=replaced(self.command),
            args=tuple(map(replaced, self.args)),
            env={name: replaced(value) for name, value in self.env.items()},
            cwd=str(Path(directory, replaced(self.cwd or ""))),
            entry=self,
        )


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server behind a URL. Connections use only `addresses`, if given, in their order.

    With `tokens`, each request carries an access token of the sign-in `identity`. The credentials are those of the
    `owner`: of the service, and of all callers, if it is empty. With `is_shareable`, only the tokens are the owner's.
    """

    url: str = field(repr=False)
    transport: Literal["streamable-http", "sse"] = "streamable-http"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    addresses: tuple[str, ...] = ()
    owner: str = ""
    identity: str = ""
    is_shareable: bool = False
    tokens: AccessTokens | None = field(default=None, compare=False, repr=False)

    @property
    def shared(self) -> HttpTarget:
        """Return the target of a connection that callers share: each call brings its own tokens, if it can."""
        return replace(self, owner="", identity="") if self.is_shareable else self


Target = StdioTarget | HttpTarget


class ProgramProblem(NamedTuple):
    """A reason and its repair."""

    reason: str
    repair: str


def start_problem(error: OSError) -> str:
    """Return the reason for a failed start of a program, and the repair."""
    if isinstance(error.filename, str) and error.errno in (errno.ENOENT, errno.EACCES):
        return "; ".join(program_problem(error.filename))
    return error.strerror or type(error).__name__


def program_problem(name: str, path: str | None = None) -> ProgramProblem:
    """Return why this program cannot be started, with similar names on `path`, by default this process's PATH."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    first, _, arguments = name.partition(" ")
    if arguments and shutil.which(first, path=path):
        return ProgramProblem(f"there is no program {name!r}", f"write {first!r} as `command`, and the rest as `args`")
    if Path(name).exists() and not os.access(name, os.X_OK):
        return ProgramProblem(f"{name} is not executable", f"run `chmod +x {name}`, or name its interpreter")
    if Path(name).is_file():
        return ProgramProblem(f"{name} cannot be started", "install the interpreter in its first line")
    if os.sep in name:
        return ProgramProblem(f"{name} does not exist", "install it, or correct the path")
    near, cutoff = sorted(set(_programs(path)) - {name}), _SIMILAR
    if _WELL_KNOWN.fullmatch(name):
        near, cutoff = [other for other in near if re.fullmatch(rf"{name}[\d.]+|{name}js", other)], 0.0
    similar = get_close_matches(name, near, n=2, cutoff=cutoff)
    repair = f"did you mean {' or '.join(similar)}?" if similar else "install it, or write its absolute path"
    return ProgramProblem(f"there is no program {name!r} in its PATH", repair)


def secrets_of(target: Target) -> tuple[str, ...]:
    """Return the credentials among the target's headers, variables, arguments and URLs, the longest first."""
    if isinstance(target, HttpTarget):
        return _longest_first([*target.headers.values(), *_in_url(target.url)])
    values: list[str] = []
    shown = packages(target.command, target.args)
    words = [word for at, text in enumerate(target.args) for word in ([""] if at in shown else text.split())]
    for value in (*target.env.values(), *_in_words(words)):
        if not _PATH.fullmatch(value):
            values += (value, *_in_url(value))
    return _longest_first(values)


def credentials_of(target: Target) -> tuple[str, ...]:
    """Return the values that are credentials by the name of their header, variable, option or parameter.

    Unlike `secrets_of`, it leaves out values that may be ordinary data, such as the name of a database.
    """
    if isinstance(target, HttpTarget):
        named = [*target.headers.items(), *_named_in_url(target.url)]
    else:
        named = list(target.env.items())
        for before, argument in pairwise(("", *target.args)):
            name, equals, value = argument.partition("=")
            is_option = before.startswith("-") and "=" not in before
            named.append((name, value) if equals else (before if is_option else "", argument))
        for text in (*target.env.values(), *target.args):
            named += _named_in_url(text)
    return _longest_first(value for name, value in named if _CREDENTIAL_NAME.search(name))


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    # with and without `Bearer`; a server may write the lines of a key with other line ends
    parts = {part for value in values for part in (value, value.rpartition(" ")[2], *value.splitlines())}
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True))


def _named_in_url(text: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return  # not a URL
    if parts.scheme and parts.netloc:
        yield from parse_qsl(parts.query)
        yield "password", unquote(parts.password or "")


def _in_words(words: Iterable[str]) -> Iterator[str]:
    """Yield possible credentials: the values of long options, and words that are not plain names."""
    for before, word in pairwise(("", *words)):
        if word.startswith("-"):
            yield word.partition("=")[2]
        elif before.startswith("--") or not _PLAIN_NAME.fullmatch(word):
            yield word
            yield from _USER_PASSWORD.findall(word)


def _in_url(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return  # not a URL
    if parts.scheme and parts.netloc:
        yield from (value for _, value in parse_qsl(parts.query))
        yield from (parts.username or "", parts.password or "")


def _programs(path: str) -> Iterator[str]:
    for directory in os.get_exec_path({"PATH": path}):
        try:
            with os.scandir(directory) as entries:
                yield from (entry.name for entry in entries if os.access(entry, os.X_OK) and not entry.is_dir())
        except OSError:  # PATH often names missing directories
            continue
