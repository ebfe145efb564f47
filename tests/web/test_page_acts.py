"""What a person does on the page, in a real Chromium over real servers: each row of the page, and nobody else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import pytest

from tests.support.browser import Browser, Tab
from tests.support.hostile.changing_server import ChangingServer, changing_server
from tests.support.hostile.messages import tool
from tests.support.waiting import eventually
from tests.web.test_page_browser import serving

pytestmark = [pytest.mark.process, pytest.mark.browser]

# A server that cannot start; each start is a line of a file.
BROKEN = "import sys; open(sys.argv[1], 'a').write('started\\n'); sys.exit('KeyError: MAIL_TOKEN')"
WORDS = {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]}


@dataclass
class Installation:
    """A running service over a server whose tools a test changes, and one that fails."""

    address: str
    config: Path
    starts: Path
    server: ChangingServer

    @property
    def started(self) -> int:
        """Return how often the failing server was started."""
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0


@pytest.fixture
def installation(tmp_path: Path) -> Generator[Installation]:
    """Yield a service that has listed its servers as far as they can be listed."""
    starts, config = tmp_path / "starts", tmp_path / "mcp.json"
    described = [{**tool("send"), "description": "Sends mail", "inputSchema": WORDS}, {**tool("read")}]
    with changing_server(*described) as server:
        broken = {"command": sys.executable, "args": ["-c", BROKEN, str(starts)]}
        config.write_text(json.dumps({"mcpServers": {"post": {"url": server.url}, "mail": broken}}))
        with serving(tmp_path, "--config", str(config), indexed=1) as address:
            found = Installation(address, config, starts, server)
            eventually(lambda: "KeyError" in get(found, "/ui/servers/mail"), what="the failing server")
            yield found


def get(installation: Installation, path: str) -> str:
    return httpx2.get(installation.address + path, trust_env=False).text


def words(tab: Tab, selector: str = "main") -> str:
    return str(tab.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


# --- the first screen ---


def test_an_empty_installation_shows_the_first_steps_and_turns_into_the_map_by_itself(
    chromium: Browser, tmp_path: Path
) -> None:
    config = tmp_path / "data" / "mcp.json"
    config.parent.mkdir()
    config.write_text('{"mcpServers": {}}')
    with changing_server(tool("send")) as server, serving(tmp_path, "--config", str(config)) as address:
        tab = chromium.tab()
        tab.open(f"{address}/ui")
        commands = tab.evaluate("[...document.querySelectorAll('.steps pre')].map(each => each.innerText)")
        config.write_text(json.dumps({"mcpServers": {"post": {"url": server.url}}}))
        eventually(lambda: tab.evaluate("document.querySelectorAll('a.tile').length") == 1, what="the map")

    assert [command.split()[1] for command in commands[:3]] == ["import", "add", "add"]
    assert tab.problems == []


def test_the_bars_and_the_line_of_problems_are_there_without_scripts(
    chromium: Browser, installation: Installation
) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{installation.address}/ui")

    assert tab.evaluate("document.querySelector('details.attention ul').checkVisibility()")
    assert "KeyError: MAIL_TOKEN" in words(tab, "details.attention ul")
    assert tab.problems == []


# --- the map ---


def test_a_box_of_the_map_is_named_by_mouse_and_keyboard_and_opens_its_tool(
    chromium: Browser, installation: Installation
) -> None:
    tab = chromium.tab()
    tab.open(f"{installation.address}/ui")
    before = words(tab, ".pointed")
    tab.point("a.tile[href$='send']")
    by_mouse = words(tab, ".pointed")
    tab.evaluate("document.querySelector('.map .skip').focus()")
    tab.press_tab()
    by_key = words(tab, ".pointed")
    tab.follow("a.tile[href$='send']")

    assert "post:" not in before
    assert by_mouse.startswith("post:send, ")
    assert re.match(r"post:(send|read), \d+ tokens, never called", by_key)
    assert tab.evaluate("location.pathname") == "/ui/tools/post%3Asend"
    assert tab.problems == []


def test_the_first_tap_names_a_box_and_the_second_opens_it(chromium: Browser, installation: Installation) -> None:
    tab = chromium.tab(390)
    tab.call("Emulation.setTouchEmulationEnabled", {"enabled": True})
    tab.open(f"{installation.address}/ui")

    tab.click("a.tile[href$='read']", touch=True)
    eventually(lambda: words(tab, ".pointed").startswith("post:read, "), what="the name")
    still = tab.evaluate("location.pathname")
    tab.follow("a.tile[href$='read']", touch=True)

    assert still == "/ui"
    assert tab.evaluate("location.pathname") == "/ui/tools/post%3Aread"


def test_a_person_leaves_a_tool_out_after_a_confirmation(chromium: Browser, installation: Installation) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{installation.address}/ui/tools?unused=1")

    tab.click("input[value='post:read']")
    tab.follow("form button")
    before = installation.config.read_text()
    tab.follow("form.stacked button")

    assert "excludeTools" not in before
    entry = json.loads(installation.config.read_text())["mcpServers"]["post"]
    assert entry["excludeTools"] == ["read"]
    eventually(lambda: "post:read" not in get(installation, "/ui/tools"), what="the list without the tool")
    assert "post:send" in get(installation, "/ui/tools")


# --- find, and try ---


def test_a_person_finds_a_tool_and_calls_it_without_scripts_and_the_feed_tells(
    chromium: Browser, installation: Installation
) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{installation.address}/ui/find?q=send+mail")

    tab.evaluate("document.querySelector('.hits details').open = true")
    tab.evaluate("document.querySelector('.hits [name=\"p.words\"]').focus()")
    tab.type("hello")
    shown = words(tab)
    tab.open(f"{installation.address}/ui")

    assert installation.server.called == ["send"]
    assert "done" in shown
    assert re.search(r"\d+ ms: \d+ token", shown)
    assert re.search(r"send of post by anyone: ok, \d+ ms", words(tab, ".feed"))
    assert "hello" not in words(tab, ".feed")
    assert tab.problems == []


# --- the feed ---


def reads(tab: Tab) -> int:
    """Return how often the page has read the feed."""
    return int(tab.evaluate("performance.getEntriesByType('resource').filter(one => /feed/.test(one.name)).length"))


def test_the_feed_fills_while_the_page_is_visible_and_rests_while_it_is_hidden(
    chromium: Browser, installation: Installation
) -> None:
    tab = chromium.tab()
    tab.open(f"{installation.address}/ui")

    def become(state: str) -> None:
        tab.evaluate(
            f"Object.defineProperty(document, 'visibilityState', {{value: '{state}', configurable: true}});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )

    installation.server.tools.append({**tool("draft")})
    httpx2.post(f"{installation.address}/api/intents", json={"servers": ["post"]}, trust_env=False).raise_for_status()
    eventually(lambda: "3 tools" in words(tab, ".feed"), what="the tool in the feed")
    become("hidden")
    tab.evaluate("new Promise(done => setTimeout(done, 2500))")  # what was under way ends
    hidden = reads(tab)
    tab.evaluate("new Promise(done => setTimeout(done, 5000))")
    still_hidden = reads(tab)
    become("visible")
    eventually(lambda: reads(tab) > hidden, what="the feed again")

    assert still_hidden == hidden
    assert tab.problems == []


# --- a failing server ---


def test_a_failing_server_is_started_again_by_its_button(chromium: Browser, installation: Installation) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{installation.address}/ui/servers/mail")
    before = installation.started
    first = words(tab, "main > section")
    tab.follow("form.act button")

    eventually(lambda: installation.started > before, what="another start")
    assert "KeyError: MAIL_TOKEN" in first
    assert str(installation.config) in first
    assert tab.evaluate("location.pathname") == "/ui/servers/mail"


# --- changed definitions ---


def test_changed_words_are_marked_and_accepted_on_the_page(chromium: Browser, installation: Installation) -> None:
    installation.server.tools[0] = {**installation.server.tools[0], "description": "Sends parcels"}
    httpx2.post(f"{installation.address}/api/intents", json={"servers": ["post"]}, trust_env=False).raise_for_status()
    eventually(lambda: "<ins>" in get(installation, "/ui/servers/post"), what="the change")
    tab = chromium.tab(scripts=False)
    tab.open(f"{installation.address}/ui/servers/post")
    marked = [words(tab, "#changes del"), words(tab, "#changes ins")]
    tab.follow("#changes button")

    assert marked == ["mail", "parcels"]
    eventually(lambda: "<ins>" not in get(installation, "/ui/servers/post"), what="the acceptance")


# --- nobody else ---


class Elsewhere(BaseHTTPRequestHandler):
    """A page of another port of this machine, with a form for the service."""

    form = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.form)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the overridden signature
        """Stay silent."""


def test_a_page_of_another_port_calls_and_changes_nothing_even_with_a_token(
    chromium: Browser, installation: Installation
) -> None:
    (token,) = re.findall(r'name="token" value="([^"]+)"', get(installation, "/ui/servers/mail"))
    before = installation.started
    Elsewhere.form = (
        f'<form action="{installation.address}/ui/retry/mail" method="post"><input name="token" value="{token}">'
        "<button>Win</button></form>"
    ).encode()
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        tab = chromium.tab()
        tab.open(f"http://127.0.0.1:{other.server_address[1]}/")
        tab.follow("button")
        other.shutdown()

    assert tab.evaluate("location.pathname") == "/ui/retry/mail"
    assert "Not allowed" in words(tab)
    assert installation.started == before
