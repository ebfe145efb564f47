"""The producers of the events API: the token for everything, and a file of tokens with rights of their own."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints

from shared.catalog import PRODUCER_PREFIX
from shared.errors import AuthenticationFailed, ConfigInvalid, EventInvalid
from shared.events import CredentialRef, Groups, ServerAnnouncement, ServerEvent, ServerId, ServerUp
from shared.service.token_file import TokenFile, TokenHolder, as_toml, digest
from shared.upstream.hosts import Hosts
from workers.emit import ANYONE, Sender

if TYPE_CHECKING:
    from shared.settings import Settings

Host = Annotated[str, StringConstraints(pattern=r"^\S+$", max_length=255)]


class ProducerRights(TokenHolder):
    """One producer's table in the file.

    A server's id begins with one of `id_prefixes`. The host of its URL is in `hosts`: a name, a pattern, or for an
    address a network. "*" as `groups` allows all groups.
    """

    id_prefixes: Annotated[frozenset[ServerId], Field(min_length=1)]
    hosts: frozenset[Host]
    groups: Groups = frozenset()
    credentials: frozenset[CredentialRef] = frozenset()

    def table(self, name: str) -> str:
        """Return the table to paste into the file."""
        lines = [f"[{name}]", f"sha256 = {as_toml(self.sha256)}"]
        lines += [f"id_prefixes = {as_toml(sorted(self.id_prefixes))}", f"hosts = {as_toml(sorted(self.hosts))}"]
        lines += [f"groups = {as_toml('*' if self.groups == '*' else sorted(self.groups))}"]
        return "\n".join([*lines, f"credentials = {as_toml(sorted(self.credentials))}"])


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer with rights of its own."""

    name: str
    rights: ProducerRights

    @property
    def source(self) -> str:
        """Return the source of this producer's events."""
        return f"{PRODUCER_PREFIX}{self.name}"

    def admit(self, event: ServerEvent) -> ServerEvent:
        """Return the event with the source of this producer, which owns the servers that it announces.

        Raises:
            EventInvalid: the producer may not send this event; names the field.
        """
        if not event.data.server_id.startswith(tuple(self.rights.id_prefixes)):
            allowed = ", ".join(sorted(self.rights.id_prefixes))
            raise EventInvalid("data.server_id", f"the ids of the producer {self.name} begin with {allowed}")
        if isinstance(event, ServerUp):
            self._check(event.data)
        return event.model_copy(update={"source": self.source})

    def _check(self, announced: ServerAnnouncement) -> None:
        if self.rights.groups != "*" and (others := announced.groups - self.rights.groups):
            raise EventInvalid("data.groups", f"the producer {self.name} may not use {', '.join(sorted(others))}")
        if announced.url and not Hosts(self.rights.hosts).lists_url(announced.url):
            raise EventInvalid("data.url", f"the producer {self.name} may not announce this host")
        if announced.credential_ref and announced.credential_ref not in self.rights.credentials:
            reason = f"the producer {self.name} may not use {announced.credential_ref}"
            raise EventInvalid("data.credential_ref", reason)


class Producers:
    """The producers of `TOOLSCALE_EVENTS_TOKEN` and of `TOOLSCALE_PRODUCERS_FILE`, which may change."""

    def __init__(self, token: str | None, file: TokenFile[ProducerRights] | None = None) -> None:
        self._token = None if token is None else digest(token)
        self._file = file

    def authenticate(self, token: str) -> Sender:
        """Return the holder of this token.

        Raises:
            AuthenticationFailed: no producer has this token, or it has expired.
        """
        # digests have one length, so the comparison does not leak the length of the token
        if self._token is not None and hmac.compare_digest(digest(token), self._token):
            return ANYONE
        found = self._file.find(token) if self._file and token else None
        if found is None:
            raise AuthenticationFailed("expected the bearer token of a producer: TOOLSCALE_EVENTS_TOKEN, or of a file")
        producer = Producer(*found)
        return Sender(producer.admit, producer.source)


def producers_of(settings: Settings) -> Producers | None:
    """Return the producers of these settings; None if no token is set, since then there is no events API.

    Raises:
        ConfigInvalid: the file is invalid.
    """
    if settings.events_token is None and settings.producers_file is None:
        return None
    file = TokenFile(settings.producers_file, ProducerRights) if settings.producers_file else None
    return Producers(settings.events_token, file)


def required_producers(settings: Settings) -> Producers:
    """Return the producers of these settings.

    Raises:
        ConfigInvalid: no token is set, or the file is invalid.
    """
    if producers := producers_of(settings):
        return producers
    raise ConfigInvalid(
        "setting events_token: the events API does not start without TOOLSCALE_EVENTS_TOKEN or TOOLSCALE_PRODUCERS_FILE"
    )
