"""Who owns what: the names of tenants, and the names under which their things are in the store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

from cloister.errors import NotFound, RequestError
from cloister.model import parse_name, quote

TenantName = NewType("TenantName", str)

# Whoever owns the machine: comes by the unix socket or with a token of the role admin, and sees
# the same names as the command line without a server.
OWNER = TenantName("owner")

# No dot: it ends the tenant's part of a stored name.
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")


def parse_tenant(value: object) -> TenantName:
    """Return the text as the name of a tenant."""
    if not isinstance(value, str) or _TENANT.fullmatch(value) is None:
        raise RequestError(
            f'tenant is {quote(value)}; write 1 to 20 of a-z, 0-9 and "-", a letter or digit first'
        )
    return TenantName(value)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one tenant's kept sandboxes, snapshots, volumes, images and templates.

    The store knows no tenants. Each name is stored as TENANT.NAME, and nothing else is ever asked
    of the store, so that no name of a tenant can mean something of another.
    """

    tenant: TenantName

    def stored(self, name: object, what: str) -> str:
        """Return what the store calls it."""
        parsed = parse_name(name, what)
        if self.tenant == OWNER:
            return parsed
        try:
            return parse_name(f"{self.tenant}.{parsed}", what)
        except RequestError:
            room = 63 - len(self.tenant) - 1
            raise RequestError(
                f"{what} has {len(parsed)} characters; tenant {self.tenant} has room for {room}"
            ) from None

    def owns(self, stored: str) -> bool:
        """Whether something that is stored under this name is the tenant's."""
        if self.tenant == OWNER:
            return True
        return stored.startswith(f"{self.tenant}.")

    def shown(self, stored: str) -> str:
        """Return what the tenant calls it, or raise NotFound if it is not theirs."""
        if not self.owns(stored):
            raise NotFound(f"nothing is called {quote(stored)}", what=stored)
        return stored if self.tenant == OWNER else stored.removeprefix(f"{self.tenant}.")

    def label(self, text: str) -> str:
        """Return a label as it is recorded: no tenant's is taken for the owner's or another's."""
        return text if self.tenant == OWNER else f"{self.tenant}.{text}"

    def shown_label(self, recorded: str | None) -> str | None:
        """Return a label as its tenant gave it."""
        if recorded is None or self.tenant == OWNER:
            return recorded
        return recorded.removeprefix(f"{self.tenant}.")
