"""Screenshots of docs/page.md: the pages, their width and their colours."""

from __future__ import annotations

from dataclasses import dataclass

DESK, PHONE = 1100, 390


@dataclass(frozen=True)
class Screenshot:
    """A page as a browser of this width shows it."""

    name: str
    path: str
    width: int = DESK
    dark: bool = False

    @property
    def file(self) -> str:
        """Return the name of its file in docs/pictures."""
        return f"page-{self.name}.png"


SCREENSHOTS = (
    Screenshot("overview", "/ui"),
    Screenshot("overview-dark", "/ui", dark=True),
    Screenshot("servers", "/ui/servers"),
    Screenshot("server", "/ui/servers/git"),
    Screenshot("tool", "/ui/tools/time%3Aconvert_time"),
    Screenshot("find", "/ui/find?q=show+the+commits+of+a+repository"),
    Screenshot("advice", "/ui/advice"),
    Screenshot("history", "/ui/history"),
    Screenshot("overview-phone", "/ui", PHONE),
    Screenshot("find-phone", "/ui/find?q=what+time+is+it+in+another+timezone", PHONE, dark=True),
)
