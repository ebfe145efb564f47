"""Twenty tasks on the demo's servers: the calls one by one, a script for the same, and the expected answer.

A round has the calls that an agent can send at once, since none of them needs the result of another; each round is a
round trip. Where a server has a tool for many things at once, or SQL does the work, the rounds use it. A script's
author must know the form of a result: where no output schema says it, the agent calls the tool once before (`looks`),
and those calls count as part of the script's side.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from benchmarks.whole_calls.world import (
    BRANCHES,
    COMMITS,
    CUSTOMERS,
    DUPLICATES,
    EVENTS,
    INVOICES,
    LOGS,
    NOTES,
    OFFICES,
    ORDERS,
    PEOPLE,
    PICTURES,
    SERVICES,
    TEAMS,
    ZONES,
    hashes,
)

DIRECTORY = Path("/tmp/whole-calls")
"""Where the data is: the paths are part of the tokens, so they are the same on each machine."""

FILES = f"{DIRECTORY}/files"
REPOSITORY = f"{DIRECTORY}/repository"

Call = tuple[str, Mapping[str, Any]]
Rounds = Sequence[Sequence[Call]]


@dataclass(frozen=True, slots=True)
class Task:
    """A task; `answer` is what the script returns, and what a reader of all results would say."""

    name: str
    question: str
    rounds: Callable[[], Rounds]
    script: str
    answer: Callable[[], Any]
    looks: Sequence[Call] = ()


def query(sql: str) -> Call:
    """Return a call that reads the database."""
    return "sqlite:read_query", {"query": sql}


def write(sql: str) -> Call:
    """Return a call that changes the database."""
    return "sqlite:write_query", {"query": sql}


def folder(name: str) -> Call:
    """Return a call that lists a directory."""
    return "filesystem:list_directory", {"path": f"{FILES}/{name}"}


def read(name: str) -> Call:
    """Return a call that reads a file."""
    return "filesystem:read_text_file", {"path": f"{FILES}/{name}"}


def read_all(directory: str, names: Sequence[str]) -> Call:
    """Return a call that reads many files at once."""
    return "filesystem:read_multiple_files", {"paths": [f"{FILES}/{directory}/{name}" for name in names]}


def local_hour(clock: str, zone: str) -> int:
    """Return the hour in a zone when it is so late in UTC today."""
    hour, minute = map(int, clock.split(":"))
    utc = datetime.now(ZoneInfo("UTC")).replace(hour=hour, minute=minute)
    return utc.astimezone(ZoneInfo(zone)).hour


def _with_a_phone() -> list[int]:
    return [order["id"] for order in ORDERS if re.search(r"\+\d", order["note"])]


FILTER_ROWS = Task(
    "filter the rows of a query by a pattern",
    "Which orders have a telephone number in their note?",
    lambda: [[query("SELECT id, note FROM orders")]],
    """
import re
rows = eval(await call("sqlite:read_query", {"query": "SELECT id, note FROM orders"}))
[row["id"] for row in rows if re.search(r"\\+[0-9]", row["note"])]
""",
    _with_a_phone,
    looks=[query("SELECT id, note FROM orders LIMIT 2")],
)


def _by_team() -> dict[str, int]:
    totals = Counter[str]()
    owners = {customer["id"]: customer["owner"] for customer in CUSTOMERS}
    for order in ORDERS:
        totals[TEAMS[owners[order["customer_id"]]]] += order["cents"]
    return dict(sorted(totals.items()))


_BY_OWNER = "SELECT owner, SUM(cents) AS cents FROM orders JOIN customers ON customers.id = customer_id GROUP BY owner"

JOIN_SERVERS = Task(
    "join a database and a graph",
    "What is the sum of the orders of each team, by the owner of the customer?",
    lambda: [
        [
            query(_BY_OWNER),
            ("memory:read_graph", {}),
        ]
    ],
    """
sql = "SELECT owner, SUM(cents) AS cents FROM orders JOIN customers ON customers.id = customer_id GROUP BY owner"
sums = eval(await call("sqlite:read_query", {"query": sql}))
graph = await call("memory:read_graph", {})
team = {each["from"]: each["to"] for each in graph["relations"] if each["relationType"] == "member_of"}
totals = {}
for row in sums:
    totals[team[row["owner"]]] = totals.get(team[row["owner"]], 0) + row["cents"]
dict(sorted(totals.items()))
""",
    _by_team,
    looks=[query(f"{_BY_OWNER} LIMIT 1")],
)


def _errors_by_component() -> dict[str, int]:
    found = Counter(re.findall(r" ERROR (\w+):", "".join(LOGS.values())))
    return dict(sorted(found.items()))


COUNT_IN_FILES = Task(
    "read many files and count",
    "How many errors does each component have in the logs?",
    lambda: [[folder("logs")], [read_all("logs", list(LOGS))]],
    f"""
import asyncio, re
listed = await call("filesystem:list_directory", {{"path": "{FILES}/logs"}})
names = re.findall(r"\\[FILE\\] (.+)", listed["content"])
texts = await asyncio.gather(*[call("filesystem:read_text_file", {{"path": "{FILES}/logs/" + n}}) for n in names])
found = {{}}
for text in texts:
    for component in re.findall(r" ERROR ([a-z]+):", text["content"]):
        found[component] = found.get(component, 0) + 1
dict(sorted(found.items()))
""",
    _errors_by_component,
    looks=[folder("logs"), ("filesystem:read_text_file", {"path": f"{FILES}/logs/2026-03-01.log", "head": 5})],
)


def _long_sessions() -> list[int]:
    kinds: dict[int, list[str]] = {}
    for event in EVENTS:
        kinds.setdefault(event["session"], []).append(event["kind"])
    return sorted(session for session, own in kinds.items() if "buy" in own and own[0] == "open")


PAGE_THROUGH = Task(
    "page through a list",
    "Which sessions begin with `open` and have a `buy`? Read 50 events at a time.",
    lambda: [
        [query(f"SELECT session, kind FROM events ORDER BY id LIMIT 50 OFFSET {offset}")]
        for offset in range(0, 300, 50)
    ],
    """
kinds, offset = {}, 0
while True:
    sql = f"SELECT session, kind FROM events ORDER BY id LIMIT 50 OFFSET {offset}"
    page = await call("sqlite:read_query", {"query": sql})
    rows = eval(page) if isinstance(page, str) else page
    if not rows:
        break
    for row in rows:
        kinds.setdefault(row["session"], []).append(row["kind"])
    offset += 50
sorted(s for s, own in kinds.items() if "buy" in own and own[0] == "open")
""",
    _long_sessions,
    looks=[query("SELECT session, kind FROM events ORDER BY id LIMIT 2")],
)


def _by_currency() -> dict[str, int]:
    totals = Counter[str]()
    for invoice in INVOICES:
        totals[invoice["currency"]] += invoice["cents"]
    return dict(sorted(totals.items()))


_INVOICE_FILES = [f"{invoice['invoice']}.json" for invoice in INVOICES]

SUM_FILES = Task(
    "sum the invoices in files",
    "What is the sum of all invoices in each currency?",
    lambda: [[folder("invoices")], [read_all("invoices", _INVOICE_FILES)]],
    f"""
import asyncio, json, re
listed = await call("filesystem:list_directory", {{"path": "{FILES}/invoices"}})
names = re.findall(r"\\[FILE\\] (.+)", listed["content"])
texts = await asyncio.gather(*[call("filesystem:read_text_file", {{"path": "{FILES}/invoices/" + n}}) for n in names])
totals = {{}}
for text in texts:
    invoice = json.loads(text["content"])
    totals[invoice["currency"]] = totals.get(invoice["currency"], 0) + invoice["cents"]
dict(sorted(totals.items()))
""",
    _by_currency,
    looks=[folder("invoices"), read("invoices/INV-001.json")],
)


def _renamed(name: str) -> str:
    return name.lower().replace(" ", "-")


RENAME_FILES = Task(
    "rename many files",
    "Rename the pictures: lower case, and a hyphen for each blank.",
    lambda: [
        [folder("pictures")],
        [
            (
                "filesystem:move_file",
                {"source": f"{FILES}/pictures/{name}", "destination": f"{FILES}/pictures/{_renamed(name)}"},
            )
            for name in PICTURES
        ],
    ],
    f"""
import re
folder = "{FILES}/pictures/"
listed = await call("filesystem:list_directory", {{"path": folder}})
names = re.findall(r"\\[FILE\\] (.+)", listed["content"])
for name in names:
    new = name.lower().replace(" ", "-")
    await call("filesystem:move_file", {{"source": folder + name, "destination": folder + new}})
len(names)
""",
    lambda: len(PICTURES),
    looks=[folder("pictures")],
)


def _german() -> list[dict[str, Any]]:
    return [customer for customer in CUSTOMERS if customer["country"] in ("DE", "FR")]


def _as_entity(customer: Mapping[str, Any]) -> dict[str, Any]:
    facts = [f"country {customer['country']}", f"owner {customer['owner']}", f"email {customer['email']}"]
    return {"name": customer["name"], "entityType": "customer", "observations": facts}


COPY_ROWS = Task(
    "copy rows into a graph",
    "Add the customers of Germany and France to the graph, with country, owner and email.",
    lambda: [
        [query("SELECT * FROM customers WHERE country IN ('DE', 'FR')")],
        [("memory:create_entities", {"entities": list(map(_as_entity, _german()))})],
    ],
    """
rows = eval(await call("sqlite:read_query", {"query": "SELECT * FROM customers WHERE country IN ('DE', 'FR')"}))
entities = [
    {"name": row["name"], "entityType": "customer",
     "observations": ["country " + row["country"], "owner " + row["owner"], "email " + row["email"]]}
    for row in rows
]
await call("memory:create_entities", {"entities": entities})
len(entities)
""",
    lambda: len(_german()),
    looks=[query("SELECT * FROM customers LIMIT 1")],
)


def _open_offices() -> list[str]:
    return [office["city"] for office in OFFICES if 9 <= local_hour("09:30", office["zone"]) < 17]


def _convert(clock: str, zone: str) -> Call:
    return "time:convert_time", {"source_timezone": "UTC", "time": clock, "target_timezone": zone}


OFFICE_HOURS = Task(
    "convert a time for each row",
    "In which offices is it between 9 and 17 o'clock at 09:30 UTC?",
    lambda: [[query("SELECT * FROM offices")], [_convert("09:30", office["zone"]) for office in OFFICES]],
    """
import asyncio
offices = eval(await call("sqlite:read_query", {"query": "SELECT * FROM offices"}))
times = await asyncio.gather(*[
    call("time:convert_time", {"source_timezone": "UTC", "time": "09:30", "target_timezone": office["zone"]})
    for office in offices
])
hours = [int(each["target"]["datetime"][11:13]) for each in times]
[office["city"] for office, hour in zip(offices, hours) if 9 <= hour < 17]
""",
    _open_offices,
    looks=[query("SELECT * FROM offices LIMIT 1"), _convert("09:30", "Europe/Berlin")],
)


def _log_call(**more: Any) -> Call:
    return "git:git_log", {"repo_path": REPOSITORY, **more}


def _show(revision: str) -> Call:
    return "git:git_show", {"repo_path": REPOSITORY, "revision": revision}


def _billing_by_author() -> dict[str, int]:
    return dict(sorted(Counter(each["author"] for each in COMMITS if each["file"] == "billing.py").items()))


COMMITS_OF_A_FILE = Task(
    "find the commits of a file",
    "How many commits of each author touch billing.py?",
    lambda: [[_log_call(max_count=100)], [_show(name) for name in hashes(DIRECTORY)]],
    f"""
import asyncio, re
log = await call("git:git_log", {{"repo_path": "{REPOSITORY}", "max_count": 100}})
names = re.findall(r"Commit: ([0-9a-f]+)", log)
shown = await asyncio.gather(*[call("git:git_show", {{"repo_path": "{REPOSITORY}", "revision": n}}) for n in names])
found = {{}}
for text in shown:
    if "b/billing.py" in text:
        author = re.search(r"Author: ([A-Za-z]+)", text).group(1)
        found[author] = found.get(author, 0) + 1
dict(sorted(found.items()))
""",
    _billing_by_author,
    looks=[_log_call(max_count=1), _show("HEAD")],
)


def _last_of_branches() -> dict[str, str]:
    newest_first = COMMITS[::-1]
    return {branch: newest_first[index + 1]["message"] for index, branch in enumerate(BRANCHES)}


BRANCH_HEADS = Task(
    "ask the same of each branch",
    "What is the last commit message of each branch but main?",
    lambda: [
        [("git:git_branch", {"repo_path": REPOSITORY, "branch_type": "local"})],
        [_show(branch) for branch in BRANCHES],
    ],
    f"""
branches = await call("git:git_branch", {{"repo_path": "{REPOSITORY}", "branch_type": "local"}})
last = {{}}
for branch in branches.replace("*", " ").split():
    if branch != "main":
        text = await call("git:git_show", {{"repo_path": "{REPOSITORY}", "revision": branch}})
        last[branch] = text.split("\\n\\n")[1].strip()
last
""",
    _last_of_branches,
    looks=[("git:git_branch", {"repo_path": REPOSITORY, "branch_type": "local"}), _show("HEAD")],
)


def _untitled() -> list[str]:
    return [name for name, text in NOTES.items() if not text.startswith("# ")]


def _title(name: str) -> str:
    return f"# Note {int(name[5:7])}\n\n"


ADD_TITLES = Task(
    "repair the files that need it",
    "Give each note without a title one, such as `# Note 7`.",
    lambda: [
        [folder("notes")],
        [read_all("notes", list(NOTES))],
        [
            ("filesystem:write_file", {"path": f"{FILES}/notes/{name}", "content": _title(name) + NOTES[name]})
            for name in _untitled()
        ],
    ],
    f"""
import re
folder = "{FILES}/notes/"
listed = await call("filesystem:list_directory", {{"path": folder}})
changed = []
for name in re.findall(r"\\[FILE\\] (.+)", listed["content"]):
    text = (await call("filesystem:read_text_file", {{"path": folder + name}}))["content"]
    if not text.startswith("# "):
        number = int(name[5:7])
        await call("filesystem:write_file", {{"path": folder + name, "content": f"# Note {{number}}\\n\\n" + text}})
        changed.append(name)
changed
""",
    _untitled,
    looks=[folder("notes"), ("filesystem:read_text_file", {"path": f"{FILES}/notes/note-01.md", "head": 4})],
)


def _ports() -> dict[str, list[str]]:
    by_port: dict[str, list[str]] = {}
    for name, text in SERVICES.items():
        found = re.search(r"port = (\d+)", text)
        assert found
        by_port.setdefault(found[1], []).append(name.removesuffix(".toml"))
    return {port: names for port, names in by_port.items() if len(names) > 1}


SAME_PORTS = Task(
    "compare many files",
    "Which services have the same port?",
    lambda: [[folder("services")], [read_all("services", list(SERVICES))]],
    f"""
import re
folder = "{FILES}/services/"
listed = await call("filesystem:list_directory", {{"path": folder}})
by_port = {{}}
for name in re.findall(r"\\[FILE\\] (.+)", listed["content"]):
    text = (await call("filesystem:read_text_file", {{"path": folder + name}}))["content"]
    by_port.setdefault(re.search(r"port = ([0-9]+)", text).group(1), []).append(name[:-5])
{{port: names for port, names in by_port.items() if len(names) > 1}}
""",
    _ports,
    looks=[folder("services"), read("services/service-01.toml")],
)


MERGE_DUPLICATES = Task(
    "delete duplicates in a graph",
    "Delete the people whose names differ from another one only in case, if they were imported twice.",
    lambda: [[("memory:read_graph", {})], [("memory:delete_entities", {"entityNames": list(DUPLICATES)})]],
    """
graph = await call("memory:read_graph", {})
twice = [e["name"] for e in graph["entities"] if "imported twice" in e["observations"]]
names = [e["name"] for e in graph["entities"]]
doubles = [n for n in twice if len([other for other in names if other.lower() == n.lower()]) > 1]
await call("memory:delete_entities", {"entityNames": doubles})
doubles
""",
    lambda: list(DUPLICATES),
)


def _errors_by_day() -> dict[str, int]:
    return {name.removesuffix(".log"): text.count(" ERROR ") for name, text in LOGS.items() if " ERROR " in text}


def _insert_findings() -> str:
    rows = ", ".join(f"('{day}', {errors})" for day, errors in _errors_by_day().items())
    return f"INSERT INTO findings VALUES {rows}"


STORE_FINDINGS = Task(
    "store what files say in a database",
    "Store the number of errors of each day in the table `findings`, for days with errors.",
    lambda: [[folder("logs")], [read_all("logs", list(LOGS))], [write(_insert_findings())]],
    f"""
import asyncio, re
folder = "{FILES}/logs/"
listed = await call("filesystem:list_directory", {{"path": folder}})
names = re.findall(r"\\[FILE\\] (.+)", listed["content"])
texts = await asyncio.gather(*[call("filesystem:read_text_file", {{"path": folder + name}}) for name in names])
days = [(name[:10], text["content"].count(" ERROR ")) for name, text in zip(names, texts)]
rows = ", ".join(f"('{{day}}', {{errors}})" for day, errors in days if errors)
await call("sqlite:write_query", {{"query": "INSERT INTO findings VALUES " + rows}})
len([day for day in days if day[1]])
""",
    lambda: len(_errors_by_day()),
    looks=[folder("logs"), ("filesystem:read_text_file", {"path": f"{FILES}/logs/2026-03-01.log", "head": 5})],
)

_TABLES = ("customers", "orders", "events", "offices", "findings", "totals")

COLUMNS = Task(
    "look into each table",
    "Which tables have a column `customer_id`?",
    lambda: [[("sqlite:list_tables", {})], [("sqlite:describe_table", {"table_name": table}) for table in _TABLES]],
    """
found = []
for table in eval(await call("sqlite:list_tables", {})):
    columns = eval(await call("sqlite:describe_table", {"table_name": table["name"]}))
    if any(column["name"] == "customer_id" for column in columns):
        found.append(table["name"])
found
""",
    lambda: ["orders", "totals"],
    looks=[("sqlite:list_tables", {}), ("sqlite:describe_table", {"table_name": "orders"})],
)


def _mismatches() -> list[str]:
    return [each["invoice"] for each in INVOICES if each["cents"] != ORDERS[each["order"] - 1]["cents"]]


COMPARE_SERVERS = Task(
    "compare files with a database",
    "Which invoices have another amount than their order?",
    lambda: [
        [folder("invoices")],
        [read_all("invoices", _INVOICE_FILES)],
        [query(f"SELECT id, cents FROM orders WHERE id IN ({', '.join(str(each['order']) for each in INVOICES)})")],
    ],
    f"""
import asyncio, json, re
folder = "{FILES}/invoices/"
listed = await call("filesystem:list_directory", {{"path": folder}})
names = re.findall(r"\\[FILE\\] (.+)", listed["content"])
texts = await asyncio.gather(*[call("filesystem:read_text_file", {{"path": folder + name}}) for name in names])
invoices = [json.loads(text["content"]) for text in texts]
rows = eval(await call("sqlite:read_query", {{"query": "SELECT id, cents FROM orders"}}))
cents = {{row["id"]: row["cents"] for row in rows}}
[each["invoice"] for each in invoices if each["cents"] != cents[each["order"]]]
""",
    _mismatches,
    looks=[folder("invoices"), read("invoices/INV-001.json"), query("SELECT id, cents FROM orders LIMIT 1")],
)


def _owner(text: str) -> str:
    found = re.search(r"owner: (\w+)", text)
    assert found
    return found[1]


def _phones_of_owners() -> dict[str, str]:
    owners = sorted({_owner(NOTES[name]) for name in NOTES if name < "note-10"})
    return {owner: f"555-01{PEOPLE.index(owner):02}" for owner in owners}


FIND_PEOPLE = Task(
    "look up what files name",
    "What are the telephone numbers of the owners of the notes 1 to 9?",
    lambda: [
        [("filesystem:search_files", {"path": FILES, "pattern": "**/note-0*.md"})],
        [read_all("notes", [name for name in NOTES if name < "note-10"])],
        [("memory:open_nodes", {"names": list(_phones_of_owners())})],
    ],
    f"""
import re
found = await call("filesystem:search_files", {{"path": "{FILES}", "pattern": "**/note-0*.md"}})
texts = await call("filesystem:read_multiple_files", {{"paths": found["content"].splitlines()}})
owners = sorted(set(re.findall(r"owner: ([A-Za-z]+)", texts["content"])))
nodes = await call("memory:open_nodes", {{"names": owners}})
phones = {{}}
for entity in nodes["entities"]:
    for fact in entity["observations"]:
        if fact.startswith("phone "):
            phones[entity["name"]] = fact[6:]
dict(sorted(phones.items()))
""",
    _phones_of_owners,
    looks=[
        ("filesystem:read_text_file", {"path": f"{FILES}/notes/note-01.md", "head": 4}),
        ("memory:open_nodes", {"names": ["Ada"]}),
    ],
)


def _awake() -> list[str]:
    zones = dict(zip(PEOPLE, ZONES, strict=True))
    return [name for name in PEOPLE if TEAMS[name] == "team-1" and 7 <= local_hour("15:00", zones[name]) < 23]


def _zones_of_the_team() -> list[str]:
    return [zone for name, zone in zip(PEOPLE, ZONES, strict=True) if TEAMS[name] == "team-1"]


WHO_IS_AWAKE = Task(
    "ask a second server about each result",
    "Who of team-1 is awake (7 to 23 o'clock) at 15:00 UTC?",
    lambda: [
        [("memory:open_nodes", {"names": ["team-1"]})],
        [("memory:open_nodes", {"names": [name for name in PEOPLE if TEAMS[name] == "team-1"]})],
        [_convert("15:00", zone) for zone in _zones_of_the_team()],
    ],
    """
team = await call("memory:open_nodes", {"names": ["team-1"]})
members = [each["from"] for each in team["relations"] if each["to"] == "team-1"]
people = await call("memory:open_nodes", {"names": members})
awake = []
for person in people["entities"]:
    zone = [fact.split()[-1] for fact in person["observations"] if "time zone" in fact][0]
    times = {"source_timezone": "UTC", "time": "15:00", "target_timezone": zone}
    converted = await call("time:convert_time", times)
    if 7 <= int(converted["target"]["datetime"][11:13]) < 23:
        awake.append(person["name"])
awake
""",
    _awake,
    looks=[("memory:open_nodes", {"names": ["Ada"]}), _convert("15:00", "Europe/Berlin")],
)


def _totals() -> dict[int, int]:
    totals = Counter[int]()
    for order in ORDERS:
        if not order["paid"]:
            totals[order["customer_id"]] += order["cents"]
    return dict(sorted(totals.items()))


def _report() -> str:
    names = {customer["id"]: customer["name"] for customer in CUSTOMERS}
    return "".join(f"- {names[number]}: {cents} cents\n" for number, cents in _totals().items())


_UNPAID = (
    "SELECT name, SUM(cents) AS cents FROM orders JOIN customers ON customers.id = customer_id WHERE paid = 0 "
    "GROUP BY customer_id ORDER BY customer_id"
)

WRITE_A_REPORT = Task(
    "write a report from a query",
    "Write the unpaid sum of each customer into out/unpaid.md, a line each.",
    lambda: [
        [query(_UNPAID)],
        [("filesystem:write_file", {"path": f"{FILES}/out/unpaid.md", "content": _report()})],
    ],
    f"""
sql = (
    "SELECT name, SUM(cents) AS cents FROM orders JOIN customers ON customers.id = customer_id WHERE paid = 0 "
    "GROUP BY customer_id ORDER BY customer_id"
)
rows = eval(await call("sqlite:read_query", {{"query": sql}}))
text = "".join(f"- {{row['name']}}: {{row['cents']}} cents\\n" for row in rows)
await call("filesystem:write_file", {{"path": "{FILES}/out/unpaid.md", "content": text}})
len(rows)
""",
    lambda: len(_totals()),
    looks=[query(f"{_UNPAID} LIMIT 1")],
)


_SLIDES = 5


def _slide(index: int) -> dict[str, Any]:
    office = OFFICES[index]
    return {"title": office["city"], "points": [f"Time zone {office['zone']}", f"Office number {index + 1}"]}


def _slide_rounds() -> Rounds:
    rounds: list[list[Call]] = [
        [query(f"SELECT * FROM offices LIMIT {_SLIDES}")],
        [("powerpoint:create_presentation", {"id": "offices"})],
    ]
    for index in range(_SLIDES):
        slide = _slide(index)
        added: dict[str, Any] = {"layout_index": 1, "title": slide["title"], "presentation_id": "offices"}
        points: dict[str, Any] = {
            "slide_index": index,
            "placeholder_idx": 1,
            "bullet_points": slide["points"],
            "presentation_id": "offices",
        }
        # the points need the index of the slide
        rounds.append([("powerpoint:add_slide", added)])
        rounds.append([("powerpoint:add_bullet_points", points)])
    return [*rounds, [("powerpoint:extract_presentation_text", {"presentation_id": "offices"})]]


BUILD_SLIDES = Task(
    "build a presentation from a query",
    "Make a presentation with a slide for each of the first five offices, and check its text.",
    _slide_rounds,
    """
offices = eval(await call("sqlite:read_query", {"query": "SELECT * FROM offices LIMIT 5"}))
await call("powerpoint:create_presentation", {"id": "offices"})
for number, office in enumerate(offices):
    new = {"layout_index": 1, "title": office["city"], "presentation_id": "offices"}
    slide = await call("powerpoint:add_slide", new)
    points = ["Time zone " + office["zone"], f"Office number {number + 1}"]
    await call("powerpoint:add_bullet_points", {
        "slide_index": slide["result"]["slide_index"], "placeholder_idx": 1, "bullet_points": points,
        "presentation_id": "offices",
    })
text = await call("powerpoint:extract_presentation_text", {"presentation_id": "offices"})
[slide["text_content"]["slide_title"] for slide in text["result"]["slides_text"]]
""",
    lambda: [OFFICES[index]["city"] for index in range(_SLIDES)],
    looks=[query("SELECT * FROM offices LIMIT 1")],
)

TASKS: Sequence[Task] = (
    FILTER_ROWS, JOIN_SERVERS, COUNT_IN_FILES, PAGE_THROUGH, SUM_FILES, RENAME_FILES, COPY_ROWS, OFFICE_HOURS,
    COMMITS_OF_A_FILE, BRANCH_HEADS, ADD_TITLES, SAME_PORTS, MERGE_DUPLICATES, STORE_FINDINGS, COLUMNS,
    COMPARE_SERVERS, FIND_PEOPLE, WHO_IS_AWAKE, WRITE_A_REPORT, BUILD_SLIDES,
)  # fmt: skip


def same(answer: Any, expected: Any) -> bool:
    """Return whether two answers are equal as JSON."""
    return bool(json.loads(json.dumps(answer)) == json.loads(json.dumps(expected)))
