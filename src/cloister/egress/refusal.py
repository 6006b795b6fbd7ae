"""Why a connection goes no further: it is not allowed, or nobody is there."""

from __future__ import annotations

from cloister.errors import CloisterError


class Refusal(CloisterError):
    """It may not be; said in the record with the rule, and to the program by a reset."""

    def __init__(self, reason: str, rule: str = "default") -> None:
        super().__init__(reason)
        self.reason = reason
        self.rule = rule

    @property
    def told(self) -> str:
        """What a program is told: why, by which rule, and whose move it is."""
        return (
            f"denied: {self.reason}; rule: {self.rule}; the same again is denied too, unless "
            "whoever runs this sandbox changes its policy: `cloister explain` says how"
        )


class Malformed(Refusal):
    """What came is not HTTP, or HTTP that two readers would read in two ways."""


class Misdirected(Refusal):
    """A request for another host than the one that the connection is to."""


class Unreachable(CloisterError):
    """It may be, but could not: no such name, nobody listens, no answer in time."""
