#!/usr/bin/env bash
# Long runs: whatever a sandbox leaves behind shows itself after thousands of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
.venv/bin/python -m pytest -m soak --timeout=3600 tests "$@"
# The whole contract of machines, which are emulated; `make test` asks a part of it.
CLOISTER_CONTRACT=microvm exec .venv/bin/python -m pytest -m "" --timeout=600 tests/contract -k microvm
