"""The words of a command that name what it runs: a package, an image, a module or a script. They are no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Programs that start a package, which is their first argument that is neither an option nor its value.
_RUNNER = re.compile(
    r"(?:.*[\\/])?(?:npx|bunx|pnpx|uvx|pipx|uv|npm|pnpm|yarn|bun)(?:\.(?:exe|cmd))?",
    re.IGNORECASE,
)
_SUBCOMMANDS = ("run", "exec", "dlx", "x", "tool")
_FLAGS = (
    *("-y", "--yes", "-q", "--quiet", "-s", "--silent", "-v", "--verbose", "--offline", "--prefer-offline", "--bun"),
    *("--no-install", "--no-cache", "--refresh", "--isolated", "--frozen", "--locked", "--no-project", "--no-sync"),
)
_VALUED = (
    *("-p", "-c", "-C", "--cache", "--call", "--cwd", "--directory", "--extra-index-url", "--filter", "--index"),
    *("--index-url", "--loglevel", "--prefix", "--project", "--python", "--registry", "--userconfig", "--workspace"),
)
_BEFORE_PACKAGE = ("--from", "--with", "--package")
_PACKAGE = re.compile(
    r"@?[a-z][\w.-]{0,60}(?:/[\w.-]{1,60})*(?:\[[\w,-]+\])?(?:(?:@|:|[=<>~!]=)[\w.-]{1,40})?", re.IGNORECASE
)
_MODULE_RUNNER = re.compile(r"(?:.*[\\/])?python[\d.]*(?:\.exe)?", re.IGNORECASE)
_MODULE = re.compile(r"[A-Za-z_][\w.]{0,60}")
_SCRIPT = re.compile(r"[\w./\\-]{1,200}\.(?:py|js|mjs|cjs|ts|sh|jar)")

_ENGINE = re.compile(r"(?:.*[\\/])?(?:docker|podman|nerdctl)(?:\.(?:exe|cmd))?", re.IGNORECASE)
_WRAPPER = re.compile(r"(?:.*[\\/])?(?:sudo|doas|env|wsl|nice|cmd)(?:\.exe)?", re.IGNORECASE)
_ENGINE_FLAGS = ("-D", "--debug", "--tls", "--tlsverify", "-r", "--remote")
# All other options of `run` have a value.
_RUN_LETTERS = "diPqt"
_RUN_FLAGS = (
    *("--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init", "--interactive"),
    *("--no-healthcheck", "--no-hostname", "--no-hosts", "--oom-kill-disable", "--passwd", "--privileged"),
    *("--publish-all", "--quiet", "--read-only", "--replace", "--rm", "--rmi", "--rootfs", "--sig-proxy"),
    *("--tls-verify", "--tty", "--unsetenv-all", "--use-api-socket"),
)
_RUN_SHOWN = (
    *("--name", "--network", "--net", "--platform", "--pull", "--entrypoint", "--hostname", "-h", "--volume", "-v"),
    *("--mount", "--publish", "-p", "--workdir", "-w", "--runtime", "--gpus", "--ip"),
)
_IMAGE = re.compile(
    r"(?:[a-z-]+://)?(?:[\w.-]+(?::\d{1,5})?/)?[\w.-]+(?:/[\w.-]+)*(?::[\w.-]{1,128})?(?:@sha256:[0-9a-f]{64})?",
    re.IGNORECASE,
)
_OFF = ("false", "0", "f")


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """The words of a command that runs a container.

    `engine` are the words before the subcommand, `at` is the number of those up to `run`, `shown` are the positions of
    words without secrets, and `options` are the names of the options that are set.
    """

    program: str
    engine: tuple[str, ...]
    at: int
    shown: frozenset[int]
    options: frozenset[str]

    @property
    def hint(self) -> str:
        """Return why the container cannot be a server over stdin and stdout, and the cure; empty if it can."""
        run = f"`{self.program} run`"
        if not self.options & {"-i", "--interactive"}:
            return f"{run} gives its program no input without `-i`: add `-i` to `args`"
        if self.options & {"-t", "--tty"}:
            return f"{run} has no terminal here: remove `-t` from `args`"
        if self.options & {"-d", "--detach"}:
            return f"{run} gives no output with `-d`: remove `-d` from `args`"
        return ""


def container_run(words: Sequence[str]) -> ContainerRun | None:
    """Return how a command runs a container, None if it does not."""
    found = (at for at, word in enumerate(words) if _ENGINE.fullmatch(word))
    start = next(found, None)
    if start is None or (start and not _WRAPPER.fullmatch(words[0])):
        return None
    at = start + 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 if "=" in words[at] or words[at] in _ENGINE_FLAGS else 2
    engine = tuple(words[:at])
    at += list(words[at : at + 1]) == ["container"]
    if list(words[at : at + 1]) != ["run"]:
        return None
    program = re.split(r"[\\/]", words[start])[-1]
    at += 1
    shown, options, image = _run_options(words, at)
    if image < len(words) and _IMAGE.fullmatch(words[image]):
        shown.add(image)
    return ContainerRun(program, engine, at, frozenset(shown), frozenset(options))


def _run_options(words: Sequence[str], at: int) -> tuple[set[int], set[str], int]:
    """Return the positions of options without secrets, the options that are set, and the position of the image."""
    shown, options = set[int](), set[str]()
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name == "--":
            return shown, options, at + 1
        if not name.startswith("--"):  # letters, of which one with a value is the last
            letters = words[at][1:]
            flags = len(letters) - len(letters.lstrip(_RUN_LETTERS))
            options |= {f"-{letter}" for letter in letters[:flags]}
            name, value = f"-{letters[flags : flags + 1]}", letters[flags + 1 :]
            equals = "=" if value or flags == len(letters) else ""
        elif name in _RUN_FLAGS:
            equals = "="
        if value.lower() not in _OFF:
            options.add(name)
        if name in _RUN_SHOWN:
            shown.add(at if equals else at + 1)
        at += 1 if equals else 2
    return shown, options, at


def packages(command: str, words: Sequence[str]) -> frozenset[int]:
    """Return the positions of the arguments that name the package, image, module or script of a command."""
    scripts = (at for at, word in enumerate(words) if _SCRIPT.fullmatch(word))
    if _MODULE_RUNNER.fullmatch(command) and list(words[:1]) == ["-m"] and _MODULE.fullmatch("".join(words[1:2])):
        return frozenset((1, *scripts))
    if run := container_run([command, *words]):
        return frozenset((*(at - 1 for at in run.shown), *scripts))
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
        elif takes_value and not word.startswith("-") and before not in _VALUED:
            return  # the word may be the package, and what follows a secret
        before = word
