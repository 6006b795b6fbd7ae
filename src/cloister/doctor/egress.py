"""Tries the one way out: a sandbox asks for a name it may ask for, and for one it may not."""

from __future__ import annotations

from cloister.doctor.finding import Finding, advice, missing, ok
from cloister.errors import CloisterError, Unsupported
from cloister.policy import Policy
from cloister.sandbox import Sandbox

# Never anybody's (RFC 2606), and never asked of anybody: the answer is the gateway's own.
_ALLOWED, _OTHER = "allowed.invalid", "other.invalid"
_ASK = "getent ahostsv4 {0} >&2 && exit 2; getent ahostsv4 {1}"
_NAME = "egress"


async def look_at_egress(policy: Policy) -> Finding:
    """Return whether hosts can be allowed here, after trying it with what else starts here."""
    try:
        # A trial is nothing to be remembered.
        tried = Sandbox(policy, egress=[_ALLOWED], ledger="off", label="cloister doctor")
        async with tried as sandbox:
            result = await sandbox.run(_ASK.format(_OTHER, _ALLOWED))
            traffic = await sandbox.traffic()
    except Unsupported as error:
        return advice(_NAME, str(error), "pip install 'cloister[egress]'")
    except CloisterError as error:
        return missing(_NAME, str(error))
    asked = {event.host: event.allowed for event in traffic.asked}
    if asked.get(_ALLOWED) is not True or asked.get(_OTHER) is not False:
        return missing(_NAME, f"a sandbox asked for two names, and what was heard is {asked}")
    if result.exit_code != 0:
        return missing(_NAME, f"an allowed name was not answered: {result.describe()}")
    return ok(_NAME, "an allowed name was answered and another was not, by the gateway alone")
