"""Screenshots of docs/page.md: the pages, their width and their colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DESK, PHONE = 1440, 390

Stage = Literal["empty", "healthy", "broken"]


@dataclass(frozen=True)
class Screenshot:
    """A page of an installation as a browser of this width shows it, after its form was sent with these values."""

    name: str
    path: str
    width: int = DESK
    dark: bool = False
    stage: Stage = "healthy"
    filled: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """Return the name of its file in docs/pictures."""
        return f"page-{self.name}.png"


FIND = "/ui/find?q=show+the+commits+of+a+repository"
SCREENSHOTS = (
    Screenshot("overview", "/ui"),
    Screenshot("overview-dark", "/ui", dark=True),
    Screenshot("overview-phone", "/ui", PHONE),
    Screenshot("empty", "/ui", stage="empty"),
    Screenshot("empty-phone", "/ui", PHONE, stage="empty"),
    Screenshot("tools", "/ui/tools?unused=1"),
    Screenshot("tools-phone", "/ui/tools", PHONE, dark=True),
    Screenshot("leave-out", "/ui/leave-out?tool=redis:hybrid_search&tool=redis:scan_keys"),
    Screenshot("servers", "/ui/servers", stage="broken"),
    Screenshot("server", "/ui/servers/git"),
    Screenshot("failing", "/ui/servers/mail", stage="broken"),
    Screenshot("failing-phone", "/ui/servers/mail", PHONE, stage="broken"),
    Screenshot("changes", "/ui/servers/time", stage="broken"),
    Screenshot("broken", "/ui", stage="broken"),
    Screenshot("tool", "/ui/tools/time%3Aget_current_time", filled=(("p.timezone", "Asia/Tokyo"),)),
    Screenshot("find", FIND),
    Screenshot("find-phone", FIND, PHONE, dark=True),
    Screenshot("advice", "/ui/advice"),
    Screenshot("history", "/ui/history?price=3"),
    Screenshot("history-phone", "/ui/history", PHONE),
)
