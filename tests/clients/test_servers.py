"""Third-party servers are imported from the files of clients, listed, found and called."""

from __future__ import annotations

import shutil
from collections.abc import Generator

import pytest

from tests.clients.importing import ImportedService, serving_imported
from tests.clients.marks import of_slow_module, with_node
from tests.clients.serving import Installed, install
from tests.clients.third_party import SERVER_ENVIRONMENTS, THIRD_PARTY_SERVERS, ThirdPartyServer, prepare_files

pytestmark = [pytest.mark.process, *of_slow_module()]

SERVERS = [pytest.param(server, id=server.name, marks=with_node(server.needs_node)) for server in THIRD_PARTY_SERVERS]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installed]:
    with install(SERVER_ENVIRONMENTS, tmp_path_factory.mktemp("environments")) as installation:
        yield installation


@pytest.fixture(scope="module")
def service(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Generator[ImportedService]:
    servers = [server for server in THIRD_PARTY_SERVERS if server.environment.name not in installed.errors]
    if not servers:
        pytest.skip("no environment could be installed")
    files, home = prepare_files(tmp_path_factory.mktemp("files")), tmp_path_factory.mktemp("home")
    with serving_imported(servers, installed.directory, files, home) as running:
        yield running


@pytest.fixture
def server(request: pytest.FixtureRequest, installed: Installed) -> ThirdPartyServer:
    server: ThirdPartyServer = request.param
    if error := installed.errors.get(server.environment.name):
        pytest.skip(error)
    if server.needs and not shutil.which(server.needs):
        pytest.skip(f"{server.needs} is not installed")
    return server


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_third_party_server_is_imported_listed_found_and_called(
    server: ThirdPartyServer, service: ImportedService
) -> None:
    assert service.play(server) > 0
