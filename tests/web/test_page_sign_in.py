"""The page's button for a sign-in, in a real browser, before a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_serve import serving
from tests.support.browser import Browser
from tests.support.oauth_server import protected_server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.browser]


def test_a_person_signs_in_by_the_button_of_a_servers_page(chromium: Browser, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    with protected_server() as server:
        config.write_text(json.dumps({"mcpServers": {"private": {"url": server.url}}}))
        with serving(config, TOOLSCALE_DATA_DIR=str(tmp_path / "data")) as (running, url):
            running.wait_for("sign_in_required")
            tab = chromium.tab(scripts=True)
            page = f"{url.removesuffix('/mcp')}/ui/servers/private"

            def has(selector: str) -> bool:
                return bool(tab.evaluate(f"!!document.querySelector({selector!r})"))

            def has_button() -> bool:
                tab.open(page)
                return has("form.act button")

            eventually(has_button)
            tab.evaluate("document.querySelector('form.act button').click()")
            eventually(lambda: has("a.button"))
            tab.evaluate("document.querySelector('a.button').click()")
            eventually(lambda: "Signed in" in str(tab.evaluate("document.title")))
            running.wait_for("server_indexed")

    assert server.people.authorized["somebody"] == 1
    assert tab.problems == []
