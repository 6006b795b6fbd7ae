"""Who may act as whom in a sandbox, by the verdict of its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.errors import Denied
from cloister.model import User, parse_user
from cloister.policy import Effect, Exec, Policy, judge

if TYPE_CHECKING:
    from cloister.sandbox.recording import Recording


class Permitting:
    """The part of a sandbox that is asked before somebody acts in it."""

    policy: Policy

    if TYPE_CHECKING:

        @property
        def recording(self) -> Recording | None: ...

    def permitted(self, user: str | int | User | None, argv: tuple[bytes, ...] = ()) -> User:
        """Return the user to act as, the policy's own unless named, or raise Denied."""
        if user is None:
            return self.policy.run_as
        who = parse_user(user)
        verdict = judge(Exec(argv, who), self.policy, (), 0.0)
        if verdict.effect is not Effect.ALLOW:
            if self.recording is not None:
                self.recording.denied(argv, who, verdict)
            raise Denied(
                f"acting as {who.uid}:{who.gid} is denied: {verdict.reason}", verdict=verdict
            )
        return who
