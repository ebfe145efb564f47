"""The tools that the query service itself offers, a module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from query.tools.call_tool import call_tool_offer
from query.tools.describe_tool import describe_tool_offer
from query.tools.find_tool import find_tool_offer
from query.tools.get_active_toolset import get_active_toolset_offer
from query.tools.get_savings_report import get_savings_report_offer
from query.tools.list_available_tools import list_available_tools_offer
from query.tools.tool import OwnDefinitions

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.tools.tool import Offer


def offers(catalogue: Catalogue, upstreams: Upstreams | None = None) -> list[Offer]:
    """Return our tools in the order in which they are listed; without a way to the servers, none that calls.

    Where no savings are recorded, there is no report of them.
    """
    listed: list[Offer] = []
    listed += [find_tool_offer(catalogue, OwnDefinitions(listed, catalogue.encoding)), describe_tool_offer(catalogue)]
    if upstreams:
        listed.append(call_tool_offer(catalogue, upstreams))
    listed += [list_available_tools_offer(catalogue), get_active_toolset_offer(catalogue)]
    if catalogue.savings:
        listed.append(get_savings_report_offer(catalogue, catalogue.savings))
    return listed
