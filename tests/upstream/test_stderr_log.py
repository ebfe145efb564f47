"""The stored stderr of a stdio server is bounded, private and without credentials."""

from __future__ import annotations

import stat
from pathlib import Path

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import ServerUnreachable
from shared.upstream.log import KEPT_BYTES, StderrLog, last_lines, log_file
from shared.upstream.target import StdioTarget
from tests.support.waiting import eventually
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

SECRET = "s3cr3t-key-of-test"
LIMITS = Limits(timeout_s=60)


def written(path: Path, *chunks: bytes, secrets: tuple[str, ...] = (), exit_code: int | None = None) -> list[str]:
    log = StderrLog(path, secrets)
    for chunk in chunks:
        log.write(chunk)
    log.end(exit_code)
    if lines := log.take():
        log.store(lines)
    return last_lines(path.parent, path.stem, 10_000)


@given(st.sampled_from([100, 1_000, 4_097, 4_100, 4_108]), st.integers(0, 12_000) | st.integers(4_070, 4_100))
@example(4_100, 4_085)
def test_a_credential_is_replaced_wherever_the_output_is_cut(size: int, before: int) -> None:
    text = b"x" * before + SECRET.encode() + b" and more\n"
    log = StderrLog(Path("unused"), (SECRET,))

    for start in range(0, len(text), size):
        log.write(text[start : start + size])
    log.end(None)

    shown = "\n".join(log.take())
    assert not any(SECRET[at : at + 8] in shown for at in range(len(SECRET) - 7))
    assert ("*** and more" in shown) == (before + 12 <= 4 << 10)


def test_a_credential_of_several_lines_is_replaced(tmp_path: Path) -> None:
    key = "-----BEGIN KEY-----\nabcdefgh12345\n-----END KEY-----"

    _, *lines = written(tmp_path / "s.log", f"{key}\r\nloaded\n".encode(), secrets=(key,))

    assert lines == ["***", "***", "***", "loaded"]


def test_the_file_is_bounded_and_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "s.log"

    lines: list[str] = []
    for number in range(40):
        lines = written(path, b"".join(b"%03d %05d %s\n" % (number, line, b"y" * 100) for line in range(200)))

    assert lines[-1].startswith("039 00199 ")
    assert KEPT_BYTES <= path.stat().st_size <= 2 * KEPT_BYTES
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_control_characters_are_not_stored(tmp_path: Path) -> None:
    _, line = written(tmp_path / "s.log", b"\x1b[31mred\xff\ttab\n")

    assert line == "\ufffd[31mred\ufffd\ttab"


def test_a_child_without_output_leaves_no_file(tmp_path: Path) -> None:
    assert written(tmp_path / "s.log") == []
    assert list(tmp_path.iterdir()) == []


def test_an_exit_code_is_stored(tmp_path: Path) -> None:
    start, end = written(tmp_path / "s.log", exit_code=3)

    assert start.startswith("--- started at 20")
    assert end.startswith("--- ended with exit code 3 at 20")


@pytest.mark.parametrize("server_id", ["a/b", "..", "@scope/a", "x" * 200, "/" * 200])
def test_every_server_has_a_file_of_the_directory(tmp_path: Path, server_id: str) -> None:
    path = log_file(tmp_path, server_id)

    path.write_text("line\n")

    assert path.parent == tmp_path
    assert last_lines(tmp_path, server_id, 1) == ["line"]
    assert log_file(tmp_path, server_id + "y") != path


def test_a_failure_to_store_does_not_end_the_session(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no directory")

    log = StderrLog(tmp_path / "logs" / "s.log", ())
    log.write(b"line\n")
    log.store(log.take())

    assert (tmp_path / "logs").read_text() == "no directory"


@pytest.mark.process
def test_a_failing_child_leaves_its_lines_and_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.upstream.session.CLOSING_S", 60.0)
    script = f"echo cannot open the database with {SECRET} >&2; exit 7"
    target = StdioTarget("sh", ("-c", script), {"KEY": SECRET}, log=tmp_path / "s.log")

    with pytest.raises(ServerUnreachable, match='its last words: "cannot open the database'):
        fetch_tools_blocking("s", target, LIMITS)

    _, line, end = last_lines(tmp_path, "s", 10)
    assert line == "cannot open the database with ***"
    assert end.startswith("--- ended with exit code 7 at ")


@pytest.mark.process
def test_the_lines_of_a_running_child_are_stored_before_it_ends(tmp_path: Path) -> None:
    from shared.upstream.session import SessionState
    from shared.upstream.stdio import stdio_transport

    async def read_while_it_runs() -> list[str]:
        target = StdioTarget("sh", ("-c", "echo ready >&2; exec cat"), log=tmp_path / "s.log")
        with anyio.CancelScope() as scope:
            async with stdio_transport(target, 1000, SessionState("s", scope)) as (read, write), read, write:
                await anyio.to_thread.run_sync(eventually, lambda: last_lines(tmp_path, "s", 9)[1:] == ["ready"])
                return last_lines(tmp_path, "s", 1)
        raise AssertionError

    assert anyio.run(read_while_it_runs) == ["ready"]
