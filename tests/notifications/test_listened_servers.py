from __future__ import annotations

import anyio
import pytest

from shared.errors import NotificationsUnsupported, ServerAuthRequired, ServerError, ServerFailed
from workers.notifications.listener import NotificationSessionState


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (405, NotificationsUnsupported),
        (404, NotificationsUnsupported),
        (401, ServerAuthRequired),
        (500, ServerFailed),
        (429, ServerFailed),
    ],
)
def test_the_status_of_a_refused_stream_decides_the_error(status: int, error: type[ServerError]) -> None:
    async def refused() -> ServerError | None:
        state = NotificationSessionState("s", anyio.CancelScope())
        state.stream_answered(status)
        return state.error

    assert type(anyio.run(refused)) is error
