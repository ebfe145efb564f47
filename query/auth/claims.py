"""The caller that the claims of a verified JWT describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from query.caller import PERMISSIONS, Caller
from shared.errors import AuthenticationFailed

if TYPE_CHECKING:
    from shared.settings import Settings

T = TypeVar("T")

_STRING = TypeAdapter(str)
_STRINGS = TypeAdapter(list[str])
_WORDS = TypeAdapter(list[str] | str)
_COUNT = TypeAdapter(int)


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """The issuer's names for the claims; members of `unrestricted_group` see everything."""

    scope: str = "scope"
    groups: str = "groups"
    toolset: str = "toolset"
    budget: str = "budget_tokens"
    unrestricted_group: str | None = None


def claim_names(settings: Settings) -> ClaimNames:
    """Return the claim names of the settings."""
    return ClaimNames(
        scope=settings.jwt_scope_claim,
        groups=settings.jwt_groups_claim,
        toolset=settings.jwt_toolset_claim,
        budget=settings.jwt_budget_claim,
        unrestricted_group=settings.jwt_admin_group,
    )


def caller_of_claims(claims: Mapping[str, Any], names: ClaimNames) -> Caller:
    """Return the caller; missing claims of groups or permissions mean none.

    Its name begins with `jwt:`; no caller of a static token can have such a name.

    Raises:
        AuthenticationFailed: a claim has the wrong type; the error names but never quotes it.
    """
    subject = _claim(claims, "sub", _STRING)
    groups = frozenset(_claim(claims, names.groups, _STRINGS) or ())
    scope = _claim(claims, names.scope, _WORDS) or ()
    granted = scope.split() if isinstance(scope, str) else scope
    return Caller(
        name=f"jwt:{subject}",
        groups=None if names.unrestricted_group in groups else groups,
        permissions=frozenset(permission for permission in PERMISSIONS if permission in granted),
        toolset=_claim(claims, names.toolset, _STRING),
        budget_tokens=_claim(claims, names.budget, _COUNT),
    )


def _claim(claims: Mapping[str, Any], name: str, expected: TypeAdapter[T]) -> T | None:
    if claims.get(name) is None:
        return None
    try:
        return expected.validate_python(claims[name], strict=True)
    except ValidationError:
        raise AuthenticationFailed(f"the claim {name} is of the wrong type") from None  # the cause would quote it
