"""The report of estimates is that of the kept JSON, and the documents state its errors."""

from pathlib import Path

from benchmarks.command import RESULTS
from benchmarks.estimates.__main__ import Results, measure, render
from benchmarks.retrieval.data import CorpusServer
from shared.catalog import Listing, ToolDefinition
from shared.text.tokens import counter, estimate_tool, model_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "tools.md"
KEPT = Results.model_validate_json((RESULTS / "estimates.json").read_bytes())


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    assert render(KEPT) == (RESULTS / "estimates.md").read_text(encoding="utf-8")


def test_an_error_is_a_part_of_the_exact_count() -> None:
    tools = tuple(ToolDefinition.from_wire(f'{{"name":"{name}","description":"Read"}}') for name in ("a", "read_file"))

    found = measure("two", [CorpusServer("server-0", "files", Listing("files", "2026-07-28", tools))])

    counted = [counter("cl100k_base")(model_text(tool)) for tool in tools]
    estimated = [estimate_tool("files", tool) for tool in tools]
    assert (found.tools, found.counted, found.estimated) == (2, sum(counted), sum(estimated))
    mean = sum(abs(100 * guess / exact - 100) for guess, exact in zip(estimated, counted, strict=True)) / 2
    assert found.median_error == round(mean, 1)


def test_the_document_states_the_errors_of_livemcp() -> None:
    (livemcp,) = (corpus for corpus in KEPT.root if corpus.name == "livemcp")
    error = abs(livemcp.estimated / livemcp.counted - 1)

    of_a_tool = f"a tool by {livemcp.median_error} % (median) or {livemcp.p95_error} % (95th percentile)"
    assert f"misses the sum by {100 * error:.1f} %, {of_a_tool}" in DOCUMENT.read_text(encoding="utf-8")
