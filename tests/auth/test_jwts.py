from __future__ import annotations

import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from jwt.utils import base64url_encode

from query.auth.authentication import authentication_of
from query.auth.jwts import (
    KEEP_FOR_S,
    MAX_BYTES,
    REFRESH_AFTER_S,
    RETRY_AFTER_S,
    IssuerKeys,
    JwtTokens,
    keys_at,
)
from query.caller import Caller
from shared.errors import AuthenticationFailed, ConfigInvalid, KeysUnavailable
from shared.settings import load_settings
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, issuer, published

pytestmark = pytest.mark.anyio

BY = issuer()


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    return written(tmp_path / "jwks.json", BY)


def written(path: Path, by: Issuer) -> Path:
    path.write_text(json.dumps(by.jwks()), encoding="utf-8")
    return path


def accepting(jwks: Path, leeway_s: float = 30.0, admin_group: str | None = None) -> JwtTokens:
    return JwtTokens(ISSUER, AUDIENCE, keys_at(str(jwks)), admin_group, leeway_s)


async def test_a_token_of_the_issuer_is_a_caller_with_what_its_claims_say(jwks: Path) -> None:
    token = BY.token("first", groups=["a", "b"], toolset="daily", budget_tokens=900, aud=[AUDIENCE, "other"])

    caller = await accepting(jwks).caller(token)

    assert caller == Caller("jwt:ann", frozenset("ab"), frozenset({"catalog:read", "tools:call"}), "daily", 900)


async def test_a_token_that_says_nothing_of_groups_or_permissions_gives_none(jwks: Path) -> None:
    caller = await accepting(jwks).caller(BY.token("first", scope=None))

    assert (caller.groups, caller.permissions) == (frozenset(), frozenset())


@pytest.mark.parametrize(("admin_group", "groups"), [("admins", None), (None, frozenset({"admins", "*"}))])
async def test_only_the_group_that_the_operator_named_sees_everything(
    jwks: Path, admin_group: str | None, groups: frozenset[str] | None
) -> None:
    token = BY.token("first", groups=["admins", "*"])

    caller = await accepting(jwks, admin_group=admin_group).caller(token)

    assert caller.groups == groups


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1_700_000_000},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": 9_000_000_000},
        {"iat": 9_000_000_000},
        {"iss": "https://evil.example.org"},
        {"iss": ISSUER + "/"},
        {"iss": None},
        {"aud": "https://tools.example.org/other"},
        {"aud": [ISSUER]},
        {"aud": None},
        {"sub": None},
        {"sub": 7},
        {"groups": "a b"},
        {"groups": [7]},
        {"groups": {"a": 1}},
        {"scope": 7},
        {"toolset": ["x"]},
        {"budget_tokens": "many"},
        {"budget_tokens": True},
        {"typ": "logout+jwt"},
        {"typ": "dpop+jwt"},
    ],
    ids=repr,
)
async def test_a_token_that_is_not_for_us_now_is_refused(jwks: Path, claims: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationFailed):
        await accepting(jwks).caller(BY.token("first", **claims))


@pytest.mark.parametrize(("claim", "from_now_s"), [("exp", -10), ("nbf", 20), ("iat", 20)])
async def test_clocks_may_differ_by_the_leeway_and_no_more(jwks: Path, claim: str, from_now_s: float) -> None:
    token = BY.token("first", **{claim: time.time() + from_now_s})

    assert await accepting(jwks).caller(token)
    with pytest.raises(AuthenticationFailed):
        await accepting(jwks, leeway_s=1).caller(token)


@pytest.mark.parametrize("typ", ["at+jwt", "application/at+jwt", "JWT"])
async def test_types_of_access_tokens_are_accepted(jwks: Path, typ: str) -> None:
    assert await accepting(jwks).caller(BY.token("first", typ=typ))


async def test_a_token_signed_by_another_key_of_the_same_id_is_refused(jwks: Path) -> None:
    with pytest.raises(AuthenticationFailed):
        await accepting(jwks).caller(issuer().token("first"))


async def test_a_token_that_was_changed_is_refused(jwks: Path) -> None:
    header, _, signature = BY.token("first").split(".")
    _, payload, _ = BY.token("first", sub="root").split(".")

    with pytest.raises(AuthenticationFailed):
        await accepting(jwks).caller(f"{header}.{payload}.{signature}")


@pytest.mark.parametrize("alg", [[], {}, 7, None, "none"])
async def test_an_algorithm_that_is_no_name_or_no_signature_is_refused(jwks: Path, alg: object) -> None:
    _, payload, _ = BY.token("first").split(".")
    header = base64url_encode(json.dumps({"alg": alg, "kid": "first"}).encode()).decode()

    with pytest.raises(AuthenticationFailed):
        await accepting(jwks).caller(f"{header}.{payload}.")


async def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(jwks: Path) -> None:
    public = BY.keys["first"].public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _, payload, _ = BY.token("first").split(".")
    signed = base64url_encode(b'{"alg":"HS256","kid":"first"}') + b"." + payload.encode()
    signature = base64url_encode(hmac.digest(secret, signed, "sha256"))

    with pytest.raises(AuthenticationFailed, match="algorithm"):
        await accepting(jwks).caller((signed + b"." + signature).decode())


NESTED = base64url_encode(b'{"alg":' + b"[" * 9_000).decode() + ".e30.e30"


@pytest.mark.parametrize("token", ["..", "a.b.c", "e30.e30.", "\N{SNOWMAN}.b.c", "\udcff.b.c", "e30.e30.e30", NESTED])
async def test_what_is_no_jwt_is_refused(jwks: Path, token: str) -> None:
    with pytest.raises(AuthenticationFailed):
        await accepting(jwks).caller(token)


# --- the issuer's keys ---


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time in seconds, which the test changes."""
    now_s = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    return now_s


def test_a_key_that_the_issuer_added_is_found_when_it_is_first_used(now_s: list[float]) -> None:
    by = issuer("old")
    with published(by) as site:
        keys = IssuerKeys(site.url)
        assert keys.key("old")
        by.rotate("new")
        now_s[0] += RETRY_AFTER_S

        assert keys.key("new")
        assert keys.key("old")
        assert site.fetched == 2


def test_a_key_that_the_issuer_withdrew_is_refused_once_the_keys_are_fetched_again(now_s: list[float]) -> None:
    by = issuer("old")
    with published(by) as site:
        keys = IssuerKeys(site.url)
        assert keys.key("old")
        by.rotate("new")
        del by.keys["old"]
        now_s[0] += REFRESH_AFTER_S + 1

        assert keys.key("old") is None


def test_strangers_who_make_up_keys_cause_one_fetch_now_and_then(now_s: list[float]) -> None:
    with published(BY) as site:
        keys = IssuerKeys(site.url)
        for number in range(100):
            assert keys.key(f"made up {number}") is None
            now_s[0] += RETRY_AFTER_S / 50

        assert site.fetched == 2


def test_an_issuer_that_was_never_there_is_asked_now_and_then(now_s: list[float]) -> None:
    with published(BY) as site:
        site.answer = (500, {}, b"")
        keys = IssuerKeys(site.url)
        for _ in range(100):
            with pytest.raises(KeysUnavailable):
                keys.key("first")
            now_s[0] += RETRY_AFTER_S / 50

        assert site.fetched == 2
        site.answer = None
        now_s[0] += RETRY_AFTER_S
        assert keys.key("first")


def test_while_the_issuer_is_away_known_keys_are_used_for_a_while(now_s: list[float]) -> None:
    with published(BY) as site:
        keys = IssuerKeys(site.url)
        assert keys.key("first")
        site.answer = (500, {}, b"")
        now_s[0] += REFRESH_AFTER_S + 1

        assert keys.key("first")
        assert keys.key("first")
        assert site.fetched == 2
        now_s[0] += KEEP_FOR_S
        with pytest.raises(KeysUnavailable):
            keys.key("first")


@pytest.mark.parametrize(
    "answer",
    [
        (302, {"location": "/elsewhere"}, b""),
        (200, {}, b"not json"),
        (200, {}, b'{"keys": []}'),
        (200, {}, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'),
        (200, {}, b" " * (MAX_BYTES + 1)),
        (404, {}, b"{}"),
    ],
    ids=["redirect", "no json", "no keys", "no public key", "too large", "not there"],
)
def test_what_is_no_set_of_keys_is_not_taken_for_one(answer: tuple[int, dict[str, str], bytes]) -> None:
    with published(BY) as site:
        site.answer = answer
        keys = IssuerKeys(site.url)

        with structlog.testing.capture_logs() as lines, pytest.raises(KeysUnavailable):
            keys.key("first")

    assert [line["event"] for line in lines] == ["keys_fetch_failed"]


def test_a_file_of_keys_is_followed(tmp_path: Path) -> None:
    by = issuer("old")
    key_of = keys_at(str(written(tmp_path / "jwks.json", by)))
    assert key_of("new") is None

    by.rotate("new")
    written(tmp_path / "jwks.json", by)

    assert key_of("new")


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"public_url": AUDIENCE}, "jwt_jwks"),
        ({"jwt_jwks": "https://login.example.org/keys"}, "public_url"),
        ({"public_url": AUDIENCE, "jwt_jwks": "http://login.example.org/keys"}, "https"),
        ({"public_url": AUDIENCE, "jwt_jwks": "ftp://127.0.0.1/keys"}, "https"),
        ({"public_url": AUDIENCE, "jwt_jwks": "/nowhere/jwks.json"}, "cannot be read"),
    ],
)
async def test_half_a_configuration_is_refused_by_what_is_missing(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigInvalid, match=named):
        authentication_of(load_settings(jwt_issuer=ISSUER, **settings))


async def test_the_audience_is_our_url_unless_the_settings_say_otherwise(jwks: Path) -> None:
    given = {"jwt_issuer": ISSUER, "jwt_jwks": str(jwks), "public_url": AUDIENCE}
    named = authentication_of(load_settings(**given, jwt_audience="api://tools"))
    unnamed = authentication_of(load_settings(**given))
    assert named is not None
    assert unnamed is not None

    assert await named.caller(BY.token("first", aud="api://tools"))
    assert await unnamed.caller(BY.token("first"))
    with pytest.raises(AuthenticationFailed):
        await named.caller(BY.token("first"))
