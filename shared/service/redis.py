"""Redis clients for every form of `REDIS_URL`, with short timeouts, and their errors as errors of ours.

| form | Redis |
|---|---|
| `redis://[user:password@]host[:port][/db]` | one server |
| `rediss://…` | one server over TLS; its certificate is verified |
| `unix:///path[?db=N]` | one server on this machine |
| `redis+sentinel://[user:password@]host[:port],…/master[/db]` | the master that these Sentinels know, without TLS |
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlencode, urlsplit

from shared.errors import ConfigInvalid, ToolscaleError
from shared.validation import ENCODE, checked_url

if TYPE_CHECKING:
    import redis

PAUSE_S = 2.0
REDIS_PORT = 6379
SENTINEL_PORT = 26379
NO_CLUSTER = "Redis Cluster is not supported, since one command reads several keys; use one Redis, or Sentinel"

_WORDS_CHARACTERS = 300
_CHECKED = "toolscale:checked"
_DATABASE = re.compile(r"[0-9]{0,6}")
_SENTINEL_SCHEMES = ("sentinel", "redis+sentinel")
_REQUIREMENTS = {"cert_required": "required", "cert_optional": "optional", "cert_none": "none"}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed `REDIS_URL`. `url` is for redis-py; with `sentinels`, it has the credentials and the database only."""

    url: str
    sentinels: tuple[tuple[str, int], ...] = ()
    master: str = ""

    @property
    def place(self) -> str:
        """Return the host and port, the path of the socket, or the master and its Sentinels, without credentials."""
        if self.sentinels:
            return f"{self.master} of the Sentinels {', '.join(f'{host}:{port}' for host, port in self.sentinels)}"
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2] or parts.path

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Return the hosts and ports of the Sentinels or of the server; a socket has none."""
        parts = urlsplit(self.url)
        return self.sentinels or (((parts.hostname, parts.port or REDIS_PORT),) if parts.hostname else ())

    @property
    def verification(self) -> str | None:
        """Return `required`, `optional` or `none`, the check of the server's certificate; None: no TLS."""
        parts = urlsplit(self.url)
        return parse_qs(parts.query)["ssl_cert_reqs"][0] if parts.scheme == "rediss" else None

    def broker(self) -> tuple[str, dict[str, Any]]:
        """Return the URL and the transport options that Celery needs for the same Redis."""
        parts = urlsplit(self.url)
        if self.sentinels:
            hosts = ";".join(f"sentinel://{parts.netloc}{host}:{port}{parts.path}" for host, port in self.sentinels)
            return hosts, {"master_name": self.master, "sentinel_kwargs": {}}
        if parts.scheme == "unix":
            database = parse_qs(parts.query).get("db", ["0"])[0]
            return f"redis+socket://{quote(unquote(parts.path))}?virtual_host={database}", {}
        return self.url, {}


def parse_redis_url(url: str) -> RedisAddress:
    """Return the address of a URL; certificates are verified unless its `ssl_cert_reqs` is another.

    Raises:
        ValueError: it has none of the forms.
    """
    if "cluster" in url.partition("://")[0]:
        raise ValueError(NO_CLUSTER)
    if (scheme := url.partition("://")[0]) in _SENTINEL_SCHEMES:
        return _with_sentinels(url.removeprefix(f"{scheme}://"))
    parts = _checked(url, "redis", "rediss", "unix", "redis+sentinel")
    if parts.username and parts.password is None:  # Celery would show it in its log
        raise ValueError("a user needs a password, USER:PASSWORD@; a password alone is :PASSWORD@")
    if parts.scheme == "unix" and (parts.netloc or "password" in parse_qs(parts.query)):
        raise ValueError("a socket has no password here, since Celery would not send it: use redis://")
    if parts.scheme != "rediss":
        return _with_options(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    wanted = query.get("ssl_cert_reqs", "required").lower()
    wanted = _REQUIREMENTS.get(wanted, wanted)  # the form that both redis-py and Celery accept
    if wanted not in _REQUIREMENTS.values():
        raise ValueError("ssl_cert_reqs: expected required, optional or none")
    return _with_options(parts._replace(query=urlencode(query | {"ssl_cert_reqs": wanted}, safe="/")).geturl())


def _with_options(url: str) -> RedisAddress:
    """Return the address, of which the client knows the options: its own errors quote them."""
    if "?" in url:
        import redis  # noqa: PLC0415  # as in `connect`

        try:
            redis.Redis.from_url(url).connection_pool.make_connection()
        except (ValueError, TypeError, redis.RedisError):
            raise ValueError("expected options of redis-py after `?`, with their values") from None
    return RedisAddress(url)


def _with_sentinels(rest: str) -> RedisAddress:
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    credentials, at, hosts = authority.rpartition("@")
    places = [_checked(f"sentinel://{credentials}{at}{host}", "sentinel") for host in hosts.split(",")]
    parts = urlsplit(rest.removeprefix(authority))
    master, _, database = parts.path.strip("/").partition("/")
    if parts.query:
        raise ValueError("redis+sentinel:// takes no options: TLS, and passwords of Sentinels, are not supported")
    if not hosts or not master or parts.fragment or not _DATABASE.fullmatch(database):
        raise ValueError(f"expected redis+sentinel://host:port,host:port/master/db; {ENCODE}")
    sentinels = tuple((place.hostname or "127.0.0.1", place.port or SENTINEL_PORT) for place in places)
    return RedisAddress(f"redis://{credentials}{at}/{database or 0}", sentinels, unquote(master))


def _checked(url: str, *schemes: str) -> SplitResult:
    """Return the parts of a URL whose password ends where it should, with a database that is a number."""
    parts = checked_url(url, *schemes)
    if parts.fragment or ("@" in parts.path + parts.query and "@" not in parts.netloc):
        raise ValueError(f"expected no `#`, and `@` only before the host; {ENCODE}")
    named = parse_qs(parts.query).get("db", [])
    if not all(map(_DATABASE.fullmatch, named if parts.scheme == "unix" else (*named, parts.path.strip("/")))):
        raise ValueError("expected a number as the database, as in redis://HOST:PORT/0")
    return parts


def connect(url: str, *, decode: bool = True, timeout_s: float = 5.0, connect_timeout_s: float = 3.0) -> redis.Redis:
    """Return a client that raises an error within seconds when Redis is silent; it connects on first use.

    With Sentinels, each new connection goes to the master of that moment.

    Raises:
        ValueError: the URL has none of the forms.
    """
    import redis  # noqa: PLC0415  # 0.1 s to import, which a process without Redis does not need
    from redis.sentinel import Sentinel  # noqa: PLC0415

    address = parse_redis_url(url)
    waits: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": connect_timeout_s}
    # a value that is no UTF-8 stays what it is, and its reader passes over it; by default one stops every reader
    options: dict[str, Any] = {"decode_responses": decode, "encoding_errors": "surrogateescape"}
    options |= {"health_check_interval": 10, **waits}
    if not address.sentinels:
        return redis.Redis.from_url(address.url, **options)
    parts = urlsplit(address.url)
    options |= {"username": _decoded(parts.username), "password": _decoded(parts.password), "db": int(parts.path[1:])}
    sentinels: Any = Sentinel(address.sentinels, sentinel_kwargs=waits)  # type: ignore[no-untyped-call]
    return cast("redis.Redis", sentinels.master_for(address.master, **options))


def _decoded(part: str | None) -> str | None:
    return unquote(part) if part else None


class RedisPause:
    """Lets requests fail at once for some seconds after a silent Redis let one of them wait for seconds."""

    def __init__(
        self, unavailable: Callable[[str], ToolscaleError], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._unavailable, self._clock_s = unavailable, clock_s
        self._silent_until_s = float("-inf")

    @contextmanager
    def errors(self) -> Generator[None]:
        """Raise the error in place of each one of the Redis client."""
        from redis.exceptions import TimeoutError as RedisTimeout  # noqa: PLC0415  # as in `connect`

        if self._clock_s() < self._silent_until_s:
            raise self._unavailable("Redis at REDIS_URL did not answer a moment ago")
        try:
            with redis_errors(self._unavailable):
                yield
        except ToolscaleError as error:
            if isinstance(error.__cause__, RedisTimeout):
                self._silent_until_s = self._clock_s() + PAUSE_S
            raise


@contextmanager
def redis_errors(unavailable: Callable[[str], ToolscaleError], where: str = "Redis at REDIS_URL") -> Generator[None]:
    """Raise `unavailable` with a message in place of each error of the Redis client."""
    from redis.exceptions import RedisError  # noqa: PLC0415  # as in `connect`

    try:
        yield
    except RedisError as error:
        raise unavailable(f"{where}: {'; '.join(redis_problem(error))}") from error


def redis_problem(error: redis.RedisError) -> tuple[str, str]:
    """Return what an error of the client means, and its repair."""
    words = " ".join(str(error).split())[:_WORDS_CHARACTERS]
    kinds = [kind.__name__ for kind in type(error).__mro__]
    for signs, found, repair in _PROBLEMS:
        if any(sign in kinds or sign in words for sign in signs):
            return found.format(words), repair
    return f"it answers with an error: {words}", "its log has the reason"


# The name of an error of the client, or a part of its text. The first row that fits counts.
_PROBLEMS = (
    (("ClusterCrossSlotError", "ClusterDownError", "MovedError"), "it is a node of a Redis Cluster", NO_CLUSTER),
    (
        ("NoPermissionError", "AuthorizationError"),
        "its user may not do this: {}",
        "give the user in REDIS_URL all commands and keys (ACL SETUSER)",
    ),
    (
        ("AuthenticationError", "NOAUTH", "WRONGPASS", "without any password"),
        "it rejects the credentials",
        "correct user and password in REDIS_URL",
    ),
    (("ReadOnlyError",), "it is a replica, which takes no writes", "name the master in REDIS_URL, or its Sentinels"),
    (("OutOfMemoryError",), "its memory is full, so it takes no writes", "raise its maxmemory"),
    (("BusyLoadingError",), "it still loads its data", "wait until it has started"),
    (
        ("DB index is out of range",),
        "it has no database of this number",
        "correct the number at the end of REDIS_URL",
    ),
    (
        ("MasterNotFoundError", "SENTINEL"),
        "the Sentinels do not answer, or know no master of this name",
        "correct hosts, ports and the master in REDIS_URL",
    ),
    (
        ("InvalidResponse", "Bad response", "closed by server"),
        "what answers there does not speak as Redis does",
        "correct host and port in REDIS_URL; a port with TLS needs rediss://",
    ),
    (("TimeoutError",), "it does not answer in time", "start it, or correct REDIS_URL; only TLS needs rediss://"),
    (("ConnectionError",), "no connection: {}", "start it, or correct REDIS_URL"),
)


def check_redis(url: str) -> None:
    """Check what only a person can mend, before a service begins to wait for this Redis.

    Raises:
        ConfigInvalid: it refuses the credentials, the database or writes, or is no Redis.
    """
    import redis  # noqa: PLC0415  # as in `connect`
    from redis.exceptions import OutOfMemoryError  # noqa: PLC0415  # as in `connect`

    passing = (redis.ConnectionError, redis.TimeoutError, OutOfMemoryError)
    try:
        with closing(connect(url)) as client:
            client.set(_CHECKED, "1", px=1)
    except redis.RedisError as error:
        # of no connection, only that for the lack of the right credentials remains
        if isinstance(error, redis.AuthenticationError) or not isinstance(error, passing):
            raise ConfigInvalid(f"Redis at REDIS_URL: {'; '.join(redis_problem(error))}") from error
