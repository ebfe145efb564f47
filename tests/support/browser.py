"""A real headless Chromium over its DevTools protocol: screenshots of a page, and its errors."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.support.waiting import eventually

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TIMEOUT_S = 90.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, and open nothing but pages of ours
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)


@contextmanager
def browser(directory: Path) -> Generator[Browser]:
    """Yield a browser with its profile in `directory`; skips the test if no browser is installed."""
    if PROGRAM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    port_file = directory / "DevToolsActivePort"
    with (directory / "chromium.log").open("wb") as log:
        command = [PROGRAM, *_FLAGS, f"--user-data-dir={directory}", "about:blank"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: port_file.exists() and "\n" in port_file.read_text(), TIMEOUT_S, "Chromium's port")
        port, path = port_file.read_text().splitlines()[:2]
        url = f"ws://127.0.0.1:{port}{path}"
        with closing(websocket.create_connection(url, timeout=TIMEOUT_S, suppress_origin=True)) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Browser:
    """Tabs of one Chromium."""

    connection: websocket.WebSocket
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def tab(self, width: int = 1200, height: int = 900, *, dark: bool = False, scripts: bool = True) -> Tab:
        """Open a tab of this size, in CSS pixels, for someone who prefers dark or light pages."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Log", "Runtime"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        tab.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        tab.call("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        return tab

    def call(self, method: str, params: dict[str, Any] | None = None, tab: Tab | None = None) -> dict[str, Any]:
        """Return the answer to a command; tabs keep the events that arrive before it."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params or {}}
        self.connection.send(json.dumps(message | ({"sessionId": tab.session} if tab else {})))
        while True:
            answer = self.receive(tab)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def receive(self, tab: Tab | None) -> dict[str, Any]:
        """Return the next message."""
        message: dict[str, Any] = json.loads(self.connection.recv())
        if tab and message.get("sessionId") == tab.session and "method" in message:
            tab.note(message["method"], message["params"])
        return message


@dataclass
class Tab:
    """One page at a time. `problems` are what the browser complains of: errors, warnings, violations of the policy."""

    browser: Browser
    session: str
    problems: list[str] = field(default_factory=list[str])
    _loaded: int = 0

    def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a command for this tab."""
        return self.browser.call(method, params, self)

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Take in an event of this tab's."""
        match method:
            case "Page.loadEventFired":
                self._loaded += 1
            case "Log.entryAdded":
                self.problems.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Page.javascriptDialogOpening":
                self.problems.append(json.dumps(params))
            case _:
                pass

    def open(self, url: str) -> None:
        """Go to an address and wait until it is loaded."""
        before = self._loaded
        assert "errorText" not in self.call("Page.navigate", {"url": url})
        self._wait_for_load(before)

    def type(self, text: str) -> None:
        """Write into what has the focus, as from a keyboard, and press Enter; wait for the page that comes."""
        before = self._loaded
        self.call("Input.insertText", {"text": text})
        self.press_enter()
        self._wait_for_load(before)

    def press_enter(self) -> None:
        """Press the Enter key."""
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, **enter})

    def press_tab(self) -> str:
        """Press the Tab key and return the text, or the name, of what has the focus then."""
        for kind in ("keyDown", "keyUp"):
            key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            self.call("Input.dispatchKeyEvent", {"type": kind, **key})
        return str(self.evaluate("document.activeElement.innerText || document.activeElement.name"))

    def click(self, selector: str, *, touch: bool = False) -> None:
        """Click into the middle of the element, or tap on it."""
        place = self._middle(selector)
        if touch:
            self.call("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [place]})
            self.call("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
            return
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", {"type": kind, **place, "button": "left", "clickCount": 1})

    def follow(self, selector: str, *, touch: bool = False) -> None:
        """Click on the element, and wait for the page that comes."""
        before = self._loaded
        self.click(selector, touch=touch)
        self._wait_for_load(before)

    def point(self, selector: str) -> None:
        """Move the mouse over the element."""
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", **self._middle(selector)})

    def _middle(self, selector: str) -> dict[str, float]:
        place: dict[str, float] = self.evaluate(
            f"(found => {{ found.scrollIntoView({{block: 'center'}}); const box = found.getBoundingClientRect();"
            " return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return place

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, which the page's own policy does not bind."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, max_height: int) -> None:
        """Write the page, down to this height, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], max_height), "scale": 1}
        taken = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(taken["data"]))

    def _wait_for_load(self, before: int) -> None:
        while self._loaded == before:
            self.browser.receive(self)
