"""Records of servers as JSON: what a service returns to `toolscale ls --url`, and how the command reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic import BaseModel, ValidationError

from shared.errors import ServiceRejected, ServiceUnreachable
from shared.upstream.mcp_json import EntryProblem
from workers.intents.store import Intent

if TYPE_CHECKING:
    from shared.catalog import Scope
    from shared.upstream.followed_config import FollowedConfig

PATH = "/servers"
TIMEOUT_S = 60.0

_MCP_PATH = re.compile(r"(/mcp(/[^/]*)?)?/?$")
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
    address = _MCP_PATH.sub("", url) + PATH
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx2.get(address, headers=headers, timeout=TIMEOUT_S, trust_env=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ServiceUnreachable(f"{address} does not answer: {type(error).__name__}") from error
    if response.status_code == HTTPStatus.NOT_FOUND:
        return None
    if response.status_code != HTTPStatus.OK:
        is_temporary = response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
        refused = ServiceUnreachable if is_temporary else ServiceRejected
        raise refused(f"{address} answered {response.status_code}")
    try:
        return ServerRecords.model_validate_json(response.content)
    except ValidationError as error:
        raise ServiceRejected(f"{address} answers in a form that this version does not read") from error


def _is_in(scope: Scope, intent: Intent) -> bool:
    return (scope.groups is None or not scope.groups.isdisjoint(intent.announcement.groups)) and (
        scope.within is None or scope.within.admits_some_of(intent.server_id)
    )


def _record(intent: Intent) -> dict[str, Any]:
    record = intent.model_dump(mode="json", include=_SHOWN)
    if url := record["announcement"]["url"]:
        record["announcement"]["url"] = url.partition("?")[0].partition("#")[0]  # a query may hold a key
    return record
