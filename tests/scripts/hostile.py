"""Forty hostile scripts, by how each of them ends: at a limit, with an error, or well. None reads the host."""

from __future__ import annotations

AT_A_LIMIT: dict[str, str] = {
    "a long list": "[0] * 10**9",
    "a list that doubles": "x = [1]\nwhile True:\n    x = x + x",
    "a string that doubles": 's = "a"\nwhile True:\n    s = s + s',
    "a long string": '"a" * 10**10',
    "a padded string": '"{:>9999999999}".format(1)',
    "a joined string": '",".join(["a" * 1000] * 10**7)',
    "a replaced string": '("a" * 10**6).replace("a", "b" * 10**6)',
    "a dictionary without end": "d = {}\nn = 0\nwhile True:\n    d[n] = str(n) * 100\n    n += 1",
    "a million lists": "[[n] for n in range(10**6)]",
    "a set without end": "s = set()\nn = 0\nwhile True:\n    s.add(n)\n    n += 1",
    "bytes": "b'a' * 10**10",
    "an exponent": "10 ** 10 ** 9",
    "a shift": "1 << 10**11",
    "a factorial": "import math\nmath.factorial(10**7)",
    "squares": "x = 7\nwhile True:\n    x = x * x",
    "an endless loop": "while True:\n    pass",
    "an endless loop that catches": "while True:\n    try:\n        1 / 0\n    except BaseException:\n        pass",
    "an endless expression": "sum(range(10**15))",
    "a sort": "sorted(range(10**7), key=lambda n: -n)",
    "a long sleep": "import time\ntime.sleep(10**9)",
    "ten thousand gathered calls": (
        'import asyncio\nlen(await asyncio.gather(*[call("files:say", {"n": n}) for n in range(10_000)]))'
    ),
}
WITH_AN_ERROR: dict[str, str] = {
    "digits of an integer": "str(10 ** 1_000_000)",
    "recursion": "def f():\n    return f()\nf()",
    "mutual recursion": "def f():\n    return g()\ndef g():\n    return f()\nf()",
    "deep brackets": "(" * 20_000 + ")" * 20_000,
    "a deep value": "x = []\nfor _ in range(10**6):\n    x = [x]\nx",
    "a deep argument": 'x = {}\nfor _ in range(10**5):\n    x = {"a": x}\nawait call("files:list", x)',
    "a file": 'open("/etc/passwd").read()',
    "a path": "from pathlib import Path\nPath('/proc/self/environ').read_text()",
    "the environment": "import os\nos.environ",
    "a process": 'import subprocess\nsubprocess.run(["id"])',
    "a socket": "import socket\nsocket.socket()",
    "a foreign module": "import ctypes\nctypes.string_at(0)",
    "attributes of a tuple": "().__class__.__bases__[0].__subclasses__()",
    "globals of a function": "call.__globals__",
    "names that a pickle would load": "import pickle\npickle.loads(b\"cos\\nsystem\\n(S'id'\\ntR.\")",
    "code from a string": "eval(\"__import__('os').system('id')\")",
    "a result of 100 MB": '"x" * 100_000_000',
}
WELL: dict[str, str] = {
    "a value within itself": "x = []\nx.append(x)\nx",
    "a slow pattern": 'import re\nre.search("(a+)+$", "a" * 100_000 + "b")',
}
HOSTILE = AT_A_LIMIT | WITH_AN_ERROR | WELL
