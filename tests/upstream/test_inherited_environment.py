from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.upstream.stdio import inherited_environment

SECRET_NAMES = ("AUTH", "TOKEN", "PASSWORD", "SECRET", "CREDENTIALS", "USERNAME")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/bin"),
        ("HOME", "/home/me@company"),
        ("LANG", "de_DE@euro"),
        ("LC_ALL", "C.UTF-8"),
        ("TZ", "Europe/Berlin"),
        ("TMPDIR", "/scratch"),
        ("XDG_CACHE_HOME", "/cache"),
        ("SSL_CERT_FILE", "/etc/ca.pem"),
        ("NODE_EXTRA_CA_CERTS", "/etc/ca.pem"),
        ("REQUESTS_CA_BUNDLE", "/etc/ca.pem"),
        ("https_proxy", "http://proxy:3128"),
        ("NO_PROXY", "localhost,.example.org"),
        ("UV_DEFAULT_INDEX", "https://index.example.org/simple"),
        ("UV_KEYRING_PROVIDER", "subprocess"),
        ("PIP_INDEX_URL", "https://index.example.org/simple"),
        ("npm_config_registry", "https://registry.example.org/"),
        ("NPM_CONFIG_CAFILE", "/etc/ca.pem"),
    ],
)
def test_a_harmless_variable_is_inherited(name: str, value: str) -> None:
    assert inherited_environment({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOOLSCALE_CREDENTIAL_GITHUB", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("GITHUB_TOKEN", "x"),
        ("PYTHONPATH", "/ours"),
        ("HTTPS_PROXY", "http://me:password@proxy:3128"),
        ("all_proxy", "me:password@proxy:1080"),
        ("UV_INDEX", "company=https://token@index.example.org/simple"),
        ("UV_DEFAULT_INDEX", "https://index.example.org/simple?key=x"),
        ("UV_INDEX_COMPANY_PASSWORD", "x"),
        ("UV_PUBLISH_TOKEN", "x"),
        ("PIP_EXTRA_INDEX_URL", "https://me:password@index.example.org/simple"),
        ("npm_config__auth", "x"),
        ("npm_config_//registry.example.org/:_authToken", "x"),
        ("NPM_CONFIG_KEY", "x"),
        ("npm_config_otp", "x"),
        ("LANG", "() { :; }"),
    ],
)
def test_a_credential_or_a_variable_of_our_own_is_not_inherited(name: str, value: str) -> None:
    assert inherited_environment({name: value}) == {}


@given(
    st.sampled_from(["UV_", "PIP_", "npm_config_", "NPM_CONFIG_"]),
    st.text("ABC_", max_size=8),
    st.sampled_from(SECRET_NAMES),
    st.text("ABC_", max_size=8),
    st.booleans(),
)
def test_no_setting_of_a_package_manager_that_names_a_credential_is_inherited(
    prefix: str, before: str, secret: str, after: str, is_lower: bool
) -> None:
    rest = before + secret + after

    assert inherited_environment({prefix + (rest.lower() if is_lower else rest): "x"}) == {}
