"""The same sandbox without `await`: one event loop in a background thread does the work.

>>> from cloister.blocking import Sandbox
>>> with Sandbox() as sandbox:
...     result = sandbox.run("python3 --version")

Every method calls the asynchronous one of the same name; there is no second implementation.
Use it from any thread, also where a loop is running already; a sandbox belongs to the process
that started it and is not carried over a fork.
"""

from __future__ import annotations

from cloister.blocking.files import Files
from cloister.blocking.forks import Forks
from cloister.blocking.process import Input, Output, Process
from cloister.blocking.sandbox import Sandbox

__all__ = ["Files", "Forks", "Input", "Output", "Process", "Sandbox"]
