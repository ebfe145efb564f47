"""Division of servers among processes by rendezvous hashing. Thaler and Ravishankar, IEEE/ACM ToN 6(1), 1998.

A server belongs to the member with the highest hash of both. A member that joins or leaves moves only its own servers.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b


def owner(server_id: str, members: Collection[str]) -> str:
    """Return the member that owns the server: the same in every process.

    Raises:
        ValueError: there are no members.
    """
    return max(members, key=lambda member: (_weight(member, server_id), member))


def _weight(member: str, server_id: str) -> bytes:
    return blake2b(f"{member} {server_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
