#!/usr/bin/env bash
# rooted.sh ROOT PYTHON ...: like boxed.sh, but with Slurm, sshd and all tools from ROOT, a folder
# with another system's files, such as slurm_root.sh makes. ROOT is not changed: all writes go to
# memory. The checkout and PYTHON with its environment are available under their usual paths.
set -euo pipefail
if [[ ${1-} != --inside ]]; then
    exec unshare --mount --net --pid --uts --fork --kill-child "$0" --inside "$@"
fi
shift
root=$(readlink -f "$1") python=$2
shift
if ! [[ -x $root/usr/sbin/slurmd || -x $root/usr/sbin/slurmd-wlm ]]; then # Debian's own name
    echo "error: SLURM_ROOT is $root, but there is no usr/sbin/slurmd there" >&2
    exit 2
fi
prefixes=$("$python" -c 'import sys; print(sys.prefix, sys.base_prefix, sep="\n")')
mapfile -t prefixes <<<"$prefixes"
mapfile -t own < <(readlink -f "$PWD" "${prefixes[@]}")
for folder in "${own[@]}"; do
    if [[ $folder == /usr ]]; then
        echo "error: $python is the system's own, which ROOT would hide; make .venv with another" >&2
        exit 2
    fi
done

mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/{new,above,between}
mount -t overlay -o "lowerdir=$root,upperdir=/mnt/above,workdir=/mnt/between" overlay /mnt/new
cd /mnt/new
mkdir -p proc sys dev run tmp root old etc var/log
mount -t proc proc proc
mount -t sysfs sysfs sys # which lists this network's interfaces
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs -o mode=0755 tmpfs run
mount --rbind /tmp tmp # files of the tests, whose process outside the box names them
mkdir -p run/sshd run/lock
touch run/own-box
for folder in "${own[@]}"; do
    mkdir -p ".$folder"
    mount --rbind "$folder" ".$folder"
done

# Packages that were only unpacked lack the files that their installation would have made.
[[ -e etc/passwd ]] || sed 's/^root:[^:]*:/root:x:/' usr/share/base-passwd/passwd.master >etc/passwd
[[ -e etc/group ]] || cp usr/share/base-passwd/group.master etc/group
[[ -e etc/shadow ]] || echo 'root:*:19000:0:99999:7:::' >etc/shadow
grep -q ^sshd: etc/passwd || echo 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >>etc/passwd
[[ -e etc/nsswitch.conf ]] || printf '%s: files\n' passwd group hosts >etc/nsswitch.conf
[[ -e etc/hosts ]] || echo '127.0.0.1 localhost' >etc/hosts
for kind in auth account password session; do # for su, which Slurm runs for --export=NAME
    common=etc/pam.d/common-$kind
    [[ -e $common ]] || echo "$kind required pam_permit.so" >"$common"
done
[[ -e etc/shells ]] || echo /bin/bash >etc/shells
[[ -e usr/bin/sh ]] || ln -s bash usr/bin/sh
[[ -e usr/bin/python3 ]] || ln -s "${prefixes[1]}/bin/python3" usr/bin/python3 # a node has one
for tool in usr/{bin,sbin}/*-wlm; do
    if [[ -e $tool && ! -e ${tool%-wlm} ]]; then ln -s "${tool##*/}" "${tool%-wlm}"; fi
done

pivot_root . old # with chroot alone, a process that enters a node's namespace would leave ROOT
umount --lazy /old
cd "${own[0]}"
ip link set lo up
hostname box
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
# Not exec: the first process of a box has to adopt orphans.
"$@"
