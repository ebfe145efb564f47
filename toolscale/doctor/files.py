"""Checks of the settings and of the files that they name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from query.auth.tokens import read_tokens
from query.policy import read_policy
from shared.errors import ConfigInvalid, FollowedConfigUnavailable
from shared.service.token_file import read_token_file
from shared.settings import Settings, removed_settings
from shared.upstream.followed_config import FollowedConfig, read_followed_config
from shared.upstream.mcp_json import Config, read_config
from shared.upstream.target import StdioTarget, credentials_of, program_problem
from toolscale.doctor.finding import Finding, ok, problem, warning
from toolscale.doctor.setting_names import misspelt_settings
from toolscale.importing.target import FILE_NAME
from workers.events_api.producers import ProducerRights

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Check that the settings fit together."""
    if settings.redis_url and not settings.qdrant_url:
        advice = "set QDRANT_URL, or run only one Toolscale process with this Redis"
        yield warning("settings", "REDIS_URL without QDRANT_URL: only one process can open the index", advice)
    elif settings.qdrant_url and not settings.redis_url:
        yield ok("settings", "embedded, with a Qdrant server")
    else:
        yield ok("settings", "services (REDIS_URL, QDRANT_URL)" if settings.redis_url else "embedded, in one process")


def check_names(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check for settings that are misspelt, or of an earlier release: they have no effect."""
    for name, instead in removed_settings(environment).items():
        yield warning("settings", f"{name} has no effect any more", f"unset it: {instead}")
    for name, meant in misspelt_settings(environment).items():
        if meant:
            yield problem("settings", f"{name} is not a setting", f"did you mean {meant}?")
        else:
            yield warning("settings", f"{name} is not a setting", "unset it, unless another program reads it")


def check_data_dir(settings: Settings) -> Iterator[Finding]:
    """Check that the data directory is writable, unless both stores are servers: then nothing is in it."""
    if settings.redis_url and settings.qdrant_url:
        return
    nearest = next(path for path in (settings.data_dir, *settings.data_dir.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
        advice = f"make {nearest} a writable directory, or set TOOLSCALE_DATA_DIR"
        yield problem("data directory", f"{settings.data_dir} cannot be written", advice)
    else:
        made = "" if nearest == settings.data_dir else ", created at the first use"
        yield ok("data directory", f"{settings.data_dir}{made}")


def check_config(settings: Settings) -> Iterator[Finding]:
    """Check each entry of the mcp.json, without starting a server."""
    path = settings.mcp_config or settings.data_dir / FILE_NAME
    try:
        followed = read_followed_config(settings)
    except FollowedConfigUnavailable as error:
        followed = None
        yield problem("mcp.json", f"cannot be read: {error}", "see the findings about Redis or the data directory")
    if followed:
        yield from _check_followed(followed)
        if Path(followed.path) == path.resolve() or not settings.mcp_config:
            return
    elif not settings.mcp_config and not (settings.is_embedded and path.is_file()):
        yield ok("mcp.json", "no process follows one; servers come from events")
        return
    yield from _check_entries(path)


def _check_followed(followed: FollowedConfig) -> Iterator[Finding]:
    """Yield the state that the following process stored: it has its own environment variables."""
    if followed.problem:
        yield problem("mcp.json", followed.summary, f"correct {followed.path}; it is read again at once")
    else:
        yield ok("mcp.json", f"{followed.summary}; a Toolscale process follows it")
    for entry in followed.left_out:
        yield problem("mcp.json", f"left out: {entry}", f"correct the entry in {followed.path}")
    with suppress(ConfigInvalid):  # on another machine, or reported above
        yield from _check_programs(read_config(Path(followed.path), os.environ))


def _check_entries(path: Path) -> Iterator[Finding]:
    try:
        config = read_config(path, os.environ)
    except ConfigInvalid as error:
        yield problem("mcp.json", str(error), "correct the file, or name another with TOOLSCALE_MCP_CONFIG")
        return
    yield ok("mcp.json", f"{path}: {len(config.announcements)} usable servers")
    for entry in config.problems:
        yield problem("mcp.json", str(entry), f"correct the entry in {path}")
    yield from _check_programs(config)


def _check_programs(config: Config) -> Iterator[Finding]:
    for server_id, target in config.targets.items():
        if isinstance(target, StdioTarget) and shutil.which(target.command, path=target.env.get("PATH")) is None:
            reason, repair = program_problem(target.command, target.env.get("PATH"))
            yield problem("mcp.json", f"{server_id}: {reason}", repair)


def check_tokens(settings: Settings) -> Iterator[Finding]:
    """Check the file of callers' tokens."""
    if settings.tokens_file is None:
        return
    try:
        yield ok("tokens", f"{settings.tokens_file}: {len(read_tokens(settings.tokens_file))} callers")
    except ConfigInvalid as error:
        yield problem("tokens", str(error), "correct the file; `toolscale token new` prints entries for it")


def check_producers(settings: Settings) -> Iterator[Finding]:
    """Check the file of producers' tokens."""
    if settings.producers_file is None:
        return
    try:
        producers = read_token_file(settings.producers_file, ProducerRights)
    except ConfigInvalid as error:
        yield problem("producers", str(error), "correct the file; `toolscale token producer` prints tables for it")
        return
    if producers:
        yield ok("producers", f"{settings.producers_file}: {len(producers)} producers")
    else:
        yield warning("producers", f"{settings.producers_file} names none", "add a table of `toolscale token producer`")


def check_policy(settings: Settings) -> Iterator[Finding]:
    """Check the policy on calls of tools."""
    if settings.policy_file is None:
        return
    try:
        rules = read_policy(settings.policy_file).rules
    except ConfigInvalid as error:
        yield problem("policy", str(error), "correct the file; docs/security.md describes its rules")
        return
    if rules:
        yield ok("policy", f"{settings.policy_file}: {len(rules)} rules")
    else:
        yield warning("policy", f"{settings.policy_file} has no rule, so it allows every call", "add a rule")


def check_permissions(settings: Settings) -> Iterator[Finding]:
    """Check the permissions of files with commands, tokens, credentials and rules."""
    config = settings.mcp_config or settings.data_dir / FILE_NAME
    secret = [*_credential_files(settings.credentials_dir), *([config] if _has_credentials(config) else [])]
    # the files of callers and of producers have digests, which need no secrecy
    public = _existing(config, settings.tokens_file, settings.producers_file, settings.policy_file)
    for path in dict.fromkeys((*secret, *public)):
        mode = path.stat().st_mode
        if mode & _OTHERS_WRITE:
            yield problem("permissions", f"other users may write {path}", f"chmod go-w {path}")
        elif mode & stat.S_IROTH and path in secret:
            yield warning("permissions", f"everyone may read {path}", f"chmod o-r {path}")


def _credential_files(directory: Path | None) -> list[Path]:
    """Return the files that an event may name: no name of a credential begins with a dot."""
    inside = sorted(directory.iterdir()) if directory and directory.is_dir() else []
    return [path for path in inside if path.is_file() and not path.name.startswith(".")]


def _has_credentials(config: Path) -> bool:
    try:
        return any(map(credentials_of, read_config(config, {}).targets.values()))
    except ConfigInvalid:
        return False  # none yet, or `check_config` reports it


def _existing(*paths: Path | None) -> Iterator[Path]:
    yield from (path for path in paths if path and path.is_file())
