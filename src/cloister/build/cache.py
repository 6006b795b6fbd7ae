"""Steps that were done before: what came of one, by a digest of everything it depends on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from pathlib import Path

from cloister.build.spool import SPOOL_PREFIX, builds_directory
from cloister.errors import CloisterError
from cloister.image import LayerFacts
from cloister.image.facts import parse_facts
from cloister.store import Store, parse_digest

_VERSION = 1


def step_key(parts: object) -> str:
    """Return the name of a step: equal for equal parts, which must be what JSON can say."""
    text = json.dumps([_VERSION, parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """One small file for each step. What a layer holds lasts as long as some image has it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory = builds_directory(store)

    def find(self, key: str) -> tuple[bool, tuple[str, LayerFacts] | None]:
        """Return whether the step was done, and its layer; None is a step that changed nothing."""
        path = self._path(key)
        try:
            digest = json.loads(path.read_text())["layer"]
        except FileNotFoundError:
            return False, None
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            return False, None
        if digest is None:
            return True, None
        try:
            # Asks for it as somebody who is about to make it would: from then on it stays.
            staging = self._store.layers.begin(parse_digest(digest))
            if staging is None:
                return True, (digest, parse_facts(self._store.layers.facts(digest)))
            staging.abort()
        except CloisterError:
            return False, None
        path.unlink(missing_ok=True)
        return False, None

    def put(self, key: str, digest: str | None) -> None:
        """Remember what came of a step."""
        draft = self._directory / f"{SPOOL_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        draft.write_text(json.dumps({"layer": digest}))
        os.replace(draft, self._path(key))

    def prune(self) -> None:
        """Forget steps whose layer is no more."""
        for path in self._directory.glob("*.step"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, CloisterError):
                digest = json.loads(path.read_text())["layer"]
                if digest is not None and not self._store.layers.has(digest):
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.step"
