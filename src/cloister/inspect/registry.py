"""What Inspect loads by its entry point; nothing else imports Inspect before it is asked for."""

from __future__ import annotations

from inspect_ai.util import sandboxenv

from cloister.inspect.environment import CloisterEnvironment

sandboxenv(name="cloister")(CloisterEnvironment)
