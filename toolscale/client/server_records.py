"""Records of servers as JSON: what a service returns to `toolscale ls --url`, and how the command reads it."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from shared.errors import ServiceRejected
from shared.intents.intent import Intent
from shared.upstream.mcp_json import EntryProblem
from toolscale.client.requests import json_of, response_of

if TYPE_CHECKING:
    from shared.catalog import Scope
    from shared.upstream.followed_config import FollowedConfig

PATH = "/servers"

# Neither credentials' names nor labels: a caller may not change or call a server by them.
_SHOWN: dict[str, Any] = {
    "server_id": True,
    "status": True,
    "announcement": {"server_id", "transport", "url", "groups"},
    "source": True,
    "desired": True,
    "committed": True,
    "attempts": True,
    "parked": True,
    "failures": True,
    "listed_at": True,
    "catalogue_id": True,
    "unaccepted": True,
    "last_error": True,
    "due_at": True,
}


class ServerRecords(BaseModel):
    """The intents of servers, and the left-out entries of the followed `mcp.json`."""

    servers: tuple[Intent, ...]
    left_out: tuple[EntryProblem, ...] = ()


def records_in(scope: Scope, intents: Iterable[Intent], followed: FollowedConfig | None) -> dict[str, Any]:
    """Return the records of the servers in a scope as JSON.

    Left-out entries have no groups, so only a caller without restriction gets them.
    """
    is_unrestricted = scope.groups is None and scope.within is None
    left_out = followed.left_out if followed and is_unrestricted else ()
    return {
        "servers": [_record(intent) for intent in intents if _is_in(scope, intent)],
        "left_out": [problem.model_dump() for problem in left_out],
    }


def records_at(url: str, token: str | None) -> ServerRecords | None:
    """Return the records of the service at a URL; None if that service has none.

    Raises:
        ServiceUnreachable: the service does not answer.
        ServiceRejected: the token is missing or wrong, or the answer has another form.
    """
    response = response_of("GET", PATH, url, token, permission="catalog:read")
    if response.status_code == HTTPStatus.NOT_FOUND:
        return None
    try:
        return ServerRecords.model_validate(json_of(response))
    except ValidationError as error:
        raise ServiceRejected(f"{url} answers in a form that this version does not read") from error


def _is_in(scope: Scope, intent: Intent) -> bool:
    return (scope.groups is None or not scope.groups.isdisjoint(intent.announcement.groups)) and (
        scope.within is None or scope.within.admits_some_of(intent.server_id)
    )


def _record(intent: Intent) -> dict[str, Any]:
    record = intent.model_dump(mode="json", include=_SHOWN)
    if url := record["announcement"]["url"]:
        record["announcement"]["url"] = url.partition("?")[0].partition("#")[0]  # a query may hold a key
    return record
