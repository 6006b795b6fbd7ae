#!/bin/bash
# Runs the suites named in /checkout/suites inside the machine, and says whether everything held.
cd /checkout || exit 1
export PYTHONPATH=/checkout/src:/checkout/packages PYTHONDONTWRITEBYTECODE=1
pytest=(python3 -m pytest -q -p no:cacheprovider -o addopts= --timeout=600 --tb=short
    # On a disk: before Linux 6.3 a tmpfs cannot be mounted under other owners.
    --basetemp=/srv/tests)

main() {
    say "$(uname -r), $(nproc) processors, cgroups: $(stat -fc %T /sys/fs/cgroup), up $(cut -d' ' -f1 /proc/uptime) s"
    local suite failed=
    for suite in $(cat suites); do
        say "suite $suite"
        SECONDS=0
        case "$suite" in
            tests/*) "${pytest[@]}" "$suite" ;;
            *) "suite_$suite" ;;
        esac || failed+=" $suite"
        say "suite $suite took $SECONDS s"
    done
    if [ -z "$failed" ]; then say "everything held"; else say "failed:$failed"; fi
}

say() { printf 'vm: %s\n' "$*"; }

suite_smoke() { python3 -m cloister doctor; python3 tests/vm/smoke.py; }

suite_contract() { "${pytest[@]}" tests/contract; }

# A subtree as systemd gives it to a user: the directory and three files, one leaf for the caller.
suite_user() {
    useradd -m -u 1234 person
    local group=/sys/fs/cgroup/person
    echo '+cpu +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p $group/leaf
    echo '+cpu +memory +pids' >$group/cgroup.subtree_control
    chown 1234 $group $group/cgroup.{procs,threads,subtree_control} $group/leaf{,/cgroup.{procs,threads,subtree_control}}
    as_person $group/leaf python3 tests/vm/smoke.py
}

# Out of a user's own service, and out of a place that is not the user manager's: each time the
# launcher has to get itself a scope.
suite_session() {
    useradd -m -u 1234 person
    systemctl start user@1234.service
    say "delegated: $(cat /sys/fs/cgroup/user.slice/user-1234.slice/user@1234.service/cgroup.controllers)"
    systemd-run --user -M person@ --pipe --wait --quiet -E PYTHONPATH="$PYTHONPATH" \
        python3 /checkout/tests/vm/smoke.py || return
    say "from outside the session"
    setpriv --reuid=1234 --regid=1234 --init-groups env HOME=/home/person \
        XDG_RUNTIME_DIR=/run/user/1234 python3 tests/vm/smoke.py
}

as_person() {
    (
        echo $BASHPID >"$1/cgroup.procs"
        mkdir -p /run/user/1234
        chown 1234 /run/user/1234
        exec setpriv --reuid=1234 --regid=1234 --init-groups env HOME=/home/person \
            XDG_RUNTIME_DIR=/run/user/1234 "${@:2}"
    )
}

main
