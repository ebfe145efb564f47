"""What a person changes from the page; each change has been checked by `query.web.writes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from query import definitions
from query.web.page import Page, PageRequest, message_page, part_of_path
from shared.errors import EventInvalid, ToolNotFound

if TYPE_CHECKING:
    from query.web.writes import Form

Change = Callable[[PageRequest, "Form"], Page | Response]
"""Makes a change, and returns the page that shows it."""

NOT_HERE = "This process cannot do it. Use the command line."


def retry(request: PageRequest, form: Form) -> Page | Response:
    """Request a listing of a server now."""
    del form
    server_id = request.path["server_id"]
    request.catalogue.ledger.refresh()
    record = request.catalogue.ledger.record(server_id)
    if record is None:
        return message_page(404, "No such server", "There is no server of this name that you may see.")
    if request.means.resync is None:
        return message_page(503, "Not requested", NOT_HERE)
    try:
        request.means.resync(server_id)
    except EventInvalid as error:  # it was never announced: only the index knows it
        return message_page(409, "Not requested", f"{error}.")
    return done(f"/ui/servers/{part_of_path(server_id)}", "requested")


def accept(request: PageRequest, form: Form) -> Page | Response:
    """Accept the changed definitions of a server that the form names with the digests which its page has shown."""
    server_id, intents = request.path["server_id"], request.catalogue.intents
    if intents is None or request.means.resync is None:
        return message_page(503, "Not accepted", NOT_HERE)
    try:
        accepted = definitions.accept(intents, server_id, form.get("tool", [""]))
    except ToolNotFound as error:  # it changed again while the page was open
        return message_page(409, "Not accepted", f"{error}.")
    if accepted:
        request.means.resync(server_id)
    return done(f"/ui/servers/{part_of_path(server_id)}", "accepted")


def done(path: str, what: str) -> Response:
    """Return a redirect to a page that says what was done, one of `DONE`."""
    return RedirectResponse(f"{path}?done={what}", HTTPStatus.SEE_OTHER)


DONE: Mapping[str, str] = {
    "accepted": "Accepted: its tools follow in a moment.",
    "left-out": "Written: the tools leave the lists in a moment.",
    "requested": "Requested: its listing follows in a moment. Load this page again to see it.",
}
