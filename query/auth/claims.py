"""The caller that the claims of a verified JWT describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from query.caller import PERMISSIONS, Caller
from shared.errors import AuthenticationFailed

T = TypeVar("T")

_STRING = TypeAdapter(str)
_STRINGS = TypeAdapter(list[str])
_WORDS = TypeAdapter(list[str] | str)
_COUNT = TypeAdapter(int)


# RFC 8693 names the scope; identity providers write groups under this name or can be configured to.
SCOPE, GROUPS = "scope", "groups"
TOOLSET, BUDGET = "toolset", "budget_tokens"


def caller_of_claims(claims: Mapping[str, Any], admin_group: str | None = None) -> Caller:
    """Return the caller; missing claims of groups or permissions mean none.

    Its name begins with `jwt:`; no caller of a static token can have such a name.

    Raises:
        AuthenticationFailed: a claim has the wrong type; the error names but never quotes it.
    """
    subject = _claim(claims, "sub", _STRING)
    groups = frozenset(_claim(claims, GROUPS, _STRINGS) or ())
    scope = _claim(claims, SCOPE, _WORDS) or ()
    granted = scope.split() if isinstance(scope, str) else scope
    return Caller(
        name=f"jwt:{subject}",
        groups=None if admin_group in groups else groups,
        permissions=frozenset(permission for permission in PERMISSIONS if permission in granted),
        toolset=_claim(claims, TOOLSET, _STRING),
        budget_tokens=_claim(claims, BUDGET, _COUNT),
    )


def _claim(claims: Mapping[str, Any], name: str, expected: TypeAdapter[T]) -> T | None:
    if claims.get(name) is None:
        return None
    try:
        return expected.validate_python(claims[name], strict=True)
    except ValidationError:
        raise AuthenticationFailed(f"the claim {name} is of the wrong type") from None  # the cause would quote it
