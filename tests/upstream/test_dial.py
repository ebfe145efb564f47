from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from shared.catalog import Endpoint
from shared.errors import AddressForbidden, ConfigInvalid, ServerAuthRequired, ServerUnreachable
from shared.settings import load_settings
from shared.upstream.auth import Auth, Requester
from shared.upstream.dial import Dialler, dialler_for, store_addresses
from shared.upstream.hosts import resolve
from shared.upstream.options import ServerOptions
from shared.upstream.sign_ins import SecretKey, SignIn, SignIns, SqliteEntries
from shared.upstream.target import HttpTarget, StdioTarget, Target, secrets_of

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def dialler(*allowed: str, **configured: Target) -> Dialler:
    return Dialler(configured, frozenset(allowed), None, {})


def dial(url: str, *allowed: str, leads_to: tuple[str, ...] | None = None) -> Target:
    """Dial with the system's resolver, or as if the name led to these addresses."""

    def scripted(_host: str, _port: int) -> list[str]:
        return list(leads_to or ())

    resolver = resolve if leads_to is None else scripted
    return Dialler({}, frozenset(allowed), None, {}, resolver).target("srv", Endpoint(url=url))


def test_the_operators_own_server_wins_and_needs_no_allow_list() -> None:
    own = HttpTarget("https://internal.example.org/mcp")

    target = dialler(srv=own).target("srv", Endpoint(url="http://169.254.169.254/"))

    assert target is own


def test_a_stdio_server_comes_only_from_the_operators_file() -> None:
    child = StdioTarget("serve-things")

    assert dialler("*", known=child).target("known", Endpoint(transport="stdio")) is child
    with pytest.raises(AddressForbidden, match=r"^unknown: stdio servers come only from the operator's own file"):
        dialler("*", known=child).target("unknown", Endpoint(transport="stdio"))


def test_a_child_gets_the_named_variables_of_the_environment_unless_its_entry_sets_them() -> None:
    child = StdioTarget("serve", env={"REGION": "its own"})
    environ = {"DOCKER_HOST": "ssh://me:s3cret-s3cret@host", "REGION": "ours", "OTHER": "not named"}
    names = {"DOCKER_HOST", "REGION", "UNSET"}
    named = Dialler({"s": child}, frozenset(), None, environ, stdio_env=names)

    target = named.target("s", Endpoint(transport="stdio"))

    assert isinstance(target, StdioTarget)
    assert target.env == {"DOCKER_HOST": "ssh://me:s3cret-s3cret@host", "REGION": "its own"}
    assert "s3cret-s3cret" in secrets_of(target)


def test_the_named_variables_are_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"s": {"command": "serve"}}}')
    monkeypatch.setenv("TOOLSCALE_STDIO_ENV", "DOCKER_HOST, REGION")
    settings = load_settings(mcp_config=tmp_path / "mcp.json")

    target = dialler_for(settings, {"REGION": "eu"}).target("s", Endpoint(transport="stdio"))

    assert target == StdioTarget("serve", env={"REGION": "eu"})


def test_an_allowed_address_is_pinned() -> None:
    assert dial("http://127.0.0.1:8080/mcp", *LOOPBACK) == HttpTarget(
        "http://127.0.0.1:8080/mcp", addresses=("127.0.0.1",)
    )


def test_an_allowed_name_may_lead_anywhere_but_to_metadata() -> None:
    target = dial("https://tools.example.org/mcp", "*.example.org", leads_to=("10.1.2.3", "fd12::1"))
    assert isinstance(target, HttpTarget)
    assert target.addresses == ("10.1.2.3", "fd12::1")

    with pytest.raises(AddressForbidden, match="metadata"):
        dial("https://tools.example.org/mcp", "*.example.org", leads_to=("10.1.2.3", "169.254.169.254"))


def test_a_name_that_is_not_listed_is_allowed_only_when_all_its_addresses_are() -> None:
    assert isinstance(dial("http://any.name/", "10.0.0.0/8", leads_to=("10.1.2.3", "10.200.0.1")), HttpTarget)

    with pytest.raises(AddressForbidden, match=r"192\.168\.0\.1"):
        dial("http://any.name/", "10.0.0.0/8", leads_to=("10.1.2.3", "192.168.0.1"))


def test_a_pattern_matches_names_below_a_domain_and_no_look_alikes() -> None:
    assert isinstance(dial("http://A.B.Example.org./", "*.example.org", leads_to=("8.8.8.8",)), HttpTarget)
    for look_alike in ("http://example.org.evil.net/", "http://notexample.org/", "http://example.org/"):
        with pytest.raises(AddressForbidden):
            dial(look_alike, "*.example.org", leads_to=("8.8.8.8",))


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "fd00:a9fe:a9fe::1",
        "fd00:100::100:200",
        "fe80::1",
        "fe80::a9fe:a9fe",
        "::ffff:169.254.169.254",
        "2002:a9fe:a9fe::1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2001:0:0:1:0:0:5601:5601",
    ],
)
def test_metadata_and_link_local_addresses_are_denied_in_every_form(address: str) -> None:
    with pytest.raises(AddressForbidden, match="metadata"):
        dial("http://looks.harmless/", "*", "looks.harmless", address, leads_to=(address,))


@pytest.mark.parametrize("host", ["0x7f000001", "127.1", "2130706433", "0177.0.0.1", "[::ffff:127.0.0.1]"])
def test_odd_spellings_of_an_address_are_seen_through(host: str) -> None:
    with pytest.raises(AddressForbidden):
        dial(f"http://{host}/", "10.0.0.0/8")
    assert isinstance(dial(f"http://{host}/", "127.0.0.0/8"), HttpTarget)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("allowed", [("*",), ("*.example.org",), ("127.0.0.0/8", "0.0.0.0", "::/127"), LOOPBACK])
def test_a_name_leads_to_loopback_only_if_it_is_listed_itself(address: str, allowed: tuple[str, ...]) -> None:
    with pytest.raises(AddressForbidden, match=r"^srv: evil\.example\.org "):
        dial("http://evil.example.org/", *allowed, leads_to=(address,))
    assert isinstance(dial("http://evil.example.org/", "evil.example.org", leads_to=(address,)), HttpTarget)


def test_of_several_addresses_of_a_name_none_is_loopback() -> None:
    with pytest.raises(AddressForbidden, match="loopback"):
        dial("http://evil.example.org/", "*.example.org", leads_to=("8.8.8.8", "127.0.0.1"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://[::1]:9/", "http://localhost:9/"])
def test_any_host_is_any_but_loopback(url: str) -> None:
    with pytest.raises(AddressForbidden, match="loopback"):
        dial(url, "*")
    assert isinstance(dial(url, "*", *LOOPBACK), HttpTarget)


ADDRESSES = {"redis": ["10.0.0.5"], "alias.example.org": ["10.0.0.5"], "other.example.org": ["10.0.0.6"]}


def beside_redis(url: str, *allowed: str) -> Target:
    """Dial where `redis` is our store."""

    def look_up(host: str, _port: int) -> list[str]:
        return ADDRESSES.get(host) or [host]

    return Dialler({}, frozenset(allowed), None, {}, look_up, stores=[("redis", 6379)]).target("srv", Endpoint(url=url))


@pytest.mark.parametrize("url", ["http://redis:6379/", "http://alias.example.org:6379/", "http://10.0.0.5:6379/"])
def test_an_event_cannot_name_a_store_by_any_name(url: str) -> None:
    with pytest.raises(AddressForbidden, match="is a store of Toolscale"):
        beside_redis(url, "*", "redis", "alias.example.org", "10.0.0.0/8")


def test_another_port_of_a_stores_host_needs_an_entry_of_its_own() -> None:
    for allowed in ("*", "*.example.org", "10.0.0.0/8"):
        with pytest.raises(AddressForbidden, match="the host of a store, and is not listed itself"):
            beside_redis("http://alias.example.org:9000/", allowed)
    assert isinstance(beside_redis("http://alias.example.org:9000/", "alias.example.org"), HttpTarget)
    assert isinstance(beside_redis("http://10.0.0.5:9000/", "10.0.0.0/8"), HttpTarget)
    assert isinstance(beside_redis("http://other.example.org:9000/", "*.example.org"), HttpTarget)


@pytest.mark.parametrize(
    ("urls", "stores"),
    [
        ({"REDIS_URL": ""}, set[tuple[str, int]]()),
        ({"REDIS_URL": "unix:///run/redis.sock"}, set[tuple[str, int]]()),
        ({"REDIS_URL": "rediss://user:s3cret@cache"}, {("cache", 6379)}),
        ({"REDIS_URL": "redis+sentinel://:s3cret@a,b:7/main"}, {("a", 26379), ("b", 7)}),
        ({"REDIS_URL": "redis://[::1]:7", "QDRANT_URL": "https://qdrant"}, {("::1", 7), ("qdrant", 6333)}),
        ({"QDRANT_URL": "https://q-0:6333,https://q-1"}, {("q-0", 6333), ("q-1", 6333)}),
    ],
)
def test_the_stores_of_the_settings_are_known(
    urls: dict[str, str], stores: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REDIS_URL", "QDRANT_URL"):
        monkeypatch.setenv(name, urls.get(name, ""))

    assert store_addresses(load_settings()) == stores


def test_the_dialler_of_the_settings_does_not_lead_to_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:7777/0")

    with pytest.raises(AddressForbidden, match="is a store of Toolscale"):
        dialler_for(load_settings(), {}).target("srv", Endpoint(url="http://localhost:7777/mcp"))


@pytest.mark.parametrize(("host", "wrapped"), [("[2002:7f00:1::]", "6to4"), ("[64:ff9b::7f00:1]", "NAT64")])
def test_a_wrapped_address_needs_both_of_its_forms_allowed(host: str, wrapped: str) -> None:
    with pytest.raises(AddressForbidden, match=r"is not among|is not listed itself"):
        dial(f"http://{host}/", "2000::/3", "64:ff9b::/96")
    assert isinstance(dial(f"http://{host}/", "2000::/3", "64:ff9b::/96", "127.0.0.1"), HttpTarget)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1\\@10.0.0.1/",
        "http://127.0.0.1 /",
        "http://127.0.0.1\t/",
        "http://exämple.org/",
        "http:///path",
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
    ],
)
def test_a_url_that_two_parsers_could_read_differently_is_refused(url: str) -> None:
    with pytest.raises(AddressForbidden) as caught:
        dial(url, "*")

    assert "secret" not in str(caught.value)


def no_such_name(_host: str, _port: int) -> list[str]:
    raise OSError("no such name")


def test_an_allowed_name_that_does_not_resolve_may_do_so_later() -> None:
    with pytest.raises(ServerUnreachable, match=r"^srv: the host name nowhere does not resolve"):
        Dialler({}, frozenset({"nowhere"}), None, {}, no_such_name).target("srv", Endpoint(url="http://nowhere/"))


def test_a_name_that_is_not_allowed_is_said_to_be_so_whether_or_not_it_resolves() -> None:
    with pytest.raises(AddressForbidden, match=r"^srv: nowhere is not among the allowed hosts"):
        Dialler({}, LOOPBACK, None, {}, no_such_name).target("srv", Endpoint(url="http://nowhere/"))


def referring(reference: str, directory: Path | None = None, **environ: str) -> Target:
    endpoint = Endpoint(url="http://127.0.0.1/", credential_ref=reference)
    return Dialler({}, LOOPBACK, directory, environ).target("srv", endpoint)


def test_a_credential_is_taken_from_the_environment_first(tmp_path: Path) -> None:
    (tmp_path / "git-hub").write_text("from-file\n")

    from_environment = referring("git-hub", tmp_path, TOOLSCALE_CREDENTIAL_GIT_HUB="from-environment")
    from_file = referring("git-hub", tmp_path)

    assert isinstance(from_environment, HttpTarget)
    assert isinstance(from_file, HttpTarget)
    assert from_environment.headers == {"Authorization": "Bearer from-environment"}
    assert from_file.headers == {"Authorization": "Bearer from-file"}


@pytest.mark.parametrize("reference", ["missing", "../outside", "empty", "two-lines", "no-text"])
def test_a_credential_that_cannot_be_used_is_named_and_never_shown(reference: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_text("s3cret")
    (inside / "empty").write_text("\n")
    (inside / "two-lines").write_text("s3cret\nX-Injected: s3cret")
    (inside / "no-text").write_bytes(b"\xff\xfe")

    with pytest.raises(
        ServerAuthRequired, match=f"^srv: (no usable credential named|the credential) '{reference}'"
    ) as caught:
        referring(reference, inside)

    assert "s3cret" not in str(caught.value)


def test_no_secret_is_in_a_targets_repr() -> None:
    http = HttpTarget("https://host/?key=s3cret", headers={"Authorization": "s3cret"})
    stdio = StdioTarget("serve", ("--token", "s3cret"), {"TOKEN": "s3cret"})

    assert "s3cret" not in f"{http!r} {stdio!r}"


def inside(_host: str, _port: int) -> list[str]:
    return ["10.1.2.3"]


def sent_to(url: str, *allowed: str, table: dict[str, frozenset[str]] | None = None, reference: str = "github") -> bool:
    """Return whether the credential goes along to this URL, whose host is inside."""
    environ = {"TOOLSCALE_CREDENTIAL_GITHUB": "ghp-s3cret"}
    dialler = Dialler({}, frozenset(allowed), None, environ, inside, table)
    try:
        target = dialler.target("srv", Endpoint(url=url, credential_ref=reference))
    except ServerAuthRequired:
        return False
    assert isinstance(target, HttpTarget)
    return target.headers == {"Authorization": "Bearer ghp-s3cret"}


def test_a_credential_that_may_not_be_sent_to_a_host_is_said_to_be_so() -> None:
    dialler = Dialler({}, frozenset({"*"}), None, {"TOOLSCALE_CREDENTIAL_A": "s3cret"}, inside)

    with pytest.raises(ServerAuthRequired, match=r"^srv: the credential 'a' may not be sent to https://evil\.org:443$"):
        dialler.target("srv", Endpoint(url="https://evil.org/mcp", credential_ref="a"))


def test_a_credential_goes_to_the_hosts_that_it_is_bound_to_and_to_no_other() -> None:
    by_name = {"github": frozenset({"*.github.com"})}
    by_network = {"github": frozenset({"10.0.0.0/8"})}

    assert sent_to("https://api.github.com/mcp", "*", table=by_name)
    assert not sent_to("https://evil.example.org/mcp", "*", table=by_name)
    assert not sent_to("https://evil.example.org/mcp", "evil.example.org", table=by_name)
    assert sent_to("https://any.name/mcp", "any.name", table=by_network)


@pytest.mark.parametrize("reference", ["GITHUB", "gitHub", "other"])
def test_with_a_table_a_credential_that_it_does_not_name_goes_nowhere(reference: str) -> None:
    table = {"github": frozenset({"api.github.com"})}

    assert not sent_to("https://api.github.com/mcp", "api.github.com", table=table, reference=reference)


def test_without_a_table_a_credential_goes_to_hosts_that_are_named_as_allowed_but_not_to_any_host() -> None:
    assert sent_to("https://api.github.com/mcp", "*.github.com")
    assert sent_to("https://api.github.com/mcp", "10.0.0.0/8")
    assert not sent_to("https://evil.example.org/mcp", "*")
    assert sent_to("https://api.github.com/mcp", "*", "*.github.com")


def test_a_credential_goes_over_http_to_loopback_only() -> None:
    assert not sent_to("http://api.github.com/mcp", "*.github.com")
    assert not sent_to("http://api.github.com/mcp", "*.github.com", table={"github": frozenset({"api.github.com"})})
    assert isinstance(referring("a", TOOLSCALE_CREDENTIAL_A="s3cret"), HttpTarget)


@pytest.mark.parametrize(
    ("entry", "accepted", "refused"),
    [
        ("api.lan", ["https://api.lan", "https://api.lan:443"], ["https://api.lan:8443", "http://api.lan"]),
        ("https://api.lan", ["https://api.lan"], ["http://api.lan"]),
        ("api.lan:8443", ["https://api.lan:8443"], ["https://api.lan", "http://api.lan:8443"]),
        ("api.lan:*", ["https://api.lan", "https://api.lan:1"], ["http://api.lan"]),
        ("http://api.lan", ["http://api.lan", "https://api.lan"], ["http://api.lan:8080", "http://other.lan"]),
        ("http://api.lan:8080", ["http://api.lan:8080"], ["http://api.lan", "http://other.lan:8080"]),
        ("http://10.0.0.0/8:*", ["http://any.name:1", "https://any.name"], []),
        ("[fd00::1]:8443", [], ["https://any.name:8443"]),
        ("fd00::/8", [], ["https://any.name"]),
    ],
)
def test_a_credential_is_bound_to_host_and_port(entry: str, accepted: list[str], refused: list[str]) -> None:
    table = {"github": frozenset({entry})}

    assert [url for url in accepted if not sent_to(url, "any.name", "*.lan", table=table)] == []
    assert [url for url in refused if sent_to(url, "any.name", "*.lan", "*", table=table)] == []


@pytest.mark.parametrize(
    "entry", ["[::1]:9000", "[::/64]:*", "http://[::1]:9000", "127.0.0.1:9000", "127.0.0.0/8:9000"]
)
def test_a_loopback_entry_binds_the_port(entry: str) -> None:
    def sent(port: int) -> bool:
        host = "[::1]" if "::" in entry else "127.0.0.1"
        table, environ = {"a": frozenset({entry})}, {"TOOLSCALE_CREDENTIAL_A": "s3cret"}
        dialler = Dialler({}, LOOPBACK, None, environ, credential_hosts=table)
        try:
            dialler.target("srv", Endpoint(url=f"http://{host}:{port}/", credential_ref="a"))
        except ServerAuthRequired:
            return False
        return True

    assert sent(9000)
    assert sent(9001) == entry.endswith("*")


@pytest.mark.parametrize(
    "entry", ["[::1]:9000", "::1", "fd00::/8", "http://*.lan:*", "https://a_b.lan", "10.0.0.0/8:80", "*"]
)
def test_every_form_of_an_entry_is_accepted_by_the_settings(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_CREDENTIAL_HOSTS", f"github={entry},h.lan jira-eu=jira.lan")

    assert load_settings().credential_hosts == {
        "github": frozenset({entry, "h.lan"}),
        "jira-eu": frozenset({"jira.lan"}),
    }


@pytest.mark.parametrize(
    "table",
    [
        "github",
        "github=",
        "=host",
        "github=a=b",
        "a.b=host",
        "github=a github=b",
        "a=ftp://h",
        "a=http://",
        "a=h/mcp",
        "a=h:x",
    ],
)
def test_a_table_that_cannot_be_read_is_refused_at_the_start(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_CREDENTIAL_HOSTS", table)

    with pytest.raises(ConfigInvalid, match=r"^setting credential_hosts"):
        load_settings()


def issuer_of(server: str, issuer: str, *allowed: str, **resolved: str) -> HttpTarget:
    """Return the target of an authorization server that the server at this URL names."""
    own = HttpTarget(server) if not allowed else HttpTarget(server, addresses=("203.0.113.1",))
    dialler = Dialler({}, frozenset(allowed), None, {}, resolve=lambda host, _: [resolved[host]])
    return dialler.oauth_server(own, "srv", {}).dial_issuer(issuer)


def test_an_authorization_server_is_reached_at_its_checked_address() -> None:
    target = issuer_of("https://mcp.test/", "https://login/token", login="203.0.113.7")

    assert target.addresses == ("203.0.113.7",)


@pytest.mark.parametrize(
    ("issuer", "address"),
    [
        ("https://login/", "127.0.0.1"),
        ("https://login/", "169.254.169.254"),
        ("http://login/", "203.0.113.7"),
    ],
)
def test_a_server_leads_to_no_authorization_server_of_this_machine_and_to_none_without_tls(
    issuer: str, address: str
) -> None:
    with pytest.raises(AddressForbidden):
        issuer_of("https://mcp.test/", issuer, login=address)


def test_the_authorization_server_of_an_events_server_has_to_be_allowed_too() -> None:
    with pytest.raises(AddressForbidden):
        issuer_of("https://mcp.test/", "https://login/", "mcp.test", login="203.0.113.7")

    assert issuer_of("https://mcp.test/", "https://login/", "mcp.test", "login", login="203.0.113.7").addresses


def test_a_token_of_a_caller_is_lent_for_listings_alone(tmp_path: Path) -> None:
    sign_ins = SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))
    tokens = OAuthToken(access_token="of-ann")
    client = OAuthClientInformationFull(client_id="c")
    sign_ins.put(SignIn(server_id="srv", caller="ann", url="http://127.0.0.1/", client=client, tokens=tokens))
    options = ServerOptions(auth=Auth(type="caller", listing="first-caller"))
    target = HttpTarget("http://127.0.0.1/")
    dialler = Dialler({"srv": target}, frozenset(), None, {}, read_options=lambda _, __: options, sign_ins=sign_ins)

    def token(found: Target) -> str | None:
        assert isinstance(found, HttpTarget)
        assert found.tokens
        return anyio.run(found.tokens.current)

    assert token(dialler.listing_target("srv", Endpoint(), {})) == "of-ann"
    # the operator over stdio has no name of his own
    assert token(dialler.authenticated(target, "srv", {}, Requester())) is None
    assert token(dialler.authenticated(target, "srv", {}, Requester("bob"))) is None


def test_only_tokens_of_callers_can_be_lent() -> None:
    with pytest.raises(ValidationError):
        Auth(type="service", listing="first-caller")
