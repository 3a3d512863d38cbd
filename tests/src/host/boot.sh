# Runs as process 1 of new mount, pid, cgroup, uts, ipc and network namespaces: mounts what a container's manager would have mounted,
# makes it the root and becomes systemd. $1: the host's directory; $2: the Debian tree; $3: lines `source target rw|ro` of binds.
set -eu
dir=$1 tree=$2 binds=$3
root=$dir/root

# The upper directory in memory: overlay on overlay fails where /tmp is an overlay itself.
mount -t tmpfs -o mode=0755 upper "$dir/upper"
mkdir "$dir/upper/upper" "$dir/upper/work"
mount -t overlay -o "lowerdir=$dir/files:$tree,upperdir=$dir/upper/upper,workdir=$dir/upper/work" root "$root"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# The kernel is shared with the machine that the test runs on: its settings are read-only, those of the network namespace are not.
for path in sys/net sys sysrq-trigger; do
    if [ -e "$root/proc/$path" ]; then mount --rbind "$root/proc/$path" "$root/proc/$path"; fi
done
for path in sys sysrq-trigger; do
    if [ -e "$root/proc/$path" ]; then mount -o remount,bind,ro "$root/proc/$path"; fi
done
mount --bind "$dir/boot_id" "$root/proc/sys/kernel/random/boot_id"
# Read-only: udev stays away.
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"

mount -t tmpfs -o mode=0755,nosuid dev "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
# Console and kernel log lead nowhere: those of the machine are not this host's.
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 console:1:3 kmsg:1:3 tty:5:0; do
    name=${device%%:*} number=${device#*:}
    mknod -m 0666 "$root/dev/$name" c "${number%:*}" "${number#*:}"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"

mount -t tmpfs -o mode=0755,nosuid,nodev run "$root/run"
mkdir -p "$root/run/host/tree"
: > "$root/run/host/notify"
mount --bind "$dir/notify" "$root/run/host/notify"
# A read-only bind of the tree: the lower directory of containers that the host starts.
mount --bind "$tree" "$root/run/host/tree"
mount -o remount,bind,ro "$root/run/host/tree"
# As stage-1 does where there is no state disk: containers' upper directories cannot lie on the root's overlay.
mkdir -p "$root/var/lib/bedplate"
mount -t tmpfs -o mode=0755 state "$root/var/lib/bedplate"
printf '%s' "$binds" | while read -r source target access; do
    if [ -d "$source" ]; then
        mkdir -p "$root$target"
    else
        mkdir -p "$root${target%/*}"
        [ -e "$root$target" ] || : > "$root$target"
    fi
    mount --bind "$source" "$root$target"
    [ "$access" = rw ] || mount -o remount,bind,ro "$root$target"
done

cd "$root"
mkdir run/old
pivot_root . run/old
umount -l run/old
rmdir run/old
# systemd-nspawn and private mounts of units pass mounts on to each other.
mount --make-rshared /
exec env -i container=bedplate-test NOTIFY_SOCKET=/run/host/notify PATH=/usr/sbin:/usr/bin TERM=dumb \
    chroot . /usr/lib/systemd/systemd
