"""The steps of an E2B template, as the Dockerfile that our own builder follows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.e2b import fields
from cloister.e2b.refusal import CallRefused
from cloister.model import quote

_MAXIMUM_STEPS = 100
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")
_MODE = re.compile(r"[0-7]{3,5}")
HASH = re.compile(r"[0-9a-f]{64}")
# Every template has this user; an image that has it already keeps its own.
_ACCOUNT = """
grep -q '^user:' /etc/passwd || echo 'user:x:1000:1000::/home/user:/bin/bash' >> /etc/passwd
grep -q '^user:' /etc/group || echo 'user:x:1000:' >> /etc/group
mkdir -p /home/user && chown 1000:1000 /home/user
"""
# As Docker's COPY does it: of a directory its content, into a directory that is made; several
# things go into a directory, and links stay links.
_COPY = """
set -e
dest=$1; owner=$2; mode=$3; shift 3
if [ $# -gt 1 ]; then dest=${dest%/}/; fi
for each in "$@"; do
    if [ -d "$each" ]; then
        mkdir -p "$dest"; cp -R "$each/." "$dest"; made=$dest
    else
        case $dest in
            */) mkdir -p "$dest"; made=$dest${each##*/} ;;
            *) above=${dest%/*}; [ "$above" = "$dest" ] || mkdir -p "${above:-/}"; made=$dest
               if [ -d "$dest" ]; then made=$dest/${each##*/}; fi ;;
        esac
        cp -RP "$each" "$made"
    fi
    if [ -n "$mode" ] && [ ! -L "$made" ]; then chmod -R "$mode" "$made"; fi
    if [ -n "$owner" ]; then chown -Rh "$owner" "$made"; fi
done
"""


def dockerfile_of(base: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a Dockerfile; files of a COPY are archives called by their hash."""
    if len(steps) > _MAXIMUM_STEPS:
        raise CallRefused("invalid_argument", f"{len(steps)} steps; the most is {_MAXIMUM_STEPS}")
    user = "user"
    lines = [f"FROM {base}", "USER root", _run(_ACCOUNT), "WORKDIR /home/user", f"USER {user}"]
    for index, step in enumerate(steps):
        arguments = fields.texts(step, "args")
        match fields.text(step, "type"):
            case "RUN" if arguments:
                other = arguments[1] if len(arguments) > 1 and arguments[1] else user
                lines += [f"USER {_user(other)}", _run(arguments[0]), f"USER {user}"]
            case "ENV" if len(arguments) % 2 == 0:
                pairs = zip(arguments[::2], arguments[1::2], strict=True)
                lines += [f"ENV {_name(key)}={_quoted(value)}" for key, value in pairs]
            case "WORKDIR" if len(arguments) == 1:
                lines.append(f"WORKDIR {_quoted(arguments[0])}")
            case "USER" if len(arguments) == 1:
                user = _user(arguments[0])
                lines.append(f"USER {user}")
            case "COPY" if len(arguments) >= 2:
                lines += _copy(step, arguments, index, user)
            case kind:
                raise CallRefused(
                    "invalid_argument", f"step {index + 1} is {quote(kind)}, or wrong"
                )
    return "\n".join(lines) + "\n"


def hashes_of(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the archives that the steps copy from."""
    return [parse_hash(fields.text(step, "filesHash")) for step in steps if step.get("filesHash")]


def parse_hash(text: str) -> str:
    """Return the text as the hash of an archive; it is safe as one name in a path."""
    if HASH.fullmatch(text) is None:
        raise CallRefused("invalid_argument", "filesHash is no SHA-256 in hexadecimal")
    return text


def _copy(step: Mapping[str, Any], arguments: list[str], index: int, user: str) -> list[str]:
    source, target = arguments[0], arguments[1]
    owner = _user(arguments[2]) if len(arguments) > 2 and arguments[2] else user
    mode = arguments[3] if len(arguments) > 3 else ""
    if mode and _MODE.fullmatch(mode) is None:
        raise CallRefused("invalid_argument", f"mode of a COPY is {quote(mode)}; write it in octal")
    place = f"/.copied-{index}"
    archive = parse_hash(fields.text(step, "filesHash"))
    # The pattern is expanded by the shell, unquoted; nothing else of it may mean anything there.
    pattern = re.sub(r"([^A-Za-z0-9_./*?\[\]-])", r"\\\1", source.removeprefix("./"))
    script = f"set -- {_shell(target)} {_shell(owner)} {_shell(mode)} {place}/{pattern}\n{_COPY}"
    return [
        "USER root",
        f"ADD {archive}.tar {place}/",
        _run(f"{script}\nrm -rf {place}"),
        f"USER {user}",
    ]


def _run(script: str) -> str:
    return f"RUN {json.dumps(['/bin/sh', '-c', script])}"


def _quoted(text: str) -> str:
    if "\n" in text or "\0" in text:
        raise CallRefused("invalid_argument", "a value of a step has a line break; leave it out")
    return '"' + re.sub(r'(["\\$])', r"\\\1", text) + '"'


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", text) is None:
        raise CallRefused("invalid_argument", f"a variable is called {quote(text)}; use letters")
    return text


def _user(text: str) -> str:
    if _USER.fullmatch(text) is None:
        raise CallRefused("invalid_argument", f"a user is called {quote(text)}; use letters")
    return text
