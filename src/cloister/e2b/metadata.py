"""Metadata of files, kept as extended attributes `user.e2b.*` of the files themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cloister.e2b.people import Person
from cloister.e2b.refusal import CallRefused
from cloister.errors import NotFound
from cloister.sandbox import Sandbox

HEADER = "x-metadata-"
_MAXIMUM_BYTES = 64 * 1024
# Done inside, by the sandbox's own Python: no other program that can is in every image.
_SCRIPT = """
import json, os, sys
path, wanted = sys.argv[1], json.loads(sys.argv[2])
has = {n[9:]: os.getxattr(path, n).decode("utf-8", "replace")
       for n in os.listxattr(path) if n.startswith("user.e2b.")}
if wanted is not None and wanted != has:
    for name in has.keys() - wanted.keys():
        os.removexattr(path, "user.e2b." + name)
    for name, value in wanted.items():
        if has.get(name) != value:
            os.setxattr(path, "user.e2b." + name, value.encode())
    has = wanted
json.dump(has, sys.stdout)
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
    await _run(sandbox, path, person, dict(wanted))


async def read_metadata(sandbox: Sandbox, path: str, person: Person) -> dict[str, str]:
    """Return the metadata of a file."""
    return await _run(sandbox, path, person, None)


async def _run(
    sandbox: Sandbox, path: str, person: Person, wanted: dict[str, str] | None
) -> dict[str, str]:
    argv = ["python3", "-I", "-S", "-c", _SCRIPT, path, json.dumps(wanted)]
    try:
        process = await sandbox.start(argv, cwd="/", user=person.user, timeout=30)
    except NotFound:
        raise CallRefused(
            "unimplemented", "metadata needs python3 in the image; add it, or send none"
        ) from None
    result = await process.capture(_MAXIMUM_BYTES)
    if not result.ok:
        if wanted is None:
            return {}
        raise CallRefused("internal", f"the metadata of {path} could not be written")
    try:
        found = json.loads(result.stdout_bytes)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): str(value) for name, value in found.items()}
