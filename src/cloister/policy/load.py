"""Read a policy file: the one place in this room that touches a disk."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.errors import NotFound, RequestError
from cloister.model import parse_mount_source, quote
from cloister.policy.parse import MAXIMUM_POLICY_BYTES, parse_policy
from cloister.policy.policy import Policy


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Return the policy a file states; relative host paths in it start at the file's directory."""
    source = parse_mount_source(path, "policy file")
    try:
        with source.open("rb") as file:
            # One byte past the limit tells "too large" without reading a device to its end.
            data = file.read(MAXIMUM_POLICY_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(
            f"no policy file {quote(str(source))}; check the path", what=str(source)
        ) from error
    except OSError as error:
        raise RequestError(
            f"cannot read the policy file {quote(str(source))}: {error.strerror}; "
            "name a readable file"
        ) from error
    return parse_policy(data, where=str(source), directory=Path(os.path.abspath(source)).parent)
