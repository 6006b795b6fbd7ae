"""What a running sandbox is compared with, as a message, so that another process can look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import HostError
from cloister.model.changes import EntryType

if TYPE_CHECKING:
    from cloister.store.changes import Owners, Skeleton, Stratum


def pack_compared(compared: tuple[Sequence[Stratum], Skeleton, Owners]) -> dict[str, Any]:
    """Return it as plain values; every byte of a path is one character."""
    strata, skeleton, owners = compared
    return {
        "strata": [
            [
                each.target,
                str(each.upper),
                [str(path) for path in each.lowers],
                [str(path) for path in each.sealed],
            ]
            for each in strata
        ],
        "given": {
            path.decode("latin-1"): [
                each.type.value,
                each.mode,
                None if each.target is None else each.target.decode("latin-1"),
                each.content.decode("latin-1"),
                each.uid,
                each.gid,
            ]
            for path, each in skeleton.given.items()
        },
        "uids": [list(each) for each in owners.uids],
        "gids": [list(each) for each in owners.gids],
    }


def unpack_compared(found: dict[str, Any]) -> tuple[tuple[Stratum, ...], Skeleton, Owners]:
    """Return what `pack_compared` was given."""
    from cloister.store.changes import Given, Owners, Skeleton, Stratum

    try:
        strata = tuple(
            Stratum(target, Path(upper), tuple(map(Path, lowers)), tuple(map(Path, sealed)))
            for target, upper, lowers, sealed in found["strata"]
        )
        given = {
            path.encode("latin-1"): Given(
                EntryType(kind),
                mode,
                None if target is None else target.encode("latin-1"),
                content.encode("latin-1"),
                uid,
                gid,
            )
            for path, (kind, mode, target, content, uid, gid) in found["given"].items()
        }
        uids = tuple((first, inside, count) for first, inside, count in found["uids"])
        gids = tuple((first, inside, count) for first, inside, count in found["gids"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HostError(f"the process that runs it answered in another form: {error}") from error
    return strata, Skeleton(given), Owners(uids, gids)
