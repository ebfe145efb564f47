"""All settings: read once at the edge of a process, then passed on as plain values.

`make docs` writes `.env.example` from them: each with its default and its docstring, in the sections below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, StringConstraints, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.catalog import Encoding
from shared.errors import ConfigInvalid
from shared.text import BUNDLED_MODEL
from shared.toolset import TOOLSET_NAME

PREFIX = "TOOLSCALE_"

Subscribe = Literal["http", "all", "none"]
RedisUrl = Annotated[str, StringConstraints(pattern=r"^(rediss?|unix)://")]
ResponseMode = Literal["summary", "detailed", "auto"]
# One secret, or several with commas between, 32 characters or more each.
CursorKey = Annotated[str, StringConstraints(pattern=r"^[^,\s]{32,}(,[^,\s]{32,})*$", max_length=2_000)]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://")]
# The hosts and networks that each credential may be sent to, by its name.
CredentialHosts = dict[
    Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,100}$")],
    Annotated[frozenset[Annotated[str, StringConstraints(pattern=r"^[^\s=]+$")]], Field(min_length=1)],
]
# Signatures by key pairs alone: whoever can check a token must not be able to make one.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


def _plain(name: str) -> AliasChoices:
    """Accept a setting by the name the field uses everywhere, as well as by ours."""
    return AliasChoices(name, f"TOOLSCALE_{name}")


class Settings(BaseSettings):
    """Every setting, its unit and its bounds. Without REDIS_URL and QDRANT_URL everything runs in one process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    # --- Where things are ---
    redis_url: Annotated[str, StringConstraints(pattern=r"^(rediss?|unix)://")] | None = Field(
        default=None, validation_alias=_plain("REDIS_URL")
    )
    """Redis for Celery and the intents; unset: in-memory broker, intents in `data_dir`."""
    qdrant_url: Annotated[str, StringConstraints(pattern=r"^https?://")] | None = Field(
        default=None, validation_alias=_plain("QDRANT_URL")
    )
    """Qdrant server; unset: Qdrant Edge in `data_dir`."""
    qdrant_api_key: str | None = Field(default=None, validation_alias=_plain("QDRANT_API_KEY"), repr=False)
    """Key for the Qdrant server."""
    data_dir: Path = Path("~/.local/share/toolscale")
    """Where the embedded composition keeps its index and intents."""
    mcp_config: Path | None = None
    """The operator's `mcp.json`, the only place stdio servers come from; unset: `serve` takes `data_dir`/mcp.json."""
    credentials_dir: Path | None = None
    """Directory of secrets named by `credential_ref`; beside it, `TOOLSCALE_CREDENTIAL_<NAME>` is looked up."""
    credential_hosts: Annotated[CredentialHosts | None, NoDecode] = None
    """Hosts each may be sent to, `github=*.github.com,10.0.0.0/8 jira=jira.lan`; unset: allowed hosts but for `*`."""

    # --- The model and the counts ---
    embedding_model: str = BUNDLED_MODEL
    """The bundled model, or any that fastembed supports; another one takes over when all tools are embedded by it."""
    embedding_concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    """Looks of one worker that count and embed at the same time; a worker with cores to itself takes one for each."""
    token_encoding: Encoding = "cl100k_base"
    """The encoding of answers: cl100k_base, o200k_base, or heuristic (an estimate)."""

    response_mode: ResponseMode = Field(default="auto", validation_alias=_plain("MCP_RESPONSE_MODE"))
    """Tools in answers: detailed (definitions), summary (a signature and a sentence), auto: detailed where it fits."""
    max_response_tokens: Annotated[int, Field(ge=200, le=1_000_000)] = Field(
        default=5_000, validation_alias=_plain("MCP_MAX_RESPONSE_TOKENS")
    )
    """Tokens of one answer, 200 or more; a longer one is summarised, then divided into pages."""
    cursor_key: CursorKey | None = Field(default=None, repr=False)
    """Secret that cursors are sealed with, the same for all replicas; `new,old` exchanges it. Unset: made by itself."""
    cursor_ttl_s: Annotated[float, Field(ge=1, le=86_400)] = 900.0
    """Seconds for which a cursor is good, and for which the rest of an answer is kept after it was last read."""

    savings_keep_days: Annotated[int, Field(ge=1, le=400)] = 30
    """Days for which savings, calls and the catalogue's size are kept, today included; in Redis or in `data_dir`."""

    no_match_threshold: Annotated[float, Field(ge=-1, le=1)] = 0.18
    """Least cosine of a match, less 0.3 of that of the nearest kinds of tools, -1 (any) to 1; for the bundled model."""

    # --- Limits of a server ---
    allowed_hosts: Annotated[frozenset[str], NoDecode] = frozenset({"127.0.0.1", "localhost", "::1"})
    """Hosts (`*.example.org` too) and networks (10.0.0.0/8) that events may point to, separated by commas; `*`: any."""
    listing_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """Seconds for the whole walk over a server's pages, connecting included."""
    listing_max_large: Annotated[int, Field(ge=1, le=256)] = 2
    """Lists beyond 256 KiB, or beyond 10,000 values in a response, that one worker holds at a time; others wait."""

    # --- The workers ---
    worker_concurrency: Annotated[int, Field(ge=1, le=256)] = 64
    """Servers looked at at the same time by one worker process."""
    sweep_interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 5.0
    """Seconds between two sweeps for events that were recorded and not acted upon."""
    redeliver_after_s: Annotated[float, Field(ge=0.1, le=3600)] = 15.0
    """Seconds after which a recorded event without a run is sent again; doubles with each failed look."""
    retry_max_s: Annotated[float, Field(ge=1, le=86_400)] = 900.0
    """The longest wait between two looks at a server that keeps failing, in seconds."""
    resync_interval_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Every running server is listed again within this many seconds, asked or not; 0: only when asked."""
    quarantine_after: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Looks in a row that fail, or that kill their worker, before a server's tools are hidden."""
    shutdown_grace_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    """Seconds that a worker which was asked to end leaves its listings; what is being written is finished."""
    lease_s: Annotated[float, Field(ge=1, le=600)] = 10.0
    """Seconds until a dead worker's hold on a server expires; a living one renews it."""

    # --- The query service ---
    host: str = "127.0.0.1"
    """Address the query service listens on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8765
    """Port the query service listens on; 0: any free one."""
    log_level: Annotated[str, StringConstraints(pattern=r"^(?i:debug|info|warning|error)$")] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    allow_unauthenticated_bind: bool = False
    """Let the query service listen outside loopback, where whoever reaches the port may call any tool."""
    allowed_http_hosts: Annotated[frozenset[str], NoDecode] = frozenset()
    """Names clients may reach the query service by, beside loopback's and `host`, separated by commas."""

    # --- Callers ---
    public_url: HttpUrl | None = None
    """The URL that clients reach `/mcp` by; needed with JWTs, which must have been issued for it."""
    tokens_file: Path | None = None
    """A TOML file of callers and digests of their bearer tokens, as `toolscale token new` prints them."""
    stdio_groups: Annotated[frozenset[str], NoDecode] | None = None
    """Groups that a client over stdio sees the tools of, separated by commas; unset: all."""
    stdio_toolset: Annotated[str, StringConstraints(pattern=TOOLSET_NAME)] | None = None
    """The toolset of a client over stdio; unset: none, it finds every tool it may see."""
    jwt_issuer: HttpUrl | None = None
    """Who issues the JWTs that are accepted, exactly as in their `iss`; unset: none are."""
    jwt_jwks: str | None = None
    """The issuer's public keys, a JWK set: an https URL, or a file."""
    jwt_audience: str | None = None
    """What a JWT's `aud` must name; unset: `public_url`."""
    jwt_algorithms: Annotated[frozenset[Algorithm], NoDecode] = frozenset({"ES256", "EdDSA", "PS256", "RS256"})
    """Signatures that are accepted, separated by commas: RS, PS or ES with 256, 384 or 512, and EdDSA."""
    jwt_admin_group: str | None = None
    """Whoever is in this group sees the tools of all groups, and those of none; unset: nobody does."""

    # --- Calls ---
    call_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 60.0
    """Seconds a call of a tool may take, connecting included; then the server is told that nobody waits any more."""
    call_max_connections: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Servers that may be connected to for calls at a time; a stdio server is a process."""
    call_max_per_caller: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Calls that one caller may have under way; another one is refused. Without authentication all are one caller."""

    # --- Sources of events ---
    events_token: Annotated[str, Field(min_length=16, max_length=1_000)] | None = Field(default=None, repr=False)
    """The bearer token that producers show at the HTTP door for events, 16 characters or more; unset: no door."""
    events_host: str = "127.0.0.1"
    """Address the door of the scaled composition listens on."""
    events_port: Annotated[int, Field(ge=0, le=65_535)] = 8766
    """Port the door of the scaled composition listens on; 0: any free one."""
    subscribe: Subscribe = "http"
    """Which servers are asked to tell when their tools change: http, all (stdio servers then keep running), or none."""
    watch_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    """What tells a `toolscale watch` from others of its kind on one catalogue: a cluster's or a machine's name."""
    # --- Metrics ---
    metrics_host: str = "127.0.0.1"
    """Address of a process's own port; whoever reaches it reads its metrics, and can do no more."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Port on which a worker, beat, a watcher or `workers.notifications` shows metrics; 0: any; unset: none."""
    metrics_public: bool = False
    """Let whoever reaches the query service, or the door, read `/metrics`; else it needs a token, as the rest does."""

    @field_validator("allowed_hosts", "allowed_http_hosts", "stdio_groups", "jwt_algorithms", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("credential_hosts", mode="before")
    @classmethod
    def _table(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        entries = [entry.partition("=") for entry in value.split()]
        if len({name for name, _, _ in entries}) < len(entries):
            raise ValueError("a credential is named twice")
        return {name: cls._split(hosts) for name, _, hosts in entries}

    @field_validator("data_dir", "mcp_config", "credentials_dir", "tokens_file")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else None

    @property
    def is_embedded(self) -> bool:
        """Return whether events, intents and worker live in this process."""
        return self.redis_url is None

    @property
    def own_url(self) -> str:
        """Return where the query service of these settings is reached from this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def load_settings(**overrides: object) -> Settings:
    """Return the settings from the environment, `overrides` first.

    Raises:
        ConfigInvalid: values are out of bounds; the message names each setting, and its variable.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic validates what mypy cannot see
    except ValidationError as error:
        # without the values: some are secrets
        wrong = [f"setting {_named(problem['loc'])}: {problem['msg']}" for problem in error.errors(include_url=False)]
        raise ConfigInvalid("; ".join(wrong)) from error


def _named(path: tuple[int | str, ...]) -> str:
    """Return a setting's name, with the variable that it is set by where that is another."""
    name = ".".join(map(str, path))
    return name if name.isupper() else f"{name} ({PREFIX}{str(path[0]).upper()})"
