#!/usr/bin/env bash
# Long runs: whatever a sandbox leaves behind shows itself after thousands of them; and all that is
# asked of disks, of the way out and of a server, asked again behind gVisor where there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
"$python" -m pytest -m soak --timeout=3600 tests "$@"
if [ "$(id -u)" -eq 0 ]; then
    # As root both ways of the wire are asked each time, as ordinary users one of them.
    for kind in ranges single; do
        "$python" tests/run_as_user.py "$kind" -q -m soak tests/contract -k stream
    done
fi
if [ "$#" -eq 0 ] && command -v runsc >/dev/null; then
    EGRESS_WALL=gvisor "$python" -m pytest -q tests/egress
    STATE_WALL=gvisor "$python" -m pytest -q tests/state
    CLOISTER_RUNTIMES=internal=gvisor "$python" -m pytest -q \
        tests/server/test_{processes,remote,sandboxes}.py
fi
# The whole contract of machines, which are emulated; `make test` asks a part of it.
CLOISTER_CONTRACT=microvm exec "$python" -m pytest -m "" --timeout=600 tests/contract -k microvm
