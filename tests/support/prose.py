"""Count marked words and long sentences in comments, docstrings, messages and Markdown.

`python -m tests.support.prose PATH...` prints each of them with file and line, then the rate per 1,000 words.
A directory stands for all Python and Markdown files below it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKED_WORDS = ROOT / "tests" / "docs" / "marked_words.txt"
LONGEST_SENTENCE = 25

_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE_SPAN = re.compile(r"(`+)[^`]+\1")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HTML_OR_LINK_TARGET = re.compile(r"<!--.*?-->|<[^>\n]+>|(?<=\])\([^)]*\)|https?://\S+", re.DOTALL)
_DIRECTIVE = re.compile(r"^(noqa|type: ignore|pyright:|fmt:|pragma|!)")
_NEW_PARAGRAPH = re.compile(r"\n(?=\s*\n|\s*[-*|#>]|\s*\d+\.\s|\s*\w+:\s)|\|")
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+")


@dataclass(frozen=True, slots=True)
class Text:
    """A comment, docstring, message or document, and the line where it starts."""

    path: Path
    line: int
    body: str

    def line_at(self, offset: int) -> int:
        """Return the line of the file that holds this character of the body."""
        return self.line + self.body.count("\n", 0, offset)


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked word, or the beginning of a long sentence, and where it is."""

    path: Path
    line: int
    text: str


def texts(paths: Iterable[Path]) -> list[Text]:
    """Return the prose of these files, and of the Python and Markdown files below these directories."""
    files = [file for path in paths for file in _files(path)]
    return [text for file in files for text in (_of_markdown(file) if file.suffix == ".md" else _of_python(file))]


def words(prose: Iterable[Text]) -> int:
    """Return the number of words; a code span counts as one."""
    return sum(len(_WORD.findall(text.body)) for text in prose)


def marks(prose: Iterable[Text]) -> list[Mark]:
    """Return every marked word; of two entries that overlap, the longer one counts."""
    return [
        Mark(text.path, text.line_at(match.start()), re.sub(r"\s+", " ", match.group()))
        for text in prose
        for match in _marked().finditer(text.body)
    ]


def per_thousand(prose: Sequence[Text]) -> float:
    """Return the marked words per 1,000 words; 0.0 for no words."""
    return 1000 * len(marks(prose)) / max(words(prose), 1)


def long_sentences(prose: Iterable[Text]) -> Iterator[Mark]:
    """Yield the sentences of more than 25 words; a semicolon, a colon and a table cell end one too."""
    for text in prose:
        for start, sentence in _sentences(text.body):
            count = len(_WORD.findall(sentence))
            if count > LONGEST_SENTENCE:
                beginning = " ".join(sentence.split()[:8])
                yield Mark(text.path, text.line_at(start), f"{count} words: {beginning} ...")


@cache
def _marked() -> re.Pattern[str]:
    lines = MARKED_WORDS.read_text(encoding="utf-8").splitlines()
    entries = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    alternatives = "|".join(_pattern(entry) for entry in sorted(entries, key=len, reverse=True))
    return re.compile(rf"(?<![\w'-])(?:{alternatives})(?![\w'-])")


def _pattern(entry: str) -> str:
    phrase = re.escape(entry).replace(r"\ ", r"\s+")
    return phrase if entry[0].isupper() else f"(?i:{phrase})"


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in (".py", ".md"))


def _of_markdown(path: Path) -> Iterator[Text]:
    body = _FENCE.sub(_blank, path.read_text(encoding="utf-8"))
    yield Text(path, 1, _HTML_OR_LINK_TARGET.sub(_blank, _plain(body)))


def _of_python(path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        for line, body in [*_docstrings(node), *_messages(node)]:
            yield Text(path, line, _plain(body))
    for line, body in _comments(source):
        yield Text(path, line, _plain(body))


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield a string that is a statement by itself, such as one below a field."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text), lineno=line)):
            yield line, text
        case _:
            pass


def _messages(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts that an error is raised with; each value in an f-string becomes one letter."""
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
        return
    for argument in node.exc.args:
        match argument:
            case ast.Constant(value=str(text), lineno=line):
                yield line, text
            case ast.JoinedStr(values=values, lineno=line):
                yield line, "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in values)
            case _:
                pass


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment without its sign; comments on lines that follow each other are one text."""
    block: list[str] = []
    start = 0
    for line, body in _comment_lines(source):
        if block and line != start + len(block):
            yield start, "\n".join(block)
            block = []
        start = start if block else line
        block.append(body)
    if block:
        yield start, "\n".join(block)


def _comment_lines(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            body = token.string.lstrip("# ")
            yield token.start[0], "" if _DIRECTIVE.match(body) else body


def _sentences(body: str) -> Iterator[tuple[int, str]]:
    start = 0
    for paragraph_end in [*(match.end() for match in _NEW_PARAGRAPH.finditer(body)), len(body)]:
        for end in [*(match.end() for match in _SENTENCE_END.finditer(body, start, paragraph_end)), paragraph_end]:
            sentence = body[start:end]
            yield start + len(sentence) - len(sentence.lstrip()), sentence
            start = end


def _plain(body: str) -> str:
    """Return the text with each code span as one word, its line breaks kept."""
    return _CODE_SPAN.sub(lambda match: "x" + "\n" * match.group().count("\n"), body)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def main(paths: Sequence[str]) -> None:
    """Print what should be rewritten in these files, and the rate over all of them."""
    prose = texts(Path(path) for path in paths)
    found = marks(prose)
    for mark in sorted([*found, *long_sentences(prose)], key=lambda mark: (mark.path, mark.line)):
        print(f"{mark.path}:{mark.line}: {mark.text}")  # noqa: T201  # a program prints
    print(f"{len(found)} marked words in {words(prose):,}: {per_thousand(prose):.1f} per 1,000")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
