"""Metadata of files, kept as extended attributes `user.e2b.*` of the files themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.e2b.people import Person
from cloister.e2b.refusal import CallRefused
from cloister.errors import NotFound
from cloister.model import Result
from cloister.sandbox import Sandbox

HEADER = "x-metadata-"
_MAXIMUM_BYTES = 64 * 1024
_MAXIMUM_LISTED_BYTES = 2**20
# Done inside, by the sandbox's own Python: no other program that can is in every image.
_LISTING = """
import json, os, sys
found = {}
for path in json.load(sys.stdin):
    try:
        has = {n[9:]: os.getxattr(path, n).decode("utf-8", "replace")
               for n in os.listxattr(path) if n.startswith("user.e2b.")}
    except OSError:
        continue
    if has:
        found[path] = has
json.dump(found, sys.stdout)
"""
_SCRIPT = """
import json, os, sys
path, wanted = sys.argv[1], json.loads(sys.argv[2])
has = {n[9:]: os.getxattr(path, n).decode("utf-8", "replace")
       for n in os.listxattr(path) if n.startswith("user.e2b.")}
for name in has.keys() - wanted.keys():
    os.removexattr(path, "user.e2b." + name)
for name, value in wanted.items():
    if has.get(name) != value:
        os.setxattr(path, "user.e2b." + name, value.encode())
"""


def metadata_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that an upload's headers give the file."""
    found = {}
    for name, value in headers.items():
        if name.lower().startswith(HEADER):
            key = name.lower().removeprefix(HEADER)
            if not key or not all(" " <= each <= "~" for each in value):
                raise CallRefused(
                    "invalid_argument", f"metadata {key[:64]} is not printable ASCII; encode it"
                )
            found[key] = value
    return found


async def write_metadata(
    sandbox: Sandbox, path: str, person: Person, wanted: Mapping[str, str]
) -> None:
    """Give a file exactly this metadata."""
    argv = ["python3", "-I", "-S", "-c", _SCRIPT, path, json.dumps(dict(wanted))]
    try:
        process = await sandbox.start(argv, cwd="/", user=person.user, timeout=30)
    except NotFound:
        raise CallRefused(
            "unimplemented", "metadata needs python3 in the image; add it, or send none"
        ) from None
    if not (await process.capture(_MAXIMUM_BYTES)).ok:
        raise CallRefused("internal", f"the metadata of {path} could not be written")


async def metadata_below(
    sandbox: Sandbox, paths: Sequence[str], person: Person
) -> dict[str, dict[str, str]]:
    """Return the metadata of those of the files that have some."""
    try:
        result = await sandbox.run(
            ["python3", "-I", "-S", "-c", _LISTING],
            cwd="/",
            user=person.user,
            timeout=30,
            stdin=json.dumps(paths),
            output=_MAXIMUM_LISTED_BYTES,
        )
    except NotFound:
        return {}
    return {path: _texts(has) for path, has in _parsed(result).items()}


def _parsed(result: Result) -> dict[str, Any]:
    """Return what a script inside printed, if it is an object: whatever is there may lie."""
    try:
        found = json.loads(result.stdout_bytes)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _texts(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {str(name): str(value) for name, value in found.items()}
