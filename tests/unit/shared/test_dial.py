from __future__ import annotations

from pathlib import Path

import pytest

from shared.catalog import Endpoint
from shared.errors import AddressForbidden, ConfigInvalid, ServerAuthRequired, ServerUnreachable
from shared.settings import load_settings
from shared.upstream.dial import Dialler, HttpTarget, StdioTarget, Target
from shared.upstream.dialler import dialler_for
from shared.upstream.hosts import resolve
from shared.upstream.secrets import secrets_of

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
        "fd00:ec2::254",
        "fe80::1",
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


@pytest.mark.parametrize(("host", "wrapped"), [("[2002:7f00:1::]", "6to4"), ("[64:ff9b::7f00:1]", "NAT64")])
def test_a_wrapped_address_needs_both_of_its_forms_allowed(host: str, wrapped: str) -> None:
    with pytest.raises(AddressForbidden):
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


@pytest.mark.parametrize("reference", ["missing", "../outside", "empty", "two-lines"])
def test_a_credential_that_cannot_be_used_is_named_and_never_shown(reference: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_text("s3cret")
    (inside / "empty").write_text("\n")
    (inside / "two-lines").write_text("s3cret\nX-Injected: s3cret")

    with pytest.raises(ServerAuthRequired, match=f"^srv: no usable credential named '{reference}'") as caught:
        referring(reference, inside)

    assert "s3cret" not in str(caught.value)


def test_no_secret_is_in_a_targets_repr() -> None:
    http = HttpTarget("https://host/?key=s3cret", headers={"Authorization": "s3cret"})
    stdio = StdioTarget("serve", ("--token", "s3cret"), {"TOKEN": "s3cret"})

    assert "s3cret" not in f"{http!r} {stdio!r}"


def test_a_credential_that_is_no_text_is_as_unusable_as_none(tmp_path: Path) -> None:
    (tmp_path / "github").write_bytes(b"\xff\xfe")

    with pytest.raises(ServerAuthRequired, match="no usable credential named 'github'"):
        referring("github", tmp_path)


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

    with pytest.raises(ServerAuthRequired, match=r"^srv: the credential 'a' may not be sent to evil\.org$"):
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


def test_the_table_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_CREDENTIAL_HOSTS", "github=*.github.com,10.0.0.0/8 jira-eu=jira.lan")

    assert load_settings().credential_hosts == {
        "github": frozenset({"*.github.com", "10.0.0.0/8"}),
        "jira-eu": frozenset({"jira.lan"}),
    }


@pytest.mark.parametrize("table", ["github", "github=", "=host", "github=a=b", "a.b=host", "github=a github=b"])
def test_a_table_that_cannot_be_read_is_refused_at_the_start(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_CREDENTIAL_HOSTS", table)

    with pytest.raises(ConfigInvalid, match=r"^setting credential_hosts"):
        load_settings()
