"""A replica that writes each received call to a file, run as a program: `python logging_replica.py PORT FILE`.

It answers after a short random time, so that a kill interrupts calls.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.hostile.messages import one_page, result, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http

LONGEST_S = 0.005
PAGES = one_page(tool("read"), tool("write"))
FINE = {"content": [{"type": "text", "text": "fine"}]}


def serve(port: int, file: Path) -> None:
    """Serve until the process is killed."""
    with file.open("a", buffering=1) as received:

        def respond(exchange: Exchange) -> None:
            if exchange.method != "tools/call":
                exchange.play(PAGES)
                return
            received.write(f"{exchange.request_json['params']['arguments']['id']}\n")
            time.sleep(random.uniform(0, LONGEST_S))
            exchange.send_json(result(exchange.request_json, FINE))

        with scripted_http(respond, port):
            threading.Event().wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
