"""All settings. A process reads them once at its start and passes plain values on.

`make docs` writes `.env.example` from the defaults and docstrings, in the sections below.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.catalog import DEFAULT_ENCODING, DefinitionPolicy, Encoding
from shared.errors import ConfigInvalid
from shared.text import BUNDLED_MODEL
from shared.toolset import TOOLSET_NAME
from shared.validation import all_invalid, checked_url

PREFIX = "TOOLSCALE_"

REMOVED: Mapping[str, str] = {
    f"{PREFIX}{name}": instead
    for name, instead in {
        "CALL_PREFER_LABELS": "give the servers of a region a group, and the callers there that group",
        "CURSOR_KEY": "a cursor names an entry in Redis, which all replicas share, or in the process",
        "CURSOR_TTL_S": "a cursor expires 15 minutes after its last use",
        "EMBEDDING_CONCURRENCY": "a worker embeds for two reconciliations at a time",
        "JWT_ALGORITHMS": "RS, PS and ES with 256, 384 or 512, and EdDSA are accepted",
        "LEASE_S": "a dead worker's lease expires after 10 s",
        "LEANER_DEFINITIONS": "answers have the definitions of the servers; `toolscale lint` advises their authors",
        "LISTING_MAX_LARGE": "a worker holds two large lists at a time; more workers hold more",
        "QUARANTINE_AFTER": "tools are hidden after five failures in a row",
        "REDELIVER_AFTER_S": "an event is sent again after 15 s",
        "RETRY_MAX_S": "a failing server is retried at least every 15 minutes",
        "SHUTDOWN_GRACE_S": "a stopping worker gives its listings 30 s",
        "STDIO_START_TIMEOUT_S": "a stdio server has 5 minutes to start; install one that takes longer by hand",
        "SWEEP_INTERVAL_S": "beat sweeps every 5 s",
    }.items()
}
"""The variables of settings that earlier releases had, and what is true in their place."""

Subscribe = Literal["http", "all", "none"]
ResponseMode = Literal["summary", "detailed", "full", "auto"]


def _without_user(url: str) -> str:
    """Return an HTTP URL that holds no password; a message may show it."""
    if "@" in checked_url(url, "http", "https").netloc:
        raise ValueError("expected a URL without user and password")
    return url


def _url_or_file(location: str) -> str:
    return _without_user(location) if "://" in location else location


def _nodes(urls: str) -> str:
    for url in urls.split(","):
        if "?" in _without_user(url) or "#" in url:
            raise ValueError("expected URLs without `?` and `#`; QDRANT_API_KEY is the key")
    return urls


QdrantUrl = Annotated[str, AfterValidator(_nodes)]
HttpUrl = Annotated[str, AfterValidator(_without_user)]
# A host name, network, or IPv6 host in brackets, with a scheme and a port.
CredentialReceiver = Annotated[
    str,
    StringConstraints(
        pattern=r"^(https?://)?(\[[0-9A-Fa-f:.]+(/\d+)?\]|([0-9A-Fa-f]*:){2,}[0-9A-Fa-f:.]*(/\d+)?|[\w.*-]+(/\d+)?)(:(\d+|\*))?$"
    ),
]
# Hosts and networks that may receive each credential, by its name.
CredentialHosts = dict[
    Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,100}$")],
    Annotated[frozenset[CredentialReceiver], Field(min_length=1)],
]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Count = Annotated[int, Field(ge=1, le=1_000)]


class CollectionOptions(BaseModel):
    """Options of the collections that Toolscale creates on a Qdrant server; None leaves an option to the server.

    They have the names of its API.

    `replication_factor` is by default 2 on a cluster of two or more nodes. `on_disk` is for vectors and the sparse
    index. `quantization` keeps vectors of one byte per dimension in memory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shard_number: Count | None = None
    replication_factor: Count | None = None
    write_consistency_factor: Count | None = None
    on_disk: bool | None = None
    on_disk_payload: bool | None = None
    quantization: Literal["int8"] | None = None


# Settings of several parts, which a file may have on several lines.
_IN_PARTS = (
    "allowed_hosts",
    "allowed_http_hosts",
    "stdio_env",
    "stdio_groups",
    "credential_hosts",
    "qdrant_collection",
)


def _plain(name: str) -> AliasChoices:
    """Accept a setting by its common name and by the name with our prefix."""
    return AliasChoices(name, f"TOOLSCALE_{name}")


class Settings(BaseSettings):
    """Every setting with its unit and bounds. Without REDIS_URL and QDRANT_URL everything runs in one process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,  # a traceback of pydantic's error would have it
    )

    # --- What most installations set ---
    redis_url: str | None = Field(default=None, validation_alias=_plain("REDIS_URL"))
    """Redis (`redis`, `rediss`, `unix`, `redis+sentinel`); unset: no other processes, and intents in `data_dir`."""
    qdrant_url: QdrantUrl | None = Field(default=None, validation_alias=_plain("QDRANT_URL"))
    """Qdrant server, or nodes of one cluster separated by commas; unset: Qdrant Edge in `data_dir`."""
    mcp_config: Path | None = None
    """The operator's `mcp.json`, the only place stdio servers come from; unset: `serve` takes `data_dir`/mcp.json."""
    allowed_hosts: Annotated[frozenset[str], NoDecode] = frozenset({"127.0.0.1", "localhost", "::1"})
    """Hosts (also `*.example.org`) and networks (10.0.0.0/8) allowed in events; `*`: any, except loopback."""
    tokens_file: Path | None = None
    """A TOML file of callers and digests of their bearer tokens; `toolscale token new` prints an entry."""
    events_token: Annotated[str, Field(min_length=16, max_length=1_000)] | None = Field(default=None, repr=False)
    """The bearer token for all events, 16 characters or more; without it and `producers_file`: no events API."""

    # --- Where things are ---
    qdrant_api_key: Annotated[str, StringConstraints(pattern=r"^[!-~]+$")] | None = Field(
        default=None, validation_alias=_plain("QDRANT_API_KEY"), repr=False
    )
    """Key for the Qdrant server."""
    qdrant_collection: Annotated[CollectionOptions | None, NoDecode] = None
    """Options of new collections on a Qdrant server, `shard_number=3 on_disk=true`; docs/deploy.md lists them."""
    data_dir: Path = Path("~/.local/share/toolscale")
    """Where the embedded composition keeps its index and intents."""
    credentials_dir: Path | None = None
    """Directory of secrets named by `credential_ref`; the variable `TOOLSCALE_CREDENTIAL_<NAME>` has precedence."""
    credential_hosts: Annotated[CredentialHosts | None, NoDecode] = None
    """Hosts for each credential, `github=*.github.com jira=http://jira.lan:8080`; unset: allowed hosts, over https."""

    secret_key: Annotated[str, StringConstraints(pattern=r"^[^,]{32,}(,[^,]{32,})*$")] | None = Field(
        default=None, repr=False
    )
    """Encrypts sign-ins, 32 characters or more, `new,old` while it is replaced; unset: a key file in `data_dir`."""

    # --- The model and the counts ---
    embedding_model: str = BUNDLED_MODEL
    """The bundled model, or any model of fastembed; a new model becomes active when all tools are embedded with it."""
    token_encoding: Encoding = DEFAULT_ENCODING
    """The encoding for token counts in responses: cl100k_base, o200k_base, or heuristic (an estimate)."""

    response_mode: ResponseMode = Field(default="auto", validation_alias=_plain("MCP_RESPONSE_MODE"))
    """Tools in responses: summary, detailed (what a model needs), full (all of it), auto: detailed if it fits."""
    max_response_tokens: Annotated[int, Field(ge=200, le=1_000_000)] = Field(
        default=5_000, validation_alias=_plain("MCP_MAX_RESPONSE_TOKENS")
    )
    """Tokens of one response, 200 or more; a longer response is summarised, then divided into pages."""

    savings_keep_days: Annotated[int, Field(ge=1, le=400)] = 30
    """Days to keep savings, calls and the catalogue's size, including today; in Redis or in `data_dir`."""

    no_match_threshold: Annotated[float, Field(ge=-1, le=1)] = 0.26
    """Minimum fit of a tool, -1 (any) to 1; docs/retrieval.md has its parts and what other values cost."""

    # --- Limits of a server ---
    stdio_env: Annotated[frozenset[VariableName], NoDecode] = frozenset()
    """More variables that stdio servers inherit, separated by commas; docs/operations.md lists the usual ones."""
    listing_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """Seconds for all pages of a server's list, including the connection."""
    definition_changes: DefinitionPolicy = "notify"
    """A tool that a server changes is: open: accepted; notify: served and marked; approve: held until accepted."""

    # --- The workers ---
    worker_concurrency: Annotated[int, Field(ge=1, le=256)] = 64
    """Servers that one worker process reconciles at the same time."""
    resync_interval_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Seconds within which every running server is listed again, also without events; 0: only after events."""
    stdio_resync_interval_s: Annotated[float, Field(ge=0, le=604_800)] = 3_600.0
    """The same for stdio servers, of which each listing starts a process; 0: only after events."""

    # --- The query service ---
    host: str = "127.0.0.1"
    """Address of the query service."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8765
    """Port of the query service; 0: any free port."""
    log_level: Annotated[str, StringConstraints(pattern=r"^(?i:debug|info|warning|error)$")] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    allow_unauthenticated_bind: bool = False
    """Let the query service listen outside loopback without authentication; every client may then call any tool."""
    allowed_http_hosts: Annotated[frozenset[str], NoDecode] = frozenset()
    """Additional `Host` names that the query service accepts, separated by commas."""

    # --- Callers ---
    public_url: HttpUrl | None = None
    """The public URL of `/mcp`, the audience of JWTs; required with JWTs."""
    stdio_groups: Annotated[frozenset[str], NoDecode] | None = None
    """Groups whose tools are visible to a client over stdio, separated by commas; unset: all."""
    stdio_toolset: Annotated[str, StringConstraints(pattern=TOOLSET_NAME)] | None = None
    """The toolset of a client over stdio; unset: it finds every visible tool."""
    jwt_issuer: HttpUrl | None = None
    """The issuer of accepted JWTs, equal to their `iss`; unset: JWTs are rejected."""
    jwt_jwks: Annotated[str, AfterValidator(_url_or_file)] | None = None
    """The issuer's public keys, a JWK set: an https URL, or a file."""
    jwt_audience: str | None = None
    """The audience that a JWT's `aud` must contain; unset: `public_url`."""
    jwt_admin_group: str | None = None
    """Members of this group see all tools, also those without a group; unset: no such group."""
    policy_file: Path | None = None
    """A TOML file of rules on calls of tools, and on the tools of servers; docs/security.md. Workers read it too."""

    # --- Calls ---
    call_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 60.0
    """Seconds for a tool call, including the connection; then the server gets a cancellation."""
    call_max_connections: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Connections for calls at a time; a stdio server is a process."""
    call_max_per_caller: Annotated[int, Field(ge=1, le=100_000)] = 32
    """Concurrent calls of one caller; further calls are rejected. Without authentication all clients are one caller."""

    # --- Sources of events ---
    producers_file: Path | None = None
    """A TOML file of producers of events: their rights, and digests of their bearer tokens; docs/events.md."""
    events_host: str = "127.0.0.1"
    """Address of the events API in the scaled composition."""
    events_port: Annotated[int, Field(ge=0, le=65_535)] = 8766
    """Port of the events API in the scaled composition; 0: any free port."""
    subscribe: Subscribe = "http"
    """Servers to subscribe to for changes of their tools: http, all (stdio servers then keep running), or none."""
    watch_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    """The name of this `toolscale watch` among those with the same kind of source: a cluster or machine."""

    # --- Metrics ---
    metrics_host: str = "127.0.0.1"
    """Address of the metrics port of a process; it serves metrics and health only, without authentication."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Port for metrics of a worker, beat, a watcher or `workers.notifications`; 0: any free port; unset: no port."""
    metrics_public: bool = False
    """Serve `/metrics` of the query service and the events API without a token."""

    @field_validator("allowed_hosts", "allowed_http_hosts", "stdio_env", "stdio_groups", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("credential_hosts", mode="before")
    @classmethod
    def _table(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return {name: cls._split(hosts) for name, hosts in _entries(value).items()}

    @field_validator("qdrant_collection", mode="before")
    @classmethod
    def _options(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        options = _entries(value)
        if not CollectionOptions.model_fields.keys() >= options.keys():
            raise ValueError(f"expected NAME=VALUE with the names {', '.join(CollectionOptions.model_fields)}")
        return options

    @field_validator("*", mode="before")
    @classmethod
    def _readable(cls, value: object, info: ValidationInfo) -> object:
        """Remove blanks around a value: an editor, a shell or a mounted file adds them."""
        if not isinstance(value, str):
            return value
        text, may_have_lines = value.strip(), info.field_name in _IN_PARTS
        if (not text and value) or not ("".join(text.split()) if may_have_lines else text).isprintable():
            raise ValueError("expected a text in UTF-8, without line ends and other control characters")
        return text

    @field_validator("redis_url")
    @classmethod
    def _redis_form(cls, value: str | None) -> str | None:
        from shared.service.redis import parse_redis_url  # noqa: PLC0415  # loads the client only where it is used

        if value:
            parse_redis_url(value)
        return value

    @field_validator("data_dir", "mcp_config", "credentials_dir", "tokens_file", "producers_file", "policy_file")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else None

    @property
    def is_embedded(self) -> bool:
        """Return whether events, intents and worker live in this process."""
        return self.redis_url is None

    @property
    def own_url(self) -> str:
        """Return the local URL of the query service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def _entries(value: str) -> dict[str, str]:
    """Return the entries `name=value`, which spaces separate."""
    entries = [entry.partition("=") for entry in value.split()]
    if len({name for name, _, _ in entries}) < len(entries):
        raise ValueError("a name is given twice")
    return {name: text for name, _, text in entries}


def load_settings(**overrides: object) -> Settings:
    """Return the settings from the environment, `overrides` first.

    Raises:
        ConfigInvalid: values are out of bounds; the message names each setting, and its variable.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic validates the values
    except ValidationError as error:
        # no values, also not in a traceback: some are secrets
        wrong = [f"setting {_named(path)}: {reason}" for path, reason in all_invalid(error)]
        raise ConfigInvalid("; ".join(wrong)) from None


def removed_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables here that were settings of an earlier release, each with what is true in its place."""
    return {name: instead for name, instead in REMOVED.items() if environment.get(name)}  # Compose passes empty ones


def warn_of_removed_settings(environment: Mapping[str, str]) -> None:
    """Log each variable that was a setting of an earlier release; it has no effect."""
    for name, instead in removed_settings(environment).items():
        structlog.get_logger().warning("setting_removed", setting=name, instead=instead)


def load_service_settings() -> Settings:
    """Return the settings of a process that runs until a signal, and protect its secrets from its child processes.

    It may then open as many files as the hard limit allows.

    Raises:
        ConfigInvalid: from `load_settings`.
    """
    from shared.service.process import (  # noqa: PLC0415  # only services need it
        protect_memory,
        raise_open_files,  # only services need it
        withhold_secrets,
    )

    protect_memory()
    settings = load_settings()
    withhold_secrets()
    raise_open_files()
    return settings


def _named(path: tuple[int | str, ...]) -> str:
    """Return a setting's name and, if it differs, the environment variable; other parts of the path are values."""
    name = ".".join(str(part) for part in path if part == path[0] or part in CollectionOptions.model_fields)
    return name if name.isupper() else f"{name} ({PREFIX}{str(path[0]).upper()})"
