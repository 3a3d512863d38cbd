#!/bin/sh
# Written by bedplate-agent, run by bedplate-user-data.service. It has no content of the user data.
set -u

data=/run/bedplate/user-data
boot=/etc/bedplate/user-data-boot.sh
started=/var/lib/bedplate/user-data-started
finished=/var/lib/bedplate/user-data-finished
log=/var/log/bedplate/user-data.log
instance=6f9c

say() {
    printf 'bedplate: %s\n' "$*"
}

fail() {
    say "$1 failed with status $2"
    exit 1
}

# A mark is on disk before anything relies on it.
mark() {
    printf "" >"$1" || fail "writing $1" $?
    sync "$1" "${1%/*}" || fail "syncing $1" $?
}

# As in cloud-init, a failure of bootcmd does not stop the run.
run_boot() {
    [ -e "$boot" ] || return 0
    say "bootcmd"
    INSTANCE_ID=$instance /bin/sh "$boot" </dev/null || say "bootcmd ended with status $?"
}

mkdir -p "${log%/*}" "${started%/*}"
if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt 1048576 ]; then
    mv -f "$log" "$log.1"
fi
if (umask 077 && : >>"$log"); then
    exec >>"$log" 2>&1
else
    # The output of commands must not reach the journal of the slot.
    say "cannot write $log; the output of the user data is discarded"
    exec >/dev/null 2>&1
fi
say "started at $(date -u +%Y-%m-%dT%H:%M:%SZ)"

if [ -e "$finished" ]; then
    run_boot
    exit 0
fi
if [ -e "$started" ]; then
    say "an earlier run was interrupted; it is not repeated"
    exit 1
fi
[ -e "$data/steps.sh" ] || {
    say "$data/steps.sh is missing; nothing was run"
    exit 1
}
mark "$started"
run_boot
/bin/sh "$data/steps.sh" </dev/null || exit 1
[ -e /run/cluster-api/bootstrap-success.complete ] || {
    say "runcmd ended without /run/cluster-api/bootstrap-success.complete"
    exit 1
}
mark "$finished"
rm -rf "$data"
say "done"
