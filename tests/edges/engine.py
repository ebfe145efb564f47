#!/usr/bin/env python3
"""The client of a container engine, whose containers are processes of their own: `docker run|ps|stop|kill|rm`.

The state is in the directory `engine` beside this file: a JSON file for each container. A container has no variable of
its client and no common session, like one that a daemon starts, and as its first process it ignores SIGTERM.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

STATE = Path(__file__).parent / "engine"
VALUED = ("--name", "--label", "--cidfile", "-e", "--env", "-v", "--network")
DAEMON = """
import subprocess, sys
process = subprocess.Popen(sys.argv[2:], start_new_session=True)
open(sys.argv[1], "w").write(str(process.pid))
"""


def refuse(message: str, code: int = 125) -> None:
    sys.stderr.write(f"docker: {message}\n")
    sys.exit(code)


def containers() -> dict[str, dict[str, Any]]:
    STATE.mkdir(exist_ok=True)
    return {file.stem: json.loads(file.read_text()) for file in STATE.glob("*.json")}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end(pid: int, number: int, seconds: float) -> None:
    if is_alive(pid):
        os.kill(pid, number)
    ends = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < ends:
        time.sleep(0.01)


def remove(identifier: str) -> None:
    (STATE / f"{identifier}.json").unlink(missing_ok=True)


def copy(source: int, sink: int) -> None:
    while chunk := os.read(source, 65536):
        os.write(sink, chunk)
    os.close(sink)


def run(words: list[str]) -> None:  # noqa: C901  # the order of what an engine checks
    options: dict[str, str] = {}
    labels: list[str] = []
    flags = set[str]()
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in VALUED:
            value = value if equals else words.pop(0)
            labels += [value] if name == "--label" else []
            options[name] = value
        elif word.startswith("--"):
            flags.add(word)
        else:
            flags |= set(word[1:])
    image, *command = words
    if "t" in flags or "--tty" in flags:
        refuse("the input device is not a TTY", 1)
    if "missing" in image:
        refuse(f"Unable to find image '{image}' locally\npull access denied for {image}")
    name = options.get("--name", "")
    if name and any(each["name"] == name for each in containers().values()):
        refuse(f'Conflict. The container name "/{name}" is already in use')
    id_file = Path(options.get("--cidfile", os.devnull))
    if id_file.is_file():
        refuse(f"container ID file found, make sure the other container isn't running or delete {id_file}")

    identifier = secrets.token_hex(32)
    id_file.write_text(identifier)
    pid_file = STATE / f"{identifier}.pid"
    is_interactive = "i" in flags or "--interactive" in flags
    (stdin, to_stdin), (from_stdout, stdout) = os.pipe(), os.pipe()
    daemon = [sys.executable, "-c", DAEMON, str(pid_file), *command]
    subprocess.run(daemon, env={"PATH": os.environ["PATH"]}, stdin=stdin, stdout=stdout, check=True)
    os.close(stdin)
    os.close(stdout)
    if is_interactive:
        threading.Thread(target=copy, args=(0, to_stdin), daemon=True).start()
    else:
        os.close(to_stdin)
    threading.Thread(target=copy, args=(from_stdout, 1), daemon=True).start()
    pid = int(pid_file.read_text())
    (STATE / f"{identifier}.json").write_text(json.dumps({"name": name, "labels": labels, "pid": pid}))
    signal.signal(signal.SIGTERM, lambda number, _: end(pid, number, 0))
    while is_alive(pid):
        time.sleep(0.01)
    if "--rm" in flags:
        remove(identifier)


def main(command: str, words: list[str]) -> None:
    if command == "run":
        run(words)
    elif command == "ps":
        label = words[words.index("--filter") + 1].removeprefix("label=")
        sys.stdout.write("\n".join(each for each, container in containers().items() if label in container["labels"]))
    else:
        identifiers = [word for word in words if word in containers()]
        for identifier in identifiers:
            pid = containers()[identifier]["pid"]
            if command == "stop":
                end(pid, signal.SIGTERM, float(words[words.index("-t") + 1]))
            end(pid, signal.SIGKILL, 5)
            if command == "rm":
                remove(identifier)
        sys.exit(not identifiers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
