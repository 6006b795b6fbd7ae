"""Where a sandbox is: here, or on the server that CLOISTER_URL names."""

from __future__ import annotations

import os
from typing import Any, Self

from cloister.errors import RequestError


class Elsewhere:
    """The part of a sandbox that decides, before anything else, on which machine it is."""

    _is_elsewhere = False

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Make a sandbox of a server where one is named; it is used as any other."""
        if not os.environ.get("CLOISTER_URL") or cls._is_elsewhere:
            return object.__new__(cls)
        # Imported when needed: most sandboxes are here.
        from cloister.sandbox.remote import RemoteSandbox
        from cloister.sandbox.sandbox import Sandbox

        if cls is not Sandbox:
            raise RequestError(
                f"{cls.__name__} is a kind of sandbox that servers do not know; unset CLOISTER_URL"
            )
        made: Any = object.__new__(RemoteSandbox)
        return made  # type: ignore[no-any-return]
