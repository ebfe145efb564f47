"""Files of other editors and systems: the `mcp.json`, and those of clients in JSON, TOML and YAML."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from shared.errors import ConfigInvalid
from shared.settings import load_settings
from shared.upstream.mcp_json import Config, read_config
from tests.e2e.test_serve import serving
from tests.support.client_homes import Write
from tests.support.hostile.processes import callable_stdio
from toolscale.app import app
from toolscale.doctor.installation import check_config
from toolscale.mcp_clients.clients import Client, Machine, client_files
from toolscale.mcp_clients.connect import connecting
from toolscale.mcp_clients.find import FoundServers, find_servers

NAME = "caf\u00e9 \U0001f680 日本"
JSON = json.dumps({"mcpServers": {NAME: {"command": "x", "env": {"A": NAME}}}}, ensure_ascii=False)
TOML = f'[mcp_servers."{NAME}"]\ncommand = "x"\nenv = {{ A = "{NAME}" }}\n'
YAML = f'extensions:\n  "{NAME}":\n    type: stdio\n    cmd: x\n    envs: {{A: "{NAME}"}}\n'
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
CLIENTS = {".cursor/mcp.json": JSON, ".codex/config.toml": TOML, ".config/goose/config.yaml": YAML}


def read(path: Path, content: bytes | str) -> Config:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_config(path, {})


def reason(path: Path, content: bytes | str) -> str:
    with pytest.raises(ConfigInvalid) as raised:
        read(path, content)
    assert str(raised.value).startswith(str(path))
    return str(raised.value)


def found(home: Path) -> FoundServers:
    return find_servers(
        client_files(Machine("linux", home, {}), home / "project", Client), Machine("linux", home, {}), load_settings()
    )


def in_home(home: Path, name: str, content: bytes) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


# --- encodings ---


@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-16-le with a mark", "utf-16-be with a mark"])
def test_a_file_in_unicode_is_read_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    codec, _, mark = encoding.partition(" ")

    config = read(tmp_path / "mcp.json", (("\ufeff" if mark else "") + JSON.replace("{", "{\r\n")).encode(codec))

    (target,) = config.targets.values()
    assert target.env == {"A": NAME}  # type: ignore[union-attr]  # it has a command


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_clients_file_in_unicode_is_imported_in_every_encoding(home: Path, name: str, encoding: str) -> None:
    in_home(home, name, CLIENTS[name].encode(encoding))

    (server,) = found(home).servers

    assert (server.name, server.entry["env"]) == (NAME, {"A": NAME})


@pytest.mark.parametrize("codec", ["latin-1", "cp1252", "mac-roman", "cp437", "shift-jis"])
@pytest.mark.parametrize("name", ["mcp.json", *CLIENTS])
def test_another_encoding_is_named_with_its_line(home: Path, name: str, codec: str) -> None:
    comment = "" if name.endswith("json") else "# "
    word = "日本" if codec == "shift-jis" else "Schl\u00fcssel"
    path = in_home(home, name, f'\n\n{comment}{{"a": "{word} s3cr3t"}}\n'.encode(codec))

    if name == "mcp.json":
        text = reason(path, path.read_bytes())
    else:
        (skipped,) = found(home).skipped
        text = skipped.reason

    assert "line 3" in text
    assert "UTF-8" in text
    assert "s3cr3t" not in text


@pytest.mark.parametrize(
    "content",
    [
        *(b"\0" * size for size in (1, 2, 3, 4, 4096)),
        JSON.encode() + b"\0" * 100,
        JSON.encode("utf-16")[:-1],
        b'{"mcpServers": {"a\0b": {}}}',
        b"\x1f\x8b\x08\0\0\0\0\0",
        b"PK\x03\x04" + bytes(range(256)),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    assert reason(tmp_path / "mcp.json", content)


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-16-le", "surrogatepass")))
def test_no_content_ends_with_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)

    try:
        read_config(path, {})
    except ConfigInvalid as error:
        assert str(error).startswith(str(path))  # noqa: PT017  # a file of servers is fine too


def test_a_directory_a_missing_file_and_one_without_permission_are_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "directory.json").mkdir()
    unreadable = tmp_path / "unreadable.json"
    unreadable.write_text(JSON)
    unreadable.chmod(0)
    paths = [
        tmp_path / "directory.json",
        tmp_path / "missing.json",
        *([] if os.access(unreadable, os.R_OK) else [unreadable]),
    ]

    for path in paths:
        with pytest.raises(ConfigInvalid, match=re.escape(str(path))):
            read_config(path, {})
        assert str(path) in str(run("serve", "--config", str(path)).exception)


# --- quotes and backslashes ---


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n "mcpServers": {\u201ca\u201d: {"command": "x"}}}', "column 17"),
        ('{"mcpServers": {"a": {"command": \u201cx\u201d}}}', "line 1, column 34"),
        ('{\n\n "mcpServers": {"a\u201d: {"command": "x"}}}', "line 3"),
        ('{"mcpServers": {\u2018a\u2019: {}}}', "column 17"),
        ('{"mcpServers": {\u00aba\u00bb: {}}}', "column 17"),
        ('{"mcpServers": {"a": {"command": "x"\u201a}}}', "column 37"),
    ],
)
def test_curly_quotes_are_named_with_their_place(tmp_path: Path, text: str, place: str) -> None:
    found = reason(tmp_path / "mcp.json", text)

    assert place in found
    assert "quote" in found


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (r"C:\Users\me\server.exe", "line 2, column 17"),
        (r"C:\xampp\php.exe", "line 2, column 17"),
        (r"C:\vendor", "line 2, column 17"),
        (r"C:\users", "line 2, column 17"),
        (r"C:\0day", "line 2, column 17"),
        (r"C:\\ok\but\Program Files", "line 2"),
        (r"\\host\share", "line 2, column 21"),
    ],
)
@pytest.mark.parametrize("comment", ["", " // mine", "/* C:\\Users */"])
def test_an_unknown_escape_is_an_error_with_its_place(tmp_path: Path, path: str, place: str, comment: str) -> None:
    found = reason(
        tmp_path / "mcp.json", f'{{"mcpServers": {{"a": {{{comment}\n  "command": "{path}"}}}}}}'.replace("C:", "C:")
    )

    assert place in found
    assert r"\\" in found


@pytest.mark.parametrize("path", [r"C:\tools\new.exe", r"D:\node\bin", r"C:\fast\run", r".\bin\next", r"E:\repo"])
def test_a_backslash_that_made_another_character_is_an_error_of_its_entry(tmp_path: Path, path: str) -> None:
    entries = f'"a": {{"command": "x", "args": ["{path}"]}}, "b": {{"command": "{path}"}}, "c": {{"command": "x"}}'

    config = read(tmp_path / "mcp.json", f'{{"mcpServers": {{{entries}}}}}')

    assert list(config.targets) == ["c"]
    assert [problem.reason.split(":")[0] for problem in config.problems] == ["args", "command"]


def test_escapes_that_are_right_are_read(tmp_path: Path) -> None:
    text = r"""{ // it's C:\Users
      "mcpServers": {'a': {"command": "C:\\Users\\me\\x.exe", "args": ["caf\u00e9\/", "it\'s", "a\
b", "tab\tnew\n"],}},}"""

    config = read(tmp_path / "mcp.json", text)

    assert config.targets["a"].args == ("café/", "it's", "ab", "tab\tnew\n")  # type: ignore[union-attr]  # a command


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".codex/config.toml", '[mcp_servers.a]\ncommand = "C:\\Users\\x"\n'),
        (".config/goose/config.yaml", 'extensions:\n  a: {type: stdio, cmd: "C:\\Users\\x"}\n'),
        (".codex/config.toml", "[mcp_servers.a]\ncommand = \u201cx\u201d\n"),
        (".config/goose/config.yaml", "extensions:\n  a: {type: stdio, cmd: x}\n  a: {type: stdio, cmd: y}\n"),
        (".codex/config.toml", "[mcp_servers.a]\n[mcp_servers.a]\n"),
        (".codex/config.toml", f"a = 1\nb = {'[' * 3_000}{']' * 3_000}\n"),
        (".config/goose/config.yaml", f"a: 1\nb: {'[' * 3_000}{']' * 3_000}\n"),
        (".cursor/mcp.json", f'{{"a": {"[" * 200_000}'),
        (".continue/config.yaml", "a: &a [*a, *a]\nmcpServers: {b: *a}\n"),
        (".continue/config.yaml", "? [1, 2]\n: 3\n? {a: b}\n: 4\n"),
    ],
)
def test_a_clients_file_that_cannot_be_read_is_named_and_does_not_affect_the_others(
    home: Path, name: str, content: str
) -> None:
    in_home(home, name, content.encode())
    in_home(home, ".lmstudio/mcp.json", b'{"mcpServers": {"good": {"command": "x"}}}')

    result = found(home)

    assert [server.name for server in result.servers] == ["good"]
    (skipped,) = result.skipped
    assert str(home / name) in skipped.reason or skipped.reason.startswith("b:")


# --- one key twice ---


def test_a_key_that_replaces_that_of_an_anchor_is_no_second_one(home: Path) -> None:
    text = "common: &c {type: stdio, cmd: x, args: [a]}\nextensions:\n  mail: {<<: *c, cmd: y}\n  docs: {<<: *c}\n"
    in_home(home, ".config/goose/config.yaml", text.encode())

    assert [server.entry["command"] for server in found(home).servers] == ["y", "x"]


TWICE = """{ // mine
  "mcpServers": {
    "mail": {"command": "old"},
    "docs": {"command": "x", "env": {"A": "1", "A": "2"}},
    "mail": {"command": "new"}
  }, "inputs": [{"id": 1, "id": 2}]
}"""


@pytest.mark.parametrize("text", [TWICE, TWICE.replace(" // mine", "")])
def test_a_key_that_is_there_twice_is_a_warning(tmp_path: Path, text: str) -> None:
    config = read(tmp_path / "mcp.json", text)

    assert sorted(config.repeated) == ["inputs.id", "mcpServers.docs.env.A", "mcpServers.mail"]
    assert config.targets["mail"].command == "new"  # type: ignore[union-attr]  # it has a command


def test_the_doctor_and_the_import_warn_of_a_key_that_is_there_twice(home: Path, write: Write) -> None:
    path = write("data/mcp.json", TWICE)
    findings = [each for each in check_config(load_settings(mcp_config=path)) if each.level == "warning"]
    write(".cursor/mcp.json", TWICE)

    assert ["mcpServers.mail" in finding.found for finding in findings] == [True]
    assert "mcpServers.mail" in run("import").output


@pytest.mark.process
@pytest.mark.slow
def test_a_service_and_its_commands_warn_of_keys_and_count_what_is_switched_off(tmp_path: Path) -> None:
    target = callable_stdio()
    entry = json.dumps({"command": target.command, "args": list(target.args)})
    path = tmp_path / "mcp.json"
    off = '"off": {"command": "nothing", "isEnabled": "no"}'
    path.write_text(f'{{"mcpServers": {{"mail": {entry}, {off}, "mail": {entry}}}}}', encoding="utf-16")

    with serving(path) as (running, _):
        running.wait_for("config_keys_repeated")
        listed = subprocess.run(
            [sys.executable, "-m", "toolscale", "ls", "--data-dir", str(tmp_path)],
            check=True, capture_output=True, text=True, encoding="utf-8", timeout=60,
        )  # fmt: skip

    assert "mcpServers.mail" in running.output()
    assert "mcpServers.mail" in listed.stderr
    assert "switched off: 1" in listed.stderr


# --- empty and deep files ---


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", "\ufeff".encode("utf-16-le")])
@pytest.mark.parametrize("name", ["mcp.json", *CLIENTS])
def test_an_empty_file_has_no_servers(home: Path, name: str, content: bytes) -> None:
    path = in_home(home, name, content)

    if name == "mcp.json":
        assert "mcpServers" in reason(path, content)
        assert run("add", "a", "--config", str(path), "--", "x").exit_code == 0
        assert list(read_config(path, {}).targets) == ["a"]
    else:
        assert (found(home).servers, found(home).skipped) == ((), ())


@pytest.mark.parametrize("depth", [60, 300, 900])
def test_a_deep_entry_is_refused_by_its_name_and_its_file_is_not_written(home: Path, write: Write, depth: int) -> None:
    deep = '{"a": ' * depth + "1" + "}" * depth
    own = f'"deep": {{"command": "x", "env": {deep}}}, "good": {{"command": "y"}}'
    others = f'"deeper": {{"command": "x", "more": {deep}}}, "new": {{"command": "z"}}'
    path = write("data/mcp.json", f'{{"mcpServers": {{{own}}}}}')
    write(".cursor/mcp.json", f'{{"mcpServers": {{{others}}}}}')

    config = read_config(path, {})

    assert ([*config.targets], [problem.name for problem in config.problems]) == (["good"], ["deep"])
    assert [server.name for server in found(home).servers] == ["new"]
    assert isinstance(run("import", "--apply").exception, ConfigInvalid)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_clients_file_in_another_encoding_is_not_changed(home: Path, encoding: str) -> None:
    path = in_home(home, ".cursor/mcp.json", before := '{"mcpServers": {"caf\u00e9": {}}}'.encode(encoding))

    with pytest.raises(ConfigInvalid, match=re.escape(str(path))):
        connecting(Client.CURSOR, Machine("linux", home, {}), {"command": "toolscale"})

    assert path.read_bytes() == before
