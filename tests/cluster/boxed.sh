#!/usr/bin/env bash
# boxed.sh COMMAND ...: run COMMAND, as root, on a box of its own: processes, network, /run and host
# name are private, files are shared. A testbed in it is independent of all others. When COMMAND
# ends, everything that was started in the box ends.
set -euo pipefail
if [[ ${1-} != --inside ]]; then
    exec unshare --mount --net --pid --uts --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/sshd /run/lock /run/cgroup
touch /run/own-box
# A new /sys, which lists this network's interfaces, would hide the cgroups that slurmd asks for.
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount --lazy /run/cgroup
rmdir /run/cgroup
ip link set lo up
hostname box
# Not exec: the first process of a box has to adopt orphans.
"$@"
