# Steps of the user data, in order.
set -u
data=/run/bedplate/user-data

say() {
    printf 'bedplate: %s\n' "$*"
}

fail() {
    say "$1 failed with status $2"
    exit 1
}

# own PATH OWNER
own() {
    [ -z "$2" ] || chown "$2" "$1"
}

# parents PATH OWNER: makes the directories above a path.
parents() {
    [ -z "${1%/*}" ] || [ -d "${1%/*}" ] || {
        parents "${1%/*}" "$2" && mkdir "${1%/*}" && own "${1%/*}" "$2"
    }
}

# write INDEX MODE OWNER PATH
write() {
    say "write_files[$1]"
    parents "$4" "$3" && (umask 077 && cat "$data/file-$1" >"$4") && own "$4" "$3" && chmod "$2" "$4" ||
        fail "write_files[$1]" $?
}

# append INDEX MODE OWNER PATH
append() {
    say "write_files[$1]"
    parents "$4" "$3" && (umask 077 && cat "$data/file-$1" >>"$4") && own "$4" "$3" && chmod "$2" "$4" ||
        fail "write_files[$1]" $?
}

# groups INDEX GROUP...: makes those that are missing.
groups() {
    index=$1
    shift
    for group; do
        groupadd -f "$group" || fail "users[$index].groups" $?
    done
}

# add INDEX NAME OPTION...
add() {
    index=$1
    name=$2
    shift 2
    useradd -m "$@" "$name" || fail "users[$index]" $?
    if [ -e "$data/user-$index-passwd" ]; then
        chpasswd -e <"$data/user-$index-passwd" || fail "users[$index].passwd" $?
    fi
}

# rules INDEX: rules for sudo.
rules() {
    sudoers=/etc/sudoers
    directory=$sudoers.d
    (umask 027 && mkdir -p "$directory") && chmod 0750 "$directory" || fail "users[$1].sudo" $?
    if ! grep -Eqs "^[#@]includedir[[:space:]]+$directory/?[[:space:]]*\$" "$sudoers"; then
        (umask 0337 && printf '\n#includedir %s\n' "$directory" >>"$sudoers") || fail "users[$1].sudo" $?
    fi
    (umask 0337 && cat "$data/user-$1-sudo" >>"$directory/90-cloud-init-users") || fail "users[$1].sudo" $?
}

# keys INDEX NAME HOME: adds those that are missing.
keys() {
    file=$3/.ssh/authorized_keys
    (umask 077 && mkdir -p "$3/.ssh" && : >>"$file") && chmod 0700 "$3/.ssh" && chmod 0600 "$file" ||
        fail "users[$1].ssh_authorized_keys" $?
    while IFS= read -r key; do
        grep -Fxqe "$key" "$file" || printf '%s\n' "$key" >>"$file" || fail "users[$1].ssh_authorized_keys" $?
    done <"$data/user-$1-keys"
    chown "$2:" "$3/.ssh" "$file" || fail "users[$1].ssh_authorized_keys" $?
}

write 0 0644 root:root /etc/containerd/certs.d/registry.example/hosts.toml
append 1 0644 root:root /etc/motd
write 2 0640 root:root /run/kubeadm/kubeadm-join-config.yaml
write 3 0640 root:root /run/cluster-api/placeholder
say "users[0]"
if ! id -u capiuser >/dev/null 2>&1; then
    groups 0 adm systemd-journal
    add 0 capiuser --comment 'Cluster operator' --groups adm,systemd-journal --shell /bin/bash
fi
usermod --lock capiuser || fail "users[0].lock_passwd" $?
rules 0
home=~capiuser
keys 0 capiuser "$home"
say "runcmd"
/bin/sh "$data/runcmd" </dev/null || fail "runcmd" $?
