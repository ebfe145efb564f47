"""The data on which the tasks work: files, a database, a graph and a repository, the same for each run.

All of it follows from a seed, so the expected answers are computed here, without a server.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

Row = dict[str, Any]

FIRST_DAY = date(2026, 3, 1)
COUNTRIES = ("DE", "FR", "US", "JP", "BR", "IN")
CURRENCIES = ("EUR", "USD", "JPY")
PEOPLE = ("Ada", "Bo", "Chidi", "Dana", "Eli", "Fay", "Gus", "Hana", "Ines", "Jon", "Kim", "Lea")
ZONES = (
    "Europe/Berlin", "America/New_York", "Asia/Tokyo", "America/Sao_Paulo", "Asia/Kolkata", "Africa/Lagos",
    "Australia/Sydney", "America/Los_Angeles", "Europe/London", "Asia/Dubai", "America/Toronto", "Asia/Singapore",
)  # fmt: skip
COMPONENTS = ("api", "billing", "search", "worker", "mailer")
BRANCHES = ("feature-export", "feature-import", "fix-login", "fix-timeouts", "release-1", "release-2")

_random = Random(47)


def _customers() -> list[Row]:
    return [
        {
            "id": number,
            "name": f"Customer {number:02}",
            "country": _random.choice(COUNTRIES),
            "owner": _random.choice(PEOPLE),
            "email": f"contact{number:02}@customer{number:02}.example",
        }
        for number in range(1, 51)
    ]


def _note() -> str:
    if _random.random() < 0.08:
        return f"please call back on +49 {_random.randint(100, 999)} {_random.randint(10000, 99999)} before delivery"
    return _random.choice(
        (
            "deliver to the back entrance, the front door is closed in the morning",
            "the customer asked for an invoice by post",
            "packed with the order of last week",
            "no remarks",
        )
    )


def _orders() -> list[Row]:
    return [
        {
            "id": number,
            "customer_id": _random.randint(1, 50),
            "day": str(FIRST_DAY + timedelta(days=_random.randint(0, 89))),
            "cents": _random.randint(500, 90_000),
            "paid": int(_random.random() < 0.8),
            "note": _note(),
        }
        for number in range(1, 201)
    ]


def _events() -> list[Row]:
    return [
        {"id": number, "kind": _random.choice(("open", "click", "buy", "leave")), "session": _random.randint(1, 60)}
        for number in range(1, 251)
    ]


def _invoices() -> list[Row]:
    return [
        {
            "invoice": f"INV-{number:03}",
            "order": number * 5,
            # every seventh does not agree with its order
            "cents": ORDERS[number * 5 - 1]["cents"] + (100 if number % 7 == 0 else 0),
            "currency": _random.choice(CURRENCIES),
            "lines": [{"article": f"A-{_random.randint(100, 999)}", "pieces": _random.randint(1, 9)} for _ in range(4)],
            "address": {
                "street": f"Example Street {number}",
                "city": "Exampleton",
                "country": _random.choice(COUNTRIES),
            },
        }
        for number in range(1, 31)
    ]


def _log(day: int) -> str:
    lines: list[str] = []
    for number in range(40):
        level = _random.choices(("INFO", "WARNING", "ERROR"), (85, 10, 5))[0]
        component = _random.choice(COMPONENTS)
        text = f"request {_random.randint(10_000, 99_999)} took {_random.randint(2, 900)} ms"
        lines.append(
            f"{FIRST_DAY + timedelta(days=day)}T{number // 2:02}:{number % 60:02}:00Z {level} {component}: {text}"
        )
    return "\n".join(lines) + "\n"


def _markdown_note(number: int) -> str:
    title = "" if number % 4 == 0 else f"# Note {number}\n\n"
    words = " ".join(_random.choices(("plan", "review", "budget", "team", "customer", "launch", "data"), k=90))
    return f"{title}owner: {_random.choice(PEOPLE)}\n{words}\n"


def _service(number: int) -> str:
    port = 8_000 + (number if number % 5 else 1)  # two share the port of the first
    return (
        f'name = "service-{number:02}"\nport = {port}\nreplicas = {_random.randint(1, 5)}\n'
        f'owner = "{_random.choice(PEOPLE)}"\n[limits]\nmemory_mib = {_random.choice((256, 512, 1024))}\n'
        f'cpu = {_random.randint(1, 4)}\n[health]\npath = "/healthz"\nevery_s = 10\n'
    )


CUSTOMERS = _customers()
ORDERS = _orders()
EVENTS = _events()
INVOICES = _invoices()
OFFICES: list[Row] = [{"city": zone.partition("/")[2], "zone": zone} for zone in ZONES]
LOGS = {f"{FIRST_DAY + timedelta(days=day)}.log": _log(day) for day in range(20)}
NOTES = {f"note-{number:02}.md": _markdown_note(number) for number in range(1, 17)}
SERVICES = {f"service-{number:02}.toml": _service(number) for number in range(1, 13)}
PICTURES = tuple(f"IMG {number:04}.JPG" for number in range(1, 16))
TEAMS = {name: f"team-{index % 3}" for index, name in enumerate(PEOPLE)}
DUPLICATES = ("ada", "ELI", "hana")
COMMITS: list[Row] = [
    {
        "number": number,
        "author": _random.choice(PEOPLE[:3]),
        "file": _random.choice([f"{component}.py" for component in COMPONENTS]),
        "message": f"{_random.choice(('Fix', 'Add', 'Change'))} part {number}",
    }
    for number in range(1, 25)
]


def tables() -> Mapping[str, Sequence[Row]]:
    """Return the rows of each table."""
    return {
        "customers": CUSTOMERS,
        "orders": ORDERS,
        "events": EVENTS,
        "offices": OFFICES,
        "findings": [],
        "totals": [],
    }


_COLUMNS = {
    "customers": "id INTEGER, name TEXT, country TEXT, owner TEXT, email TEXT",
    "orders": "id INTEGER, customer_id INTEGER, day TEXT, cents INTEGER, paid INTEGER, note TEXT",
    "events": "id INTEGER, kind TEXT, session INTEGER",
    "offices": "city TEXT, zone TEXT",
    "findings": "day TEXT, errors INTEGER",
    "totals": "customer_id INTEGER, cents INTEGER",
}


def entities() -> list[Row]:
    """Return the graph's entities: people with a zone and a phone, teams, and duplicates of people."""
    people = [
        {
            "name": name,
            "entityType": "person",
            "observations": [f"works in the time zone {zone}", f"phone 555-01{index:02}"],
        }
        for index, (name, zone) in enumerate(zip(PEOPLE, ZONES, strict=True))
    ]
    teams = [
        {"name": f"team-{number}", "entityType": "team", "observations": [f"team number {number}"]}
        for number in range(3)
    ]
    same = [{"name": name, "entityType": "person", "observations": ["imported twice"]} for name in DUPLICATES]
    return [*people, *teams, *same]


def relations() -> list[Row]:
    """Return the graph's relations: the team of each person."""
    return [{"from": name, "to": team, "relationType": "member_of"} for name, team in TEAMS.items()]


def build(directory: Path) -> None:
    """Write the data into this directory, replacing what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    files = directory / "files"
    for folder, texts in (
        ("logs", LOGS),
        ("notes", NOTES),
        ("services", SERVICES),
        ("invoices", {f"{invoice['invoice']}.json": json.dumps(invoice, indent=1) for invoice in INVOICES}),
        ("pictures", dict.fromkeys(PICTURES, "a picture\n")),
        ("out", {}),
    ):
        (files / folder).mkdir(parents=True)
        for name, text in texts.items():
            (files / folder / name).write_text(text, encoding="utf-8")
    with closing(sqlite3.connect(directory / "notes.db")) as database, database:
        for table, rows in tables().items():
            database.execute(f"CREATE TABLE {table} ({_COLUMNS[table]})")
            for row in rows:
                database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", list(row.values()))
    lines = [{"type": "entity", **entity} for entity in entities()] + [
        {"type": "relation", **each} for each in relations()
    ]
    (directory / "memory.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    _repository(directory / "repository")


def _repository(directory: Path) -> None:
    directory.mkdir()
    _git(directory, "init", "--quiet", "--initial-branch=main")
    for commit in COMMITS:
        with (directory / commit["file"]).open("a", encoding="utf-8") as file:
            file.write("".join(f"# part {commit['number']}, line {line}\n" for line in range(12)))
        _git(directory, "add", ".")
        when = f"{FIRST_DAY + timedelta(days=commit['number'])}T12:00:00+00:00"
        _git(directory, "commit", "--quiet", "-m", commit["message"], author=commit["author"], when=when)
    for index, branch in enumerate(BRANCHES):
        _git(directory, "branch", branch, f"HEAD~{index + 1}")


def _git(directory: Path, *arguments: str, author: str = "Ada", when: str = "2026-03-01T12:00:00+00:00") -> str:
    who = {"NAME": author, "EMAIL": f"{author.lower()}@example.org", "DATE": when}
    identity = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return subprocess.run(
        ["git", "-C", str(directory), *arguments], check=True, capture_output=True, text=True, env=environment
    ).stdout


def hashes(directory: Path) -> list[str]:
    """Return the hashes of the commits of `main`, the newest first."""
    return _git(directory / "repository", "log", "--format=%H", "main").split()


def state(directory: Path) -> str:
    """Return a digest of all data that the servers may have changed."""
    found = hashlib.sha256()
    for path in sorted((directory / "files").rglob("*")):
        found.update(f"{path.relative_to(directory)}\n".encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    with closing(sqlite3.connect(directory / "notes.db")) as database:
        for table in sorted(tables()):
            rows = database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            found.update(f"{table} {rows}\n".encode())
    lines = (directory / "memory.jsonl").read_text(encoding="utf-8").splitlines()
    found.update("\n".join(sorted(lines)).encode())
    found.update(_git(directory / "repository", "log", "--all", "--format=%s %an %ad").encode())
    found.update(_git(directory / "repository", "branch").encode())
    return found.hexdigest()
