"""The scope of a caller under the operator's policy: what it may neither find nor call is in no answer and no sum.

The policy has patterns, and the index compares words. So the patterns become the servers and the names that they match,
once for all callers with the same rules, until a server changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from fnmatch import translate
from functools import partial
from typing import TYPE_CHECKING

from query.kept import Recent
from shared.catalog import Scope, ScopeRule, effective

if TYPE_CHECKING:
    from query.policy import CallerRules, Rule
    from query.records import Ledger
    from shared.index.tools import ToolIndex

# Of callers that a policy distinguishes; each has the ids and the names that its patterns match.
_KEPT = 64
_ANY = "*"


class PolicyScopes:
    """Scopes without the tools that rules deny. Safe to use from several threads."""

    def __init__(self) -> None:
        self._recent: Recent[tuple[ScopeRule, ...]] = Recent(most=_KEPT)

    def without_denied(self, scope: Scope, rules: CallerRules, ledger: Ledger, index: ToolIndex) -> Scope:
        """Return the scope without the tools that these rules deny, as of the ledger's records now.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        if not rules.have_denials:
            return scope
        state = ledger.state()
        found = self._recent.get_or_read(rules, state, partial(scope_rules, rules, ledger, index))
        return replace(scope, rules=found, policy=rules)


def scope_rules(rules: CallerRules, ledger: Ledger, index: ToolIndex) -> tuple[ScopeRule, ...]:
    """Return the rules with the ids and the names that their patterns match, as of the ledger's last refresh.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    server_ids = [record.server_id for record in ledger.records(Scope())]
    has_patterns = any(rule.tools is not None and _ANY not in rule.tools for rule in rules.rules)
    names = index.distinct_names() if has_patterns else ()
    found = (_scope_rule(rule, server_ids, names) for rule in rules.rules)
    return effective(rule for rule in found if rule.servers != frozenset() and rule.names != frozenset())


def _scope_rule(rule: Rule, server_ids: Collection[str], names: Collection[str]) -> ScopeRule:
    return ScopeRule(
        is_denial=rule.action == "deny",
        servers=_matching(rule.servers, server_ids),
        names=_matching(rule.tools, names),
        annotations=None if rule.annotations is None else frozenset(rule.annotations),
    )


def _matching(patterns: Collection[str] | None, known: Collection[str]) -> frozenset[str] | None:
    if patterns is None or _ANY in patterns:
        return None
    # one expression for all patterns: there may be tens of thousands of names
    pattern, exact = re.compile("|".join(map(translate, patterns))), frozenset(patterns)
    return frozenset(name for name in known if name in exact or pattern.match(name))
