"""`python -m tests.clients`: play all steps, store the JSON, and render `docs/clients.md`."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.driving import Driver
from tests.clients.importing import ImportedService, serving_imported
from tests.clients.libraries import LIBRARIES, Library, Transport
from tests.clients.results import Outcome, PlayedLibrary, PlayedServer, Results, render
from tests.clients.serving import install, serving
from tests.clients.steps import STEPS
from tests.clients.third_party import SERVER_ENVIRONMENTS, THIRD_PARTY_SERVERS, ThirdPartyServer, prepare_files
from toolscale.demo.servers import MODERN

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results" / "clients.json"
PAGE = ROOT / "docs" / "clients.md"


def play_all(directory: Path) -> Results:
    """Return the results of all libraries and servers."""
    environments = (MODERN, *(library.environment for library in LIBRARIES), *SERVER_ENVIRONMENTS)
    with install(environments, _made(directory / "environments")) as installed:
        if installed.errors:
            sys.exit(f"Not all environments could be installed: {installed.errors}")
        return Results(
            made_at=f"{datetime.now(UTC):%Y-%m-%d}",
            python=platform.python_version(),
            node=subprocess.check_output(["node", "--version"], text=True).strip().removeprefix("v"),
            libraries=tuple(_libraries(installed.directory, directory)),
            servers=tuple(_servers(installed.directory, directory)),
        )


def _libraries(environments: Path, directory: Path) -> Iterator[PlayedLibrary]:
    with serving(environments, environments, _made(directory / "serve")) as service:
        for library in LIBRARIES:
            for transport in library.transports:
                place = _made(directory / f"{library.environment.name}-{transport}")
                with service.session(library, transport, place) as driver:
                    yield _play_library(library, transport, driver, place)


def _play_library(library: Library, transport: Transport, driver: Driver, directory: Path) -> PlayedLibrary:
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, str] = {}
    for number, (name, step) in enumerate(STEPS.items()):
        outcomes[name] = library.why_not(name, transport) or "yes"
        if outcomes[name] == "yes":
            try:
                step(driver, _made(directory / str(number)))
            except AssertionError as error:
                outcomes[name], errors[name] = "no", str(error)
    print(library.name, transport, outcomes, flush=True)  # noqa: T201
    return PlayedLibrary(
        name=library.name,
        package=library.package,
        version=library.version,
        transport=transport,
        steps=outcomes,
        errors=errors,
    )


def _servers(environments: Path, directory: Path) -> Iterator[PlayedServer]:
    files, home = prepare_files(_made(directory / "files")), _made(directory / "home")
    with serving_imported(THIRD_PARTY_SERVERS, environments, files, home) as service:
        for server in THIRD_PARTY_SERVERS:
            yield _play_server(server, service)


def _play_server(server: ThirdPartyServer, service: ImportedService) -> PlayedServer:
    tools, reason = 0, ""
    try:
        tools = service.play(server)
    except AssertionError as error:
        reason = str(error)
    print(server.name, tools, reason, flush=True)  # noqa: T201
    return PlayedServer(
        name=server.name,
        package=server.package,
        version=server.version,
        tools=tools,
        called=server.tool,
        error=reason,
    )


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def main() -> None:
    """Play all, and write both files."""
    with TemporaryDirectory(prefix="toolscale-clients-") as directory:
        results = play_all(Path(directory))
    KEPT.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")


if __name__ == "__main__":
    main()
