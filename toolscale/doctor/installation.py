"""The result of a check, and the checks of settings, files, the embedding model and the vocabularies."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict

from query.auth.tokens import read_tokens
from query.policy import read_policy
from query.tools.run_script import missing_sandbox
from shared.catalog import ENCODINGS
from shared.errors import AssetInvalid, ConfigInvalid, FollowedConfigUnavailable, ModelUnavailable
from shared.service.files import FREE_SOME, disk_problem
from shared.service.token_file import read_token_file
from shared.settings import PREFIX, REMOVED, Settings, removed_settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import FastEmbedder
from shared.text.tokens import VOCABULARIES, bundled_vocabularies, check_vocabulary
from shared.upstream.followed_config import read_followed_config, repeated_keys
from shared.upstream.mcp_json import Config, read_config
from shared.upstream.target import StdioTarget, credentials_of, program_problem
from toolscale.mcp_clients.files import config_path
from workers.events_api.producers import ProducerRights

Level = Literal["ok", "warning", "problem"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_INSTALL_AGAIN = "install Toolscale again, or in a clone run `git checkout shared/assets`"
# Variables that other modules read: the service and the token of commands, and secrets by name.
_OF_COMMANDS = ("URL", "TOKEN")
_SECRETS = "CREDENTIAL_"
# Minimum similarity of a misspelt name to a setting, 0 to 1: LOGLEVEL has it, SERVICE_HOST has not.
_ALIKE = 0.8


class Finding(BaseModel):
    """The state of one subject; `advice` names the repair, or a next step."""

    model_config = ConfigDict(frozen=True)

    about: str
    level: Level
    found: str
    advice: str = ""


def ok(about: str, found: str, advice: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(about=about, level="ok", found=found, advice=advice)


def warning(about: str, found: str, advice: str) -> Finding:
    """Return an unusual state that may be intended, with advice."""
    return Finding(about=about, level="warning", found=found, advice=advice)


def problem(about: str, found: str, advice: str) -> Finding:
    """Return a failure, with advice."""
    return Finding(about=about, level="problem", found=found, advice=advice)


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


def setting_names() -> set[str]:
    """Return the environment variables that are settings."""
    names: set[str] = set()
    for field, info in Settings.model_fields.items():
        alias = info.validation_alias
        names |= (
            {str(choice) for choice in alias.choices} if isinstance(alias, AliasChoices) else {PREFIX + field.upper()}
        )
    return names


def misspelt_settings(environment: Iterable[str]) -> dict[str, str | None]:
    """Return variables with our prefix that never were settings, each with the most similar setting."""
    known = {name.removeprefix(PREFIX): name for name in sorted(setting_names())}
    ours = (
        name.removeprefix(PREFIX) for name in sorted(environment) if name.startswith(PREFIX) and name not in REMOVED
    )
    unknown = [
        name for name in ours if name not in known and name not in _OF_COMMANDS and not name.startswith(_SECRETS)
    ]
    near = {name: get_close_matches(name, known, n=1, cutoff=_ALIKE) for name in unknown}
    return {PREFIX + name: known[meant[0]] if meant else None for name, meant in near.items()}


def check_data_dir(settings: Settings) -> Iterator[Finding]:
    """Check that the data directory is writable, unless both stores are servers: then nothing is in it."""
    if settings.redis_url and settings.qdrant_url:
        return
    nearest = next(path for path in (settings.data_dir, *settings.data_dir.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
        advice = f"make {nearest} a writable directory, or set TOOLSCALE_DATA_DIR"
        yield problem("data directory", f"{settings.data_dir} cannot be written", advice)
    elif full := disk_problem(settings.data_dir):
        yield problem("data directory", f"{settings.data_dir}: {full}", FREE_SOME)
    else:
        made = "" if nearest == settings.data_dir else ", created at the first use"
        yield ok("data directory", f"{settings.data_dir}{made}")


def check_config(settings: Settings) -> Iterator[Finding]:
    """Check each entry of the mcp.json, without starting a server."""
    path = config_path(settings)
    try:
        followed = read_followed_config(settings)
    except FollowedConfigUnavailable as error:
        followed = None
        yield problem("mcp.json", f"cannot be read: {error}", "see the findings about Redis or the data directory")
    if followed:
        # the following process has stored this: it has its own environment variables
        if followed.problem:
            yield problem("mcp.json", followed.summary, f"correct {followed.path}; it is read again at once")
        else:
            yield ok("mcp.json", f"{followed.summary}; a Toolscale process follows it")
        for entry in followed.left_out:
            yield problem("mcp.json", f"left out: {entry}", f"correct the entry in {followed.path}")
        yield from _check_keys(followed.repeated, followed.path)
        with suppress(ConfigInvalid):  # on another machine, or reported above
            yield from _check_programs(read_config(Path(followed.path), os.environ))
        if Path(followed.path) == path.resolve() or not settings.mcp_config:
            return
    elif not settings.mcp_config and not (settings.is_embedded and path.is_file()):
        yield ok("mcp.json", "no process follows one; servers come from events")
        return
    yield from _check_entries(path)


def _check_entries(path: Path) -> Iterator[Finding]:
    try:
        config = read_config(path, os.environ)
    except ConfigInvalid as error:
        yield problem("mcp.json", str(error), "correct the file, or name another with TOOLSCALE_MCP_CONFIG")
        return
    off = f"; switched off: {len(config.switched_off)}" if config.switched_off else ""
    yield ok("mcp.json", f"{path}: {len(config.announcements)} usable servers{off}")
    yield from _check_keys(config.repeated, path)
    for entry in config.problems:
        yield problem("mcp.json", str(entry), f"correct the entry in {path}")
    yield from _check_programs(config)


def _check_keys(repeated: Sequence[str], path: Path | str) -> Iterator[Finding]:
    if repeated:
        yield warning("mcp.json", repeated_keys(repeated), f"remove or rename one of both in {path}")


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
    """Check the rules on calls of tools and on servers."""
    if settings.policy_file is None:
        return
    try:
        policy = read_policy(settings.policy_file)
    except ConfigInvalid as error:
        yield problem("policy", str(error), "correct the file; docs/security.md describes its rules")
        return
    if rules := len(policy.rules) + len(policy.servers):
        yield ok("policy", f"{settings.policy_file}: {rules} rules")
    else:
        yield warning("policy", f"{settings.policy_file} has no rule, so it allows every call", "add a rule")


def check_permissions(settings: Settings) -> Iterator[Finding]:
    """Check the permissions of files with commands, tokens, credentials and rules."""
    config, directory = config_path(settings), settings.credentials_dir
    inside = sorted(directory.iterdir()) if directory and directory.is_dir() else []
    # no name of a credential begins with a dot
    secret = [path for path in inside if path.is_file() and not path.name.startswith(".")]
    with suppress(ConfigInvalid):  # no file yet, or `check_config` reports it
        if any(map(credentials_of, read_config(config, {}).targets.values())):
            secret.append(config)
    # the files of callers and of producers have digests, which need no secrecy
    public = [config, settings.tokens_file, settings.producers_file, settings.policy_file]
    for path in dict.fromkeys([*secret, *(each for each in public if each and each.is_file())]):
        mode = path.stat().st_mode
        if mode & _OTHERS_WRITE:
            yield problem("permissions", f"other users may write {path}", f"chmod go-w {path}")
        elif mode & stat.S_IROTH and path in secret:
            yield warning("permissions", f"everyone may read {path}", f"chmod o-r {path}")


def check_model(settings: Settings) -> Iterator[Finding]:
    """Check that the model embeds a text."""
    model = settings.embedding_model
    try:
        dimension = len(FastEmbedder(model).query("ready"))
    except (ModelUnavailable, ConfigInvalid) as error:
        fetched = "check the connection to the model hub, or set TOOLSCALE_EMBEDDING_MODEL to another model"
        yield problem("model", str(error), _INSTALL_AGAIN if model == BUNDLED_MODEL else fetched)
        return
    yield ok("model", f"{model}, {dimension} dimensions")


def check_vocabularies(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001  # no setting changes them
    """Check that the vocabulary of every encoding is the one that tiktoken expects; loading them takes 0.3 s."""
    try:
        for name in VOCABULARIES:
            check_vocabulary(name, bundled_vocabularies())
    except AssetInvalid as error:
        yield problem("vocabularies", str(error), _INSTALL_AGAIN)
        return
    yield ok("vocabularies", ", ".join(ENCODINGS))


def check_scripts(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001  # no setting changes it
    """Check that scripts have their sandbox, without which callers see no `run_script`."""
    if reason := missing_sandbox():
        yield warning("scripts", f"run_script is absent: {reason}", "install pydantic-monty, or go without scripts")
    else:
        yield ok("scripts", f"run_script, with pydantic-monty {version('pydantic-monty')}")
