"""Count the tokens of texts, of the forms of a tool, and of the fields of a form.

There are two tiktoken encodings, from the bundled vocabularies, and a labelled heuristic. Nothing is ever downloaded:
a vocabulary's SHA-256 is checked before tiktoken sees it.

The wire form of a tool is the JSON of `tools/list`. The model form is what a model API receives, in the shape of a
profile: Toolscale counts `generic`. `anthropic` renames a key, and `openai` wraps each tool; both are for comparison.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
import os
import re
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from weakref import WeakValueDictionary

import structlog

from shared.catalog import ENCODINGS, Encoding, IndexedTool, ToolDefinition, ToolFeatures, object_of
from shared.errors import AssetInvalid, CountFailed
from shared.service.process import return_freed_memory

if TYPE_CHECKING:
    import tiktoken

Counter = Callable[[str], int]
"""Returns the number of tokens of any text; raises CountFailed if tiktoken fails."""

Profile = Literal["generic", "anthropic", "openai"]
PROFILES: tuple[Profile, ...] = ("generic", "anthropic", "openai")

# The profile of all stored counts and of every number that names no other.
PROFILE: Profile = "generic"

Counts = dict[Encoding, int]

# File name (SHA-1 of tiktoken's download address) and SHA-256, as tiktoken pins them.
VOCABULARIES: Mapping[str, tuple[str, str]] = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}

IDLE_S = 30.0
"""Seconds without a text after which a counter of `counters` gives its vocabulary up."""

_WORD = re.compile(r"\S+")
_loading = threading.Lock()
# A vocabulary is freed when its last counter is.
_loaded: WeakValueDictionary[tuple[str, Path], tiktoken.Encoding] = WeakValueDictionary()
_log = structlog.get_logger()


def bundled_vocabularies() -> Path:
    """Return the directory of the vocabularies that ship with Toolscale."""
    return Path(str(importlib.resources.files("shared") / "assets" / "tiktoken"))


def counter(encoding: Encoding, vocabularies: Path | None = None) -> Counter:
    """Return the counter of an encoding, whose vocabulary stays loaded; `heuristic` needs none.

    Raises:
        AssetInvalid: the vocabulary is missing or is not the file that tiktoken expects.
    """
    if encoding == "heuristic":
        return estimate
    return functools.partial(_count, _kept(encoding, vocabularies or bundled_vocabularies()))


def count_all(texts: Iterable[str], counters: Mapping[Encoding, Counter]) -> list[dict[Encoding, int]]:
    """Return for each text its count per encoding; a failed count is absent, never 0.

    A plain loop: for texts of a tool's size tiktoken's batch threads are slower.
    """
    return [_counts(text, counters) for text in texts]


def count_parts(parts: Sequence[str], encoding: Encoding) -> list[int]:
    """Return the tokens of the joined parts by part: a token counts for the part in which it begins.

    The sum is the count of the joined text. `encoding` is one of tiktoken's.

    Raises:
        AssetInvalid: the vocabulary is missing or is not the file that tiktoken expects.
        CountFailed: tiktoken failed.
    """
    vocabulary = _kept(encoding, bundled_vocabularies())
    ends = list(accumulate(len(part.encode("utf-8", "surrogatepass")) for part in parts))
    counts, at = [0] * len(parts), 0
    for token in _tokens(vocabulary, "".join(parts)):
        counts[bisect_right(ends, at)] += 1
        at += len(vocabulary.decode_single_token_bytes(token))
    return counts


def counters(vocabularies: Path | None = None) -> dict[Encoding, Counter]:
    """Return a counter for every encoding of tiktoken; each loads its vocabulary for a text, and frees it when idle.

    A counter with an invalid vocabulary fails each count.
    """
    return {encoding: _LateCounter(encoding, vocabularies) for encoding in ENCODINGS if not is_estimate(encoding)}


def estimate(text: str) -> int:
    """Estimate the tokens of a text from its words' lengths, in characters.

    1 to 3: one token; 4 to 7: a fifth of the length, rounded up; 8 and more: a quarter, rounded up.
    """
    tokens = 0
    for word in _WORD.finditer(text):
        length = len(word.group())
        tokens += 1 if length <= 3 else -(-length // 5) if length <= 7 else -(-length // 4)  # noqa: PLR2004  # as above
    return tokens


def is_estimate(encoding: Encoding) -> bool:
    """Return whether counts in this encoding are estimates and must be labelled so."""
    return encoding == "heuristic"


def json_text(value: object) -> str:
    """Return a JSON value as the shortest text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def model_text(definition: ToolDefinition, profile: Profile = PROFILE) -> str:
    """Return the model form of a tool as compact JSON."""
    fields = definition.for_model()
    if profile == "generic":
        return json_text(fields)
    schema_key = "input_schema" if profile == "anthropic" else "parameters"
    renamed = {schema_key if key == "inputSchema" else key: value for key, value in fields.items()}
    return json_text(renamed if profile == "anthropic" else {"type": "function", "function": renamed})


def estimate_tool(server_id: str, definition: ToolDefinition) -> int:
    """Estimate a tool's tokens from its qualified name, its description and the JSON of its input schema."""
    fields = definition.for_model()
    schema = json_text(fields["inputSchema"]) if "inputSchema" in fields else ""
    return estimate(f"{server_id}:{definition.name} {fields.get('description') or ''} {schema}")


def count_forms(definition: ToolDefinition, counters: Mapping[Encoding, Counter]) -> tuple[Counts, Counts]:
    """Return the counts of the wire and of the model form; an encoding that fails for either is in neither."""
    wire, model = count_all([definition.wire, model_text(definition)], counters)
    counted = wire.keys() & model.keys()
    return (
        {encoding: count for encoding, count in wire.items() if encoding in counted},
        {encoding: count for encoding, count in model.items() if encoding in counted},
    )


def indexed_tool(
    server_id: str,
    definition: ToolDefinition,
    digest: str,
    features: ToolFeatures,
    groups: frozenset[str] = frozenset(),
) -> IndexedTool:
    """Return a server's tool with its counts; the estimate, which reads the server's id, is added here."""
    estimated: Counts = {"heuristic": estimate_tool(server_id, definition)}
    wire: Counts = {**features.token_counts, **estimated}
    model: Counts = {**features.model_counts, **estimated}
    return IndexedTool(server_id, definition, digest, wire, groups, model_counts=model)


class Field(NamedTuple):
    """A field of a definition, or a parameter; `inputSchema` is the schema without its parameters."""

    name: str
    is_parameter: bool = False

    @property
    def key(self) -> str:
        """Return the field's key in JSON: its name, `parameter:NAME`, or `rest`."""
        return f"parameter:{self.name}" if self.is_parameter else self.name or "rest"


NAME, DESCRIPTION, SCHEMA = Field("name"), Field("description"), Field("inputSchema")
REST = Field("")
"""The braces and commas around the fields."""


def tokens_by_field(tool: Mapping[str, Any], encoding: Encoding) -> Mapping[Field, int]:
    """Return the tokens of each field and of the REST, in the order of the fields; `tool` is one of the forms.

    A token counts for the field in which it begins, so the sum is exactly the count of the form's JSON.

    Raises:
        AssetInvalid: the vocabulary is missing or is not the file that tiktoken expects.
        CountFailed: tiktoken failed.
    """
    pieces = list(_pieces(tool))
    tokens: defaultdict[Field, int] = defaultdict(int)
    for (field, _), count in zip(pieces, count_parts([text for _, text in pieces], encoding), strict=True):
        tokens[field] += count
    return tokens


def parameters_of(definition: ToolDefinition) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name; a schema may be a value of any type."""
    return object_of(object_of(definition.for_model().get("inputSchema")).get("properties"))


def _counts(text: str, available: Mapping[Encoding, Counter]) -> dict[Encoding, int]:
    counts: dict[Encoding, int] = {}
    for encoding, count in available.items():
        try:
            counts[encoding] = count(text)
        except CountFailed as error:
            _log.warning("count_failed", encoding=encoding, reason=str(error))
    return counts


def _count(encoding: tiktoken.Encoding, text: str) -> int:
    return len(_tokens(encoding, text))


def _tokens(encoding: tiktoken.Encoding, text: str) -> list[int]:
    # encode() raises on text such as <|endoftext|>, which is plain text in a description
    try:
        return encoding.encode_ordinary(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of tiktoken's Rust side is no Exception
        raise CountFailed(f"{encoding.name}: {error}") from error


class _LateCounter:
    """A counter that has its vocabulary from a text until IDLE_S without one: most workers see no changed tools."""

    def __init__(self, encoding: Encoding, vocabularies: Path | None) -> None:
        self._open = functools.partial(_counter_or_failing, encoding, vocabularies)
        self._lock = threading.Lock()
        self._counter: Counter | None = None
        self._used_at_s = 0.0

    def __call__(self, text: str) -> int:
        """Return the number of tokens of the text."""
        with self._lock:
            self._used_at_s = time.monotonic()
            if self._counter is None:
                self._counter = self._open()
                self._wait(IDLE_S)
            count = self._counter
        return count(text)

    def _wait(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._free_if_idle)
        timer.daemon = True
        timer.start()

    def _free_if_idle(self) -> None:
        with self._lock:
            left_s = self._used_at_s + IDLE_S - time.monotonic()
            if left_s > 0:
                self._wait(left_s)
                return
            self._counter = None
        return_freed_memory()


def _counter_or_failing(encoding: Encoding, vocabularies: Path | None) -> Counter:
    try:
        return functools.partial(_count, _load(encoding, vocabularies or bundled_vocabularies()))
    except AssetInvalid as error:
        reason = str(error)
        _log.error("vocabulary_unusable", encoding=encoding, reason=reason)

        def fail(_text: str) -> int:
            raise CountFailed(reason)

        return fail


@functools.lru_cache(maxsize=8)
def _kept(encoding: Encoding, directory: Path) -> tiktoken.Encoding:
    return _load(encoding, directory)


def _load(name: str, directory: Path) -> tiktoken.Encoding:
    """Return the vocabulary, the same object as long as anything holds it."""
    with _loading:
        encoding = _loaded.get((name, directory))
        if encoding is None:
            encoding = _loaded[name, directory] = _read(name, directory)
        return encoding


def _read(name: str, directory: Path) -> tiktoken.Encoding:
    import tiktoken  # noqa: PLC0415  # 45 to 70 MB a vocabulary: only for a process that counts
    import tiktoken.registry  # noqa: PLC0415

    check_vocabulary(name, directory)
    # tiktoken reads its cache directory from the environment only
    os.environ["TIKTOKEN_CACHE_DIR"] = str(directory)
    encoding = tiktoken.get_encoding(name)
    tiktoken.registry.ENCODINGS.pop(name, None)  # it would hold the vocabulary for ever
    # 15 to 30 MB that only pickling reads: the compiled side has its own copy
    getattr(encoding, "_mergeable_ranks", {}).clear()
    return_freed_memory()
    return encoding


def check_vocabulary(name: str, directory: Path) -> None:
    """Check the file of a vocabulary, before tiktoken would delete a wrong one and download another.

    Raises:
        AssetInvalid: the file is missing or is not the one that tiktoken expects.
    """
    file_name, expected = VOCABULARIES[name]
    path = directory / file_name
    if not path.is_file():
        raise AssetInvalid(f"vocabulary {name}: expected the file {path}, found none")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise AssetInvalid(f"vocabulary {name}: expected SHA-256 {expected} for {path}, found {found}")


def _pieces(tool: Mapping[str, Any]) -> Iterator[tuple[Field, str]]:
    """Yield the compact JSON of a tool in pieces, each with its field."""
    yield REST, "{"
    for number, (key, value) in enumerate(tool.items()):
        yield REST, "," if number else ""
        if key == SCHEMA.name and isinstance(value, dict):
            yield from _schema_pieces(cast("dict[str, Any]", value))
        else:
            yield Field(key), _member(key, value)
    yield REST, "}"


def _schema_pieces(schema: Mapping[str, Any]) -> Iterator[tuple[Field, str]]:
    yield SCHEMA, f'"{SCHEMA.name}":{{'
    for number, (key, value) in enumerate(schema.items()):
        yield SCHEMA, "," if number else ""
        if key == "properties" and isinstance(value, dict):
            yield SCHEMA, '"properties":{'
            for at, (name, parameter) in enumerate(cast("dict[str, Any]", value).items()):
                yield SCHEMA, "," if at else ""
                yield Field(name, is_parameter=True), _member(name, parameter)
            yield SCHEMA, "}"
        else:
            yield SCHEMA, _member(key, value)
    yield SCHEMA, "}"


def _member(key: str, value: object) -> str:
    return f"{json_text(key)}:{json_text(value)}"
