#!/usr/bin/env bash
# The one place that knows which tests run, and in which order: check, security, or all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:$HOME/.cargo/bin"
python=.venv/bin/python
quietly=

main() {
    case "${1:-all}" in
        check)
            check
            units
            ;;
        security) security ;;
        all)
            check
            both_lanes
            ;;
        *)
            echo "test.sh: unknown suite '$1'; use check, security or all" >&2
            exit 2
            ;;
    esac
    printf '[test] all held, in %d s\n' "$SECONDS"
}

check() {
    step "format" "$python" -m ruff format --check .
    step "lint" "$python" -m ruff check .
    step "types" "$python" -m mypy
    check_cell
}

units() {
    step "unit and repository tests" "$python" -m pytest -q tests/unit tests/repo
}

check_cell() {
    # Debian's cargo brings neither of the two, and its old clippy disagrees with the current one.
    if cargo fmt --version >/dev/null 2>&1; then
        step "format of cell" in_cell cargo fmt --check
    else
        echo "[test] not run: cargo fmt is not installed"
    fi
    if cargo clippy --version >/dev/null 2>&1; then
        step "lint of cell" in_cell cargo clippy --release --locked --all-targets --quiet -- -D warnings
    else
        echo "[test] not run: cargo clippy is not installed"
    fi
    step "tests of cell" in_cell cargo test --release --locked --quiet
}

# The suites wait more than they compute: two at a time use both cores. Each lane has its own table
# of mounts, since some tests count the mounts of the host.
both_lanes() {
    quietly=yes
    lane_of_owner &
    local owner=$!
    lane_of_everybody &
    wait "$owner"
    wait $!
    [ -s "$kept/failures" ] || return 0
    ask_again
}

# Some tests wait for a process with a deadline, and two lanes on two cores can starve it. What
# failed beside the other lane is asked once more alone, and both answers are printed.
ask_again() {
    local again lasting=0
    while IFS= read -r -u 8 again; do
        eval "set -- $again"
        printf '[test] failed beside the other lane, asked again alone: %s\n' "$1"
        if PYTEST_ADDOPTS="-o cache_dir=$2 --last-failed --last-failed-no-failures=none" apart "${@:3}"; then
            printf '[test] unsteady: %s\n' "$1"
        else
            printf '[test] failed: %s\n' "$1"
            lasting=1
        fi
    done 8<"$kept/failures"
    return "$lasting"
}

lane_of_owner() {
    units
    step "contract: every runtime, as $(id -un)" "$python" -m pytest -q tests/contract
    step "state: every storage driver, as $(id -un)" "$python" -m pytest -q tests/state
    step "end to end" "$python" -m pytest -q tests/e2e
    step "server: two tenants, real clients" "$python" -m pytest -q tests/server
}

lane_of_everybody() {
    if [ "$(id -u)" -eq 0 ]; then
        step "contract: every runtime, as a user with sub-ids" \
            "$python" tests/run_as_user.py ranges -q tests/contract tests/unit/runtime/test_formatting.py
        step "contract: every runtime, as a user with a single id" \
            "$python" tests/run_as_user.py single -q tests/contract
        step "contract: as a user without control groups" \
            "$python" tests/run_as_user.py bare -q tests/contract/test_ungrouped.py
        # The long ones are root's, who has both drivers; these are those in which owners of files matter.
        step "state: plain directories, as a user with sub-ids" \
            "$python" tests/run_as_user.py ranges -q tests/state/test_keep.py tests/state/test_forks.py
        step "state: plain directories, as a user with a single id" \
            "$python" tests/run_as_user.py single -q tests/state -k "not machine and not crash"
    fi
    step "egress: real programs and real servers, as $(id -un)" "$python" -m pytest -q tests/egress
    security
    step "images: a real registry, hostile layers" "$python" -m pytest -q tests/images
    step "MCP: the official client, by pipes and by HTTP" "$python" -m pytest -q tests/mcp
    step "Inspect: its own check, and whole evaluations" "$python" -m pytest -q tests/inspect
    step "modules: real ones, in wasmtime" "$python" -m pytest -q tests/wasm
    step "e2b: its own clients, unmodified" "$python" -m pytest -q tests/e2b
    step "contract: the same on a server" env CLOISTER_CONTRACT=server "$python" -m pytest -q \
        tests/contract/test_{bad_input,copy,dial,endings,files,output,run,start,terminal}.py
}

security() {
    step "security: attacks on this machine's real runtime" "$python" -m pytest -q tests/security
}

in_cell() { (cd cell && "$@"); }

# In a lane, what a step says comes out in one piece when it has ended, and the next one follows
# also where it failed.
step() {
    local title="$1" output cache began=$SECONDS
    shift
    if [ -z "$quietly" ]; then
        printf '[test] %s\n' "$title"
        "$@"
        return
    fi
    output="$(mktemp "$kept/output.XXXXXX")"
    cache="$(mktemp -d "$kept/cache.XXXXXX")"
    # Some steps become another user.
    chmod 777 "$cache"
    if ! PYTEST_ADDOPTS="-o cache_dir=$cache" apart "$@" >"$output" 2>&1; then
        printf '%q ' "$title" "$cache" "$@" >>"$kept/failures"
        echo >>"$kept/failures"
    fi
    {
        flock 9
        printf '[test] %s (%d s)\n' "$title" "$((SECONDS - began))"
        cat "$output"
    } 9>>"$kept/lock"
    rm -f "$output"
}

apart() {
    if [ "$(id -u)" -eq 0 ]; then unshare --mount "$@"; else "$@"; fi
}

kept="$(mktemp -d)"
chmod 755 "$kept"
trap 'rm -rf "$kept"' EXIT
main "$@"
