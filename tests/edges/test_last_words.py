"""The last words of a server that ended are its last ones: the line that names the error, in every message."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ServerError
from shared.upstream.session import LAST_WORDS, last_words
from shared.upstream.target import StdioTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.processes import good_stdio
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

NODE = "Error: Cannot find module '/srv/none.js'"
ENDS = {
    "a traceback": ("Traceback (most recent call last):\n" + '  File "a.py", line 1\n' * 30, "KeyError: 'API_KEY'", ""),
    "a traceback within a group": (
        "INFO starting\n  + Exception Group Traceback (most recent call last):\n  |   File 'a.py', line 1\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n  +-+------- 1 -------\n    | ",
        "KeyError: 'API_KEY'",
        "\n    +--------------------\n",
    ),
    "Node": (
        "node:internal/modules/cjs/loader:1228\n  throw err;\n  ^\n\n",
        NODE,
        "\n    at f (node:internal:1)" * 10
        + " {\n  code: 'MODULE_NOT_FOUND',\n  requireStack: []\n}\n\nNode.js v22.1.0\n",
    ),
    "npx": (
        "npm warn exec The following package was not found\n",
        "npm error code E404",
        "\nnpm error 404 Not Found - GET https://r.example/none\nnpm error 404\nnpm error A complete log of this run "
        "can be found in: /home/ann/.npm/_logs/1.log\n",
    ),
    "docker": (
        "Unable to find image 'none:latest' locally\n",
        "docker: Error response from daemon: pull access denied",
        "\n\nRun 'docker run --help' for more information\n",
    ),
    "Go": (
        "listening\n",
        "panic: out of cheese",
        "\n\ngoroutine 1 [running]:\nmain.main()\n\t/a.go:5\nexit status 2\n",
    ),
    "Rust": ("", "thread 'main' panicked at a.rs:4:5:", "\nout of cheese\nnote: run with `RUST_BACKTRACE=1`"),
    "colours and a bar": ("10 %\r50 %\r100 %\n", "fatal: no key", "\x1b[0m\n\n"),
    "another script": ("starting\n", "エラー: 鍵がありません", "\n"),
    "a long log": ("INFO request handled\n" * 300, "FATAL: the database is locked", "\n"),
    "one long line": ("x" * 9_000 + "\n", "the key is missing", ""),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_last_words_begin_with_the_line_of_the_error(end: str) -> None:
    before, words, after = ENDS[end]

    found = last_words(before + words + after)

    assert found.startswith(words) or (end == "Rust" and "out of cheese" in found)


def test_output_without_such_a_line_gives_its_end() -> None:
    found = last_words("  × No solution found:\n  ╰─▶ Because none was not found,\n      it is unsatisfiable.\n")

    assert found.endswith("it is unsatisfiable.")


@given(st.text(max_size=400), st.from_regex(r"[A-Za-z]{3,20}Error: [a-z ]{1,20}[a-z]", fullmatch=True))
def test_nothing_before_the_last_line_hides_it(before: str, error: str) -> None:
    assert last_words(f"{before}\n{error}\n  at 1\n\n") == f"{error}\n  at 1"


@pytest.mark.process
@pytest.mark.parametrize("program", ["python", "node", "shell"])
def test_a_listing_and_its_error_have_the_last_line(program: str, tmp_path: Path) -> None:
    script = tmp_path / "server"
    targets = {
        "python": (
            sys.executable,
            "import os\ndef f(n):\n    return f(n - 1) if n else os.environ['API_KEY_X']\nf(60)",
        ),
        "node": ("node", "function f(n) { if (n) f(n - 1); else throw new Error('no API_KEY_X') }\nf(60)"),
        "shell": ("sh", "for i in 1 2 3; do echo \"starting $i\" >&2; done; echo 'no API_KEY_X' >&2; exit 4"),
    }
    command, text = targets[program]
    if not shutil.which(command):
        pytest.skip(f"{command} is not installed")
    script.write_text(text)

    with pytest.raises(ServerError) as caught:
        fetch_tools_blocking("s", StdioTarget(command, (str(script),)), Limits())

    words = json.loads(str(caught.value).partition(LAST_WORDS)[2])
    assert "API_KEY_X" in words
    assert not words.startswith(("Traceback", "starting", " "))


@pytest.mark.process
@pytest.mark.anyio
async def test_a_call_that_ends_its_server_has_the_last_line() -> None:
    program = (
        "import sys\nsys.stderr.write('starting ' * 200 + '\\n')\n"
        "raise SystemExit('\\n'.join(['Traceback', *['  in a frame'] * 99, 'KeyError: API_KEY_X', '']))"
    )
    target = StdioTarget(sys.executable, ("-c", program))
    async with calling({"s": target, "good": good_stdio()}, tool_of("s", "echo")) as client:
        result = await client.call_tool("call_tool", {"tool_name": "s:echo"})

    assert "API_KEY_X" in text_of(result)
    assert "Traceback" not in text_of(result)
