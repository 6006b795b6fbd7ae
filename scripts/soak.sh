#!/usr/bin/env bash
# Long runs: whatever a sandbox leaves behind shows itself after thousands of them; and all that is
# asked of disks, of the way out and of a server, asked again behind gVisor and in machines where
# there are any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
"$python" -m pytest -m soak --timeout=3600 tests "$@"
if [ "$(id -u)" -eq 0 ]; then
    # As root both ways of the wire are asked each time, as ordinary users one of them.
    for kind in ranges single; do
        "$python" tests/run_as_user.py "$kind" -q -m soak tests/contract -k "stream or of_users"
    done
    "$python" tests/run_as_user.py ranges -q -m soak --timeout=3600 tests/state/test_runsc_kills.py
fi
if [ "$#" -eq 0 ] && command -v runsc >/dev/null; then
    EGRESS_WALL=gvisor "$python" -m pytest -q tests/egress
    STATE_WALL=gvisor "$python" -m pytest -q tests/state
    SERVER_WALL=gvisor "$python" -m pytest -q tests/server
    CLOISTER_CONTRACT=server SERVER_WALL=gvisor "$python" -m pytest -q tests/contract
    CLOISTER_RUNTIMES=internal=gvisor "$python" -m pytest -q \
        tests/images/test_{hostile_layers,integrity,pull}.py
fi
if [ "$#" -eq 0 ] && [ "$(id -u)" -eq 0 ] && command -v qemu-system-x86_64 >/dev/null; then
    # Machines are emulated where there is no KVM: what takes a second elsewhere takes half a minute.
    EGRESS_WALL=microvm "$python" -m pytest -q --timeout=900 tests/egress
    STATE_WALL=microvm "$python" -m pytest -q --timeout=900 tests/state -k "not btrfs"
    SERVER_WALL=microvm "$python" -m pytest -q --timeout=900 tests/server
fi
# The whole contract of machines, of which `make test` asks a part.
CLOISTER_CONTRACT=microvm exec "$python" -m pytest -m "" --timeout=900 tests/contract -k microvm
