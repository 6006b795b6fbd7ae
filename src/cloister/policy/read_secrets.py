"""Read [secrets.NAME] from the tables of a policy: where values come from, never a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.policy.places import Places
from cloister.policy.secrets import SECRET_PARSERS, SecretBinding, parse_secrets

SECRETS_SCHEMA = tuple(f"secrets.{key}" for key in SECRET_PARSERS)


def read_secrets(
    places: Places, table: Mapping[str, Any], directory: Path | None
) -> tuple[SecretBinding, ...]:
    """Return the bindings; a relative path of a file starts at `directory`."""
    found = {}
    for name, each in table.items():
        path = ("secrets", name)
        if not isinstance(each, dict):
            # Not quoted: somebody may have written the secret itself here.
            raise places.error(path, f"no table; write [secrets.{name[:64]}] with from and hosts")
        places.refuse_unknown(path, each, SECRET_PARSERS)
        for key, value in each.items():
            with places.at((*path, key)):
                SECRET_PARSERS[key](value)
        with places.at(path):
            found[name] = SecretBinding(name, **_rooted(each, directory))
    with places.at(("secrets",)):
        return parse_secrets(found)


def _rooted(table: Mapping[str, Any], directory: Path | None) -> Mapping[str, Any]:
    kind, _, where = str(table.get("from", "")).partition(":")
    if kind != "file" or directory is None:
        return table
    return {**table, "from": f"file:{directory / where}"}
