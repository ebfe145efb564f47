"""`toolscale login`, `logout` and `sign-ins`: sign-ins to servers, by the browser of the person at this terminal."""

from __future__ import annotations

import sys
import threading
import time
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Empty, SimpleQueue
from typing import Annotated, Any
from urllib.parse import parse_qs, quote, urlsplit

import typer

from shared.amounts import ago
from shared.errors import ConfigInvalid, ServiceRejected, ServiceUnreachable
from shared.quoting import printable
from toolscale.client.service import Service, open_service
from toolscale.commands.options import (
    DataDirOption,
    JsonOption,
    ServerArgument,
    TokenOption,
    UrlOption,
    complete_server,
)
from toolscale.console import Column, print_json, print_lines, print_notes, print_table, working

PATH = "/api/sign-ins"
ServiceOption = Annotated[
    bool, typer.Option("--service", help="The service's own sign-in, where callers have theirs; for operators.")
]
WITHIN_S = 300.0
_POLL_S = 0.3
_CALLBACK = "/callback"
_PAGE = "<!doctype html><meta charset=utf-8><title>Toolscale</title><p>{}"
_CLOSE, _REFUSED = "You may close this window.", "Not signed in: the terminal says why. You may close this window."


def login(
    server: ServerArgument,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the URL, and read the redirected URL from stdin.")
    ] = False,
    for_service: ServiceOption = False,
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", help="Ask for this scope too; repeat it for several.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Sign in to a server in the browser; its tools are listed again afterwards.

    With --no-browser, open the URL anywhere, agree, and paste the address to which the browser was then sent: it begins
    with http://127.0.0.1, and need not load.
    """
    with open_service(url, token, data_dir) as service:
        about = service.get(f"{PATH}/of/{quote(server)}")
        with _returning(about["callback_port"]) as (redirect_url, returned):
            body = {"redirect_url": redirect_url, "service": for_service, "scopes": " ".join(scopes or ())}
            begun = service.post(f"{PATH}/of/{quote(server)}", body)
            address = begun["authorization_url"]
            if no_browser:
                print_lines(address)
                print_notes("Agree there, then paste the address to which the browser was sent:")
                came = _pasted()
            else:
                print_notes(f"Agree in the browser. If none opens, open this address:\n{printable(address)}")
                webbrowser.open(address)
                with working("waiting for the browser"):
                    came = _waited(returned)
        service.post(f"{PATH}/returned", {"url": came})
        _finish(service, server, begun["ticket"])
    if as_json:
        print_json({"server_id": server, "caller": None if for_service else about["caller"]})
        return
    if about["caller"] and not for_service:
        print_lines(printable(f"{server}: {about['caller']} is signed in, and calls act so there."))
    else:
        print_lines(printable(f"{server}: signed in. Its tools are being listed; `toolscale ls {server}` shows them."))


def logout(
    server: Annotated[
        str | None,
        typer.Argument(metavar="SERVER", help="The server's id.", show_default=False, autocompletion=complete_server),
    ] = None,
    caller: Annotated[
        str | None,
        typer.Option(help="End the sign-ins of this caller; without SERVER, all of them.", show_default=False),
    ] = None,
    for_service: ServiceOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """End a sign-in: Toolscale forgets its tokens."""
    if server is None and caller is None and not for_service:
        raise typer.BadParameter("name a SERVER, or a caller by --caller")
    with open_service(url, token, data_dir) as service:
        ended = service.end_sign_ins(server, caller, for_service=for_service)
    if not ended:
        whose = f" of {caller}" if caller else ""
        raise ServiceRejected(f"there is no sign-in{whose}{f' to {server}' if server else ''}")
    if as_json:
        print_json({"ended": ended})
        return
    for each in ended:
        print_lines(printable(f"{each}: signed out."))


def sign_ins(
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show who is signed in to which server, and since when; tokens are never shown."""
    with open_service(url, token, data_dir) as service:
        found: list[dict[str, Any]] = service.get(PATH)["sign_ins"]
    if as_json:
        print_json(found)
        return
    if not found:
        print_lines("Nobody is signed in to a server. `toolscale login SERVER` signs in.")
        return
    rows = [
        [
            printable(each["server_id"]),
            printable(each["caller"] or "(service)"),
            ago(datetime.fromisoformat(each["since"]).timestamp()),
            printable(each["scope"] or ""),
        ]
        for each in found
    ]
    print_table((Column("server"), Column("caller"), Column("since"), Column("scopes")), rows)


def _finish(service: Service, server: str, ticket: str) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    with working("waiting for the tokens"):
        while (outcome := service.get(f"{PATH}/outcomes/{quote(ticket)}"))["state"] == "waiting":
            if time.monotonic() > deadline_s:
                raise ServiceUnreachable(f"{server}: no tokens within {WITHIN_S:g} s")
            time.sleep(_POLL_S)
    if outcome["state"] == "failed":
        raise ServiceRejected(outcome["reason"])


def _pasted() -> str:
    """Return the address that a person pastes, which has the answer of the authorization server.

    Raises:
        ServiceRejected: the input ends before one.
    """
    while line := sys.stdin.readline():
        address = line.strip().strip("'\"<>")
        given = parse_qs(urlsplit(address).query)
        if "state" in given and not given.keys().isdisjoint(("code", "error")):
            return address
        if address:
            print_notes("This has no code and state: paste the whole address, http://127.0.0.1:.../callback?code=...")
    raise ServiceRejected("no address was pasted, so nobody is signed in")


def _waited(returned: SimpleQueue[str]) -> str:
    try:
        return returned.get(timeout=WITHIN_S)
    except Empty as error:
        raise ServiceUnreachable(f"the browser did not come back within {WITHIN_S:g} s") from error


@contextmanager
def _returning(port: int | None) -> Generator[tuple[str, SimpleQueue[str]]]:
    """Listen on loopback until the block ends; yield the redirect URL, and the queue of URLs that come to it.

    Raises:
        ConfigInvalid: the port is in use.
    """
    came: SimpleQueue[str] = SimpleQueue()

    class Returned(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ours = urlsplit(self.path).path == _CALLBACK
            if is_ours:
                came.put(self.path)
            self.send_response(200 if is_ours else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            text = _REFUSED if "error" in parse_qs(urlsplit(self.path).query) else _CLOSE
            self.wfile.write(_PAGE.format(text).encode() if is_ours else b"")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
            """Log nothing: the path has the code."""

    try:
        listening = HTTPServer(("127.0.0.1", port or 0), Returned)
    except OSError as error:
        raise ConfigInvalid(f"the port {port} of `oauth.callbackPort` is in use") from error
    threading.Thread(target=listening.serve_forever, args=(0.1,), daemon=True).start()
    try:
        # clients with a fixed port are registered with this name
        host = "localhost" if port else "127.0.0.1"
        yield f"http://{host}:{listening.server_port}{_CALLBACK}", came
    finally:
        listening.shutdown()
        listening.server_close()
