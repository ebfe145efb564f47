"""The store of sign-ins: one contract for a file and for Redis, and what is in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from shared.errors import ConfigInvalid
from shared.settings import Settings
from shared.upstream.sign_ins import (
    Entries,
    RedisEntries,
    SecretKey,
    SignIn,
    SignIns,
    SqliteEntries,
    open_sign_ins,
)
from tests.support.fake_redis import FakeRedisServer

OLD_KEY, NEW_KEY = "o" * 32, "n" * 32


def sign_in(server: str = "docs", caller: str = "ann", token: str = "canary-access") -> SignIn:
    """Return a sign-in whose access token lasts for an hour."""
    return SignIn(
        server_id=server,
        caller=caller,
        url="http://127.0.0.1/mcp",
        client=OAuthClientInformationFull(client_id="c", client_secret="canary-secret"),
        tokens=OAuthToken(access_token=token, refresh_token="canary-refresh", expires_in=3_600),
        since=time.time(),
        renewed_at=time.time(),
    )


@pytest.fixture(params=["file", "redis"])
def entries(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Entries]:
    """Yield each kind of entries."""
    if request.param == "file":
        yield SqliteEntries(tmp_path / "sign-ins.sqlite3")
    else:
        yield RedisEntries(FakeRedisServer().client(decode_responses=False))


@pytest.fixture
def sign_ins(entries: Entries, tmp_path: Path) -> SignIns:
    """Return sign-ins with a key file."""
    return SignIns(entries, SecretKey(None, tmp_path / "secret.key"))


def test_a_sign_in_is_found_by_its_server_and_caller_alone(sign_ins: SignIns) -> None:
    sign_ins.put(mine := sign_in())
    sign_ins.put(sign_in(caller="bob", token="other"))

    assert sign_ins.get("docs", "ann") == mine
    assert sign_ins.get("docs", "") is None
    assert sign_ins.get("doc", "sann") is None
    assert [(each.server_id, each.caller) for each in sign_ins.all()] == [("docs", "ann"), ("docs", "bob")]


def test_an_ended_sign_in_is_not_brought_back_by_a_refresh_that_began_before(sign_ins: SignIns) -> None:
    sign_ins.put(before := sign_in())

    assert sign_ins.end("docs", "ann")

    assert not sign_ins.replace(before, before.model_copy(update={"renewed_at": 1.0}))
    assert sign_ins.get("docs", "ann") is None
    assert not sign_ins.end("docs", "ann")


def test_of_two_refreshes_of_the_same_sign_in_one_is_stored(sign_ins: SignIns) -> None:
    sign_ins.put(before := sign_in())
    first, second = (before.model_copy(update={"renewed_at": at}) for at in (1.0, 2.0))

    assert sign_ins.replace(before, first)
    assert not sign_ins.replace(before, second)

    assert sign_ins.get("docs", "ann") == first


def test_a_lease_has_one_holder_until_it_is_released(entries: Entries) -> None:
    assert entries.try_lease("a", "first")
    assert not entries.try_lease("a", "second")
    assert entries.try_lease("b", "second")

    entries.release("a", "second")
    assert not entries.try_lease("a", "second")

    entries.release("a", "first")
    assert entries.try_lease("a", "second")


def test_nothing_in_the_store_or_a_text_form_shows_a_secret(
    sign_ins: SignIns, entries: Entries, tmp_path: Path
) -> None:
    sign_ins.put(stored := sign_in())

    stored_bytes = b"".join(entries.get(name) or b"" for name in entries.names())
    stored_bytes += b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"canary" not in stored_bytes
    assert "canary" not in f"{stored!r} {stored!s}"


def test_the_files_are_made_with_the_first_sign_in_and_are_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sign_ins = open_sign_ins(Settings(data_dir=data))

    assert sign_ins.get("docs", "ann") is None
    assert list(sign_ins.all()) == []
    assert not data.exists()

    sign_ins.put(sign_in())
    assert {file.name for file in data.iterdir()} >= {"secret.key", "sign-ins.sqlite3"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in data.iterdir())


def test_a_new_key_before_the_old_one_needs_no_other_sign_in(entries: Entries) -> None:
    SignIns(entries, SecretKey(OLD_KEY, None)).put(mine := sign_in())

    rotating = SignIns(entries, SecretKey(f"{NEW_KEY},{OLD_KEY}", None))
    assert rotating.get("docs", "ann") == mine
    assert rotating.replace(mine, renewed := mine.model_copy(update={"renewed_at": 5.0}))

    assert SignIns(entries, SecretKey(NEW_KEY, None)).get("docs", "ann") == renewed


def test_a_sign_in_of_a_lost_key_counts_as_none(entries: Entries) -> None:
    SignIns(entries, SecretKey(OLD_KEY, None)).put(sign_in())
    other = SignIns(entries, SecretKey(NEW_KEY, None))

    assert other.get("docs", "ann") is None
    assert list(other.all()) == []
    other.put(mine := sign_in(token="again"))
    assert other.get("docs", "ann") == mine


def test_services_need_no_key_before_the_first_sign_in() -> None:
    sign_ins = SignIns(RedisEntries(FakeRedisServer().client(decode_responses=False)), SecretKey(None, None))

    assert sign_ins.get("docs", "ann") is None
    with pytest.raises(ConfigInvalid, match="TOOLSCALE_SECRET_KEY"):
        sign_ins.put(sign_in())


@pytest.mark.parametrize("text", ["", "short"])
def test_a_key_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret.key").write_text(text)
    sign_ins = open_sign_ins(Settings(data_dir=tmp_path))

    with pytest.raises(ConfigInvalid, match=r"secret\.key"):
        sign_ins.put(sign_in())


def test_processes_that_make_the_key_at_once_have_the_same(tmp_path: Path) -> None:
    several = [open_sign_ins(Settings(data_dir=tmp_path / "data")) for _ in range(8)]

    with ThreadPoolExecutor(len(several)) as threads:
        list(threads.map(SignIns.check_key, several))

    several[0].put(mine := sign_in())
    assert all(each.get("docs", "ann") == mine for each in several)
    assert {file.name for file in (tmp_path / "data").iterdir() if "key" in file.name} == {"secret.key"}
