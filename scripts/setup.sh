#!/usr/bin/env bash
# Makes .venv with everything a checkout needs. `setup.sh bench` adds the peers of `make bench`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# What makes filesystems is in sbin, which an ordinary user's PATH leaves out.
export PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
purpose="${1:-develop}"

main() {
    case "$purpose" in
        develop | bench) ;;
        *) fail "unknown purpose '$purpose'; use 'setup.sh' or 'setup.sh bench'" ;;
    esac
    install_required_packages
    install_optional_packages
    local python
    python="$(find_python)" || fail "no Python 3.11 or newer found; install one and run this again"
    make_venv "$python"
    install_project
    build_cell
    install_clients
    install_machine_kernel
}

say() { printf '[setup] %s\n' "$*"; }
fail() {
    printf '[setup] error: %s\n' "$*" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

install_required_packages() {
    local missing=()
    find_python >/dev/null || missing+=(python3)
    has_venv || missing+=(python3-venv)
    has gcc || missing+=(gcc)
    # The static binary links libc.a, which a compiler alone does not bring.
    [ -n "$(find /usr/lib /usr/lib64 -maxdepth 2 -name libc.a -print -quit 2>/dev/null)" ] \
        || missing+=(libc6-dev)
    if [ ${#missing[@]} -gt 0 ]; then
        apt_install "${missing[@]}" || fail_missing "${missing[@]}" $(has cargo || cargo_package)
    fi
    # Debian 12 carries two: cargo-web is current, and fetches one crate without the whole index.
    has cargo || apt_install cargo-web || apt_install cargo || fail_missing "$(cargo_package)"
}

cargo_package() {
    if apt-cache show cargo-web >/dev/null 2>&1; then echo cargo-web; else echo cargo; fi
}

fail_missing() { fail "packages are missing: $*; run: sudo apt-get install -y $*"; }

install_optional_packages() {
    local missing=() package
    has newuidmap || missing+=(uidmap)
    # The tests of images pull from a real registry and make Debian bases, those of state make a pool.
    has docker-registry || missing+=(docker-registry)
    has mmdebstrap || missing+=(mmdebstrap)
    has mkfs.btrfs || missing+=(btrfs-progs)
    # Those of machines start QEMU.
    has qemu-system-x86_64 || missing+=(qemu-system-x86)
    # The tests of the server's records start a database of their own.
    [ -n "$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || missing+=(postgresql)
    if [ "$purpose" = bench ]; then
        has bwrap || missing+=(bubblewrap)
        for package in runc runsc firejail; do
            has "$package" || missing+=("$package")
        done
    fi
    # One at a time: a package this distribution does not carry must not cost the others.
    for package in ${missing[@]+"${missing[@]}"}; do
        apt_install "$package" \
            || say "optional package missing: $package; to add it: sudo apt-get install -y $package"
    done
}

apt_install() {
    has apt-get || return 1
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        has sudo && sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    say "installing $*"
    local command=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq
        --no-install-recommends "$@")
    if ! ${as_root[@]+"${as_root[@]}"} "${command[@]}" >/dev/null 2>&1; then
        ${as_root[@]+"${as_root[@]}"} apt-get update -qq || return 1
        ${as_root[@]+"${as_root[@]}"} "${command[@]}" >/dev/null 2>&1
    fi
}

find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if has "$name" && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            command -v "$name"
            return
        fi
    done
    return 1
}

has_venv() {
    local python
    python="$(find_python)" && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

make_venv() {
    # A venv whose interpreter was removed or moved has a dangling link: start over.
    if [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' 2>/dev/null; then
        return
    fi
    say "making .venv with $("$1" --version)"
    rm -rf .venv
    "$1" -m venv .venv
}

install_project() {
    local extras=dev stamp want
    [ "$purpose" = bench ] && extras=dev,bench
    stamp=".venv/.installed-$purpose"
    want="$(cat pyproject.toml hatch_build.py | sha256sum) $PWD"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        return
    fi
    say "installing cloister and its $extras tools into .venv"
    if ! pip_install "$extras"; then
        [ "$purpose" = bench ] || fail "pip could not install the project; its words are above"
        say "optional Python peers are not available; the bench goes on without them"
        pip_install dev || fail "pip could not install the project; its words are above"
    fi
    printf '%s' "$want" >"$stamp"
}

pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
}

# What the tests of compatibility talk with: E2B's clients for node, and a kernel for sandboxes.
install_clients() {
    local stamp=.venv/.clients want="e2b@2.51.0 @e2b/code-interpreter@2.8.0 ipykernel 1"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        return
    fi
    if has npm; then
        say "installing E2B's clients for node into .venv/node"
        npm install --silent --no-audit --no-fund --prefix .venv/node \
            e2b@2.51.0 @e2b/code-interpreter@2.8.0 >/dev/null 2>&1 \
            || say "optional clients for node are not available; their tests are skipped"
    fi
    if [ -x /usr/bin/python3 ]; then
        say "installing a Python kernel for sandboxes into .venv/state"
        CLOISTER_STATE="$PWD/.venv/state" .venv/bin/python -m cloister interpreter install >/dev/null \
            || say "optional ipykernel is not available; its tests are skipped"
    fi
    printf '%s' "$want" >"$stamp"
}

# A kernel for the tests of machines; they are left out where there is none.
install_machine_kernel() {
    has qemu-system-x86_64 || return 0
    [ -d .venv/state/microvm/kernel ] && return 0
    say "unpacking a kernel for machines into .venv/state"
    CLOISTER_MICROVM="$PWD/.venv/state/microvm" \
        .venv/bin/python -m cloister setup microvm --programs-only >/dev/null \
        || say "optional kernel for machines is not available; their tests are left out"
}

build_cell() {
    # cargo decides whether anything changed; the copy follows only a changed binary.
    .venv/bin/python scripts/build_cell.py
}

main
