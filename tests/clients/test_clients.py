"""Client libraries, as they are published, list, find and call tools through `toolscale serve`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.clients.driving import Driver
from tests.clients.libraries import LIBRARIES, Library, Transport
from tests.clients.marks import of_slow_module, with_node
from tests.clients.serving import Installed, Service, install, serving
from tests.clients.steps import STEPS, runs_a_script

pytestmark = [pytest.mark.process, *of_slow_module()]

Session = tuple[Library, Transport]

SESSIONS = [
    pytest.param((library, transport), id=f"{library.name} over {transport}", marks=with_node(library.needs_node))
    for library in LIBRARIES
    for transport in library.transports
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installed]:
    environments = [library.environment for library in LIBRARIES]
    with install(environments, tmp_path_factory.mktemp("environments")) as installation:
        yield installation


@pytest.fixture(scope="module")
def service(demo_servers: Path, installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with serving(demo_servers, installed.directory, tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="module", params=SESSIONS)
def session(request: pytest.FixtureRequest) -> Session:
    session: Session = request.param
    return session


@pytest.fixture(scope="module")
def driver(
    session: Session, installed: Installed, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Driver]:
    library, transport = session
    if error := installed.errors.get(library.environment.name):
        pytest.skip(error)
    with service.session(library, transport, tmp_path_factory.mktemp("session")) as running:
        yield running


@pytest.mark.parametrize("step", STEPS)
def test_a_client_library_plays_a_step(session: Session, driver: Driver, step: str, tmp_path: Path) -> None:
    library, transport = session
    if reason := library.why_not(step, transport):
        pytest.skip(f"{library.name} over {transport}, {step}: {reason}")

    STEPS[step](driver, tmp_path)


def test_a_client_library_runs_a_script(driver: Driver, tmp_path: Path) -> None:
    runs_a_script(driver, tmp_path)
