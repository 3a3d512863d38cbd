#!/bin/sh
# Written by bedplate-agent, run by bedplate-kubeadm.service. It may be killed anywhere and is run again then.
set -u

attempt=/etc/kubernetes/.bedplate-attempt
joined=/var/lib/kubelet/.bedplate-joined
finished=/var/lib/kubelet/.bedplate-finished
etcd=/var/lib/etcd/member
log=/var/log/bedplate/kubeadm.log

say() {
    printf 'bedplate: %s\n' "$*"
}

fail() {
    say "$1 failed with status $2; retrying"
    exit 1
}

# A mark is on disk before anything relies on it.
mark() {
    printf "" >"$1" || fail "writing $1" $?
    sync "$1" "${1%/*}" || fail "syncing $1" $?
}

# run FIELD NUMBER COMMAND. The command is not logged: it may have secrets, and the end of the log is in the status.
run() {
    say "$1 $2"
    /bin/sh -c "$3" </dev/null || fail "$1 $2" $?
}

# The output of all attempts, at most two files of a MiB or one attempt each.
mkdir -p "${log%/*}" "${attempt%/*}" "${joined%/*}"
if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt 1048576 ]; then
    mv -f "$log" "$log.1"
fi
if (umask 077 && : >>"$log"); then
    exec >>"$log" 2>&1
else
    say "cannot write $log"
fi
say "started at $(date -u +%Y-%m-%dT%H:%M:%SZ)"

if [ ! -e "$joined" ]; then
    if [ -e "$attempt" ]; then
        say "an attempt failed; resetting its files"
        # An empty directory instead of /etc/kubernetes/pki, because the reset would delete certificates of the version.
        mkdir -p /run/bedplate/no-certificates
        kubeadm reset --force --cri-socket unix:///run/containerd/containerd.sock --cert-dir /run/bedplate/no-certificates ||
            fail "kubeadm reset" $?
        rm -f /etc/kubernetes/pki/ca.crt
        rm -f "$attempt"
    elif [ -e "$etcd" ]; then
        # A restored cluster, or one whose mark was removed. kubeadm would fail on it, and the next reset would delete it.
        say "$etcd existed before kubeadm ran; kubeadm is not started. To keep that cluster: touch $joined; to start without it: remove $etcd"
        exit 1
    fi
    run preKubeadmCommands 1 'modprobe br_netfilter'
    run preKubeadmCommands 2 'echo '\''it'\'''\''s'\''
exit 0'
    mark "$attempt"
    kubeadm join --config /run/bedplate/kubeadm.yaml </dev/null || fail "kubeadm join" $?
    mark "$joined"
fi
# Credentials of the join. The mark of the attempt is removed last, so that no reset can follow a success.
rm -f /run/bedplate/kubeconfig
rm -f "$attempt"

if [ ! -e "$finished" ]; then
    run postKubeadmCommands 1 'touch /etc/ready'
    mark "$finished"
fi
say "done"
