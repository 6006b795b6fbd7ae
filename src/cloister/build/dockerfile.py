"""Dockerfiles: the text cut into instructions, each with its line, its flags and its documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cloister.build.words import split_words
from cloister.errors import RequestError
from cloister.model import quote

MAXIMUM_BYTES = 2**20
_MAXIMUM_INSTRUCTIONS = 10_000
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.*?)\s*")
_HEREDOC = re.compile(r"(\d*)<<(-?)([^<\s]+)")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(.*))?")
_WITH_DOCUMENTS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class Document:
    """A here-document: what stands between `<<NAME` and a line that is NAME."""

    name: str
    content: str
    # Whether variables in it are replaced: not where its name is quoted.
    is_expanded: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction as written; `text` is what follows the name and the flags."""

    place: str
    name: str
    flags: tuple[tuple[str, str], ...]
    text: str
    documents: tuple[Document, ...]
    escape: str

    def wrong(self, words: str) -> RequestError:
        """Return an error that says where."""
        return RequestError(f"{self.place}: {words}")


def parse_dockerfile(data: bytes, file: str) -> list[Statement]:
    """Cut a Dockerfile into its instructions; `file` is what errors call it."""
    if len(data) > MAXIMUM_BYTES:
        raise RequestError(f"{file} has {len(data)} bytes; the most is {MAXIMUM_BYTES}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{file}:{line}: it is not text in UTF-8") from error
    if "\0" in text:
        raise RequestError(f"{file}: it holds a zero byte and is no Dockerfile")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    found = list(_statements(lines, file, _escape(lines, file)))
    if not found:
        raise RequestError(f"{file} has no instruction; begin with FROM")
    if len(found) > _MAXIMUM_INSTRUCTIONS:
        raise RequestError(
            f"{file} has {len(found)} instructions; the most is {_MAXIMUM_INSTRUCTIONS}"
        )
    return found


def _escape(lines: list[str], file: str) -> str:
    """Read the directives, which are comments before anything else."""
    for number, line in enumerate(lines, 1):
        found = _DIRECTIVE.fullmatch(line)
        if found is None:
            break
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise RequestError(f"{file}:{number}: escape is {quote(found[2])}; write \\ or `")
            return found[2]
    return "\\"


def _statements(lines: list[str], file: str, escape: str) -> Iterator[Statement]:
    # An escape that is itself escaped continues nothing.
    mark = re.escape(escape)
    continued = re.compile(rf"(^|[^{mark}]){mark}[ \t]*$")
    rest = iter(enumerate(lines, 1))
    for number, line in rest:
        if _is_empty(line):
            continue
        parts = []
        last: str | None = line
        while last is not None and (cut := continued.search(last)) is not None:
            parts.append(last[: cut.end(1)])
            last = next((text for _, text in rest if not _is_empty(text)), None)
        whole = "".join((*parts, last or "")).strip()
        if whole:
            yield _statement(whole, f"{file}:{number}", escape, rest)


def _is_empty(line: str) -> bool:
    bare = line.strip()
    return not bare or bare.startswith("#")


def _statement(line: str, place: str, escape: str, rest: Iterator[tuple[int, str]]) -> Statement:
    name, text = _cut(line)
    name = name.upper()
    documents: tuple[Document, ...] = ()
    if name in _WITH_DOCUMENTS and not text.startswith("["):
        documents = tuple(
            _document(found, place, rest)
            for word in split_words(text, escape)
            if (found := _HEREDOC.fullmatch(word)) is not None
        )
    flags = []
    while text.startswith("--"):
        word, text = _cut(text)
        flag = _FLAG.fullmatch(word)
        if flag is None:
            raise RequestError(f"{place}: {quote(word)} is no flag; write --name=value")
        flags.append((flag[1], flag[2] or ""))
    return Statement(place, name, tuple(flags), text, documents, escape)


def _cut(line: str) -> tuple[str, str]:
    """Return the first word, and what follows it."""
    first, *rest = line.split(None, 1)
    return first, rest[0].strip() if rest else ""


def _document(found: re.Match[str], place: str, rest: Iterator[tuple[int, str]]) -> Document:
    name = found[3].replace('"', "").replace("'", "")
    content: list[str] = []
    for _, line in rest:
        bare = line.lstrip("\t") if found[2] else line
        if bare == name:
            is_expanded = name == found[3]
            return Document(name, "".join(f"{each}\n" for each in content), is_expanded)
        content.append(bare)
    raise RequestError(f"{place}: the document {quote(name)} does not end; write {name} on a line")
