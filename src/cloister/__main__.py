"""`python -m cloister` is the command `cloister`."""

from __future__ import annotations

import sys

from cloister.cli.main import main

sys.exit(main())
