#!/usr/bin/env bash
# Long runs: whatever a sandbox leaves behind shows itself after thousands of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python -m pytest -m soak --timeout=3600 tests "$@"
