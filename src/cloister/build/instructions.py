"""What each instruction of a Dockerfile asks for; what is not done here is refused or said."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from cloister.build.dockerfile import Document, Statement
from cloister.build.words import split_words
from cloister.model import quote

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
_MODE = re.compile(r"[0-7]{3,4}")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class From:
    """A stage begins, on an image, on an earlier stage, or on nothing ("scratch")."""

    at: Statement
    image: str
    stage: str | None
    notes: Words


@dataclass(frozen=True, slots=True)
class Run:
    """A program is run: a line for the shell, or an argv."""

    at: Statement
    command: str | Words


@dataclass(frozen=True, slots=True)
class Copy:
    """Files are brought in, from the context or from another stage or image."""

    at: Statement
    sources: Words
    documents: tuple[Document, ...]
    target: str
    origin: str | None
    chown: str | None
    mode: int | None
    # ADD takes archives of the context apart.
    unpack: bool


@dataclass(frozen=True, slots=True)
class Arg:
    """Variables that whoever builds may set; a value is None where there is no default."""

    at: Statement
    variables: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """ENV or LABEL: names and values, both still with their variables."""

    at: Statement
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """WORKDIR or USER: one word."""

    at: Statement
    value: str


@dataclass(frozen=True, slots=True)
class Program:
    """ENTRYPOINT, CMD or SHELL: a line for the shell, or an argv."""

    at: Statement
    command: str | Words


@dataclass(frozen=True, slots=True)
class Noted:
    """An instruction that changes nothing here, and why."""

    at: Statement
    words: str


Instruction = From | Run | Copy | Arg | Pairs | Setting | Program | Noted


def parse_instructions(statements: list[Statement]) -> list[Instruction]:
    """Read all of them; the first that cannot be followed is an error."""
    return [_parse(statement) for statement in statements]


def _parse(at: Statement) -> Instruction:
    parse = _PARSERS.get(at.name)
    if parse is None:
        near = difflib.get_close_matches(at.name[:32], _PARSERS, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise at.wrong(f"no instruction is called {quote(at.name)}{meant}")
    if not at.text and not at.documents:
        raise at.wrong(f"{at.name} says nothing; write what it is for behind it")
    return parse(at)


def _from(at: Statement) -> From:
    flags = _flags(at, "platform")
    words = at.text.split()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise at.wrong(f"FROM is {quote(at.text)}; write FROM image, or FROM image AS stage")
    stage = words[2].lower() if len(words) == 3 else None
    if stage is not None and (_STAGE.fullmatch(stage) is None or stage == "scratch"):
        raise at.wrong(
            f"a stage is called {quote(stage)}; write a letter, then letters, digits, _ . -"
        )
    notes = ("--platform is ignored: images here are for this machine",) if flags else ()
    return From(at, words[0], stage, notes)


def _run(at: Statement) -> Run:
    flags = _flags(at, "network", "mount", "security")
    for name in ("mount", "security"):
        if name in flags:
            raise at.wrong(
                f"RUN --{name} is not supported; a step sees its image and what COPY brought"
            )
    if flags.get("network", "none") not in ("none", "default"):
        raise at.wrong(
            f"RUN --network={flags['network']} is not supported; the policy of the build decides"
        )
    argv = _argv(at)
    return Run(at, _script(at) if argv is None else argv)


def _script(at: Statement) -> str:
    """Return the line with its documents, as a shell reads them."""
    lines = [at.text]
    for document in at.documents:
        lines.append(f"{document.content}{document.name}")
    # Only documents: they are the script themselves.
    words = split_words(at.text, at.escape)
    if at.documents and len(words) == len(at.documents):
        return "".join(document.content for document in at.documents)
    return "\n".join(lines)


def _copy(at: Statement) -> Copy:
    known = ("from", "chown", "chmod", "link") if at.name == "COPY" else ("chown", "chmod", "link")
    flags = _flags(at, *known)
    words = _argv(at)
    if words is None:
        words = tuple(split_words(at.text, at.escape))
    if len(words) < 2:
        raise at.wrong(f"{at.name} needs something to copy and where to; write {at.name} src dst")
    *sources, target = words
    plain = tuple(word for word in sources if not (at.documents and "<<" in word))
    for source in plain:
        if at.name == "ADD" and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|git@", source):
            raise at.wrong(
                f"ADD does not fetch {quote(source)}: builds reach no network from the host; "
                "put the file into the context"
            )
    mode = flags.get("chmod")
    if mode is not None and _MODE.fullmatch(mode) is None:
        raise at.wrong(f"--chmod is {quote(mode)}; write it in octal, such as 755")
    return Copy(
        at,
        plain,
        at.documents,
        target,
        flags.get("from"),
        flags.get("chown"),
        None if mode is None else int(mode, 8),
        at.name == "ADD",
    )


def _arg(at: Statement) -> Arg:
    _flags(at)
    variables = []
    for word in split_words(at.text, at.escape):
        name, equals, value = word.partition("=")
        variables.append((_variable(at, name), value if equals else None))
    return Arg(at, tuple(variables))


def _variable(at: Statement, name: str) -> str:
    if _VARIABLE.fullmatch(name) is None:
        raise at.wrong(f"{at.name} has the name {quote(name)}; write letters, digits and _")
    return name


def _pairs(at: Statement) -> Pairs:
    _flags(at)
    words = split_words(at.text, at.escape)
    if "=" not in words[0]:
        # The old form: one name, and everything behind it is the value.
        name, *value = at.text.split(None, 1)
        if not value:
            raise at.wrong(f"{at.name} {quote(name)} has no value; write NAME=value")
        return Pairs(at, ((name, value[0]),))
    pairs = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise at.wrong(f"{at.name} has {quote(word)}; write NAME=value")
        pairs.append((name, text))
    if at.name == "ENV":
        for name, _ in pairs:
            _variable(at, name)
    return Pairs(at, tuple(pairs))


def _setting(at: Statement) -> Setting:
    _flags(at)
    return Setting(at, at.text)


def _program(at: Statement) -> Program:
    _flags(at)
    argv = _argv(at)
    if at.name == "SHELL" and not argv:
        raise at.wrong('SHELL takes a list, such as SHELL ["/bin/bash", "-c"]')
    return Program(at, at.text if argv is None else argv)


def _argv(at: Statement) -> Words | None:
    """Return a JSON list of words; anything else is a line for the shell."""
    if not at.text.startswith("["):
        return None
    try:
        words = json.loads(at.text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise at.wrong(f"{at.name} has a list of something other than texts in double quotes")
    return tuple(words)


def _flags(at: Statement, *known: str) -> dict[str, str]:
    flags = dict(at.flags)
    for name in flags:
        if name not in known:
            near = difflib.get_close_matches(name[:32], known, 1)
            meant = f"; did you mean --{near[0]}?" if near else ""
            raise at.wrong(f"{at.name} --{name} is not supported{meant}")
    return flags


def _noted(words: str) -> Callable[[Statement], Instruction]:
    return lambda at: Noted(at, words)


def _refused(words: str) -> Callable[[Statement], Instruction]:
    def refuse(at: Statement) -> Instruction:
        raise at.wrong(f"{at.name} is not supported: {words}")

    return refuse


_PARSERS: dict[str, Callable[[Statement], Instruction]] = {
    "FROM": _from,
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "ARG": _arg,
    "ENV": _pairs,
    "LABEL": _pairs,
    "WORKDIR": _setting,
    "USER": _setting,
    "ENTRYPOINT": _program,
    "CMD": _program,
    "SHELL": _program,
    "EXPOSE": _noted("no port is opened; reach it with dial()"),
    "VOLUME": _noted("no volume is made; what is written there is part of the disk"),
    "STOPSIGNAL": _noted("sandboxes end without asking"),
    "MAINTAINER": _noted("use LABEL maintainer=..."),
    "HEALTHCHECK": _noted("nothing is run to ask; a template has a ready check"),
    "ONBUILD": _refused("write the steps into the Dockerfile that needs them"),
}
