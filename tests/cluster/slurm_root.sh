#!/usr/bin/env bash
# slurm_root.sh SUITE DIR: unpack the Slurm of another Debian into DIR, for SLURM_ROOT=DIR. SUITE is
# trixie (24.11), or another suite of the machine's own package source. Nothing is installed.
set -euo pipefail
if (($# != 2)); then
    echo "usage: $0 SUITE DIR" >&2
    exit 2
fi
suite=$1
mkdir -p "$2"
root=$(readlink -f "$2")
packages=(slurmd slurmctld slurm-client munge openssh-server openssh-client iproute2 rsync git)
packages+=(base-files base-passwd bash coreutils findutils gawk grep hostname mount procps sed tar)
packages+=(util-linux libc-bin netbase ca-certificates) # and the libraries of Pythons:
packages+=(libbz2-1.0 libffi8 libgomp1 liblzma5 libsqlite3-0 libstdc++6 zlib1g)

# apt with a state of its own: it uses only that suite, and treats no package as installed.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache}/partial "$work/parts"
: >"$work/status"
read -r source key < <(
    awk '/^URIs:/ && !uri {uri = $2} /^Signed-By:/ && !key {key = $2} END {print uri, key}' \
        /etc/apt/sources.list.d/*.sources 2>/dev/null || true
)
if [[ -z ${source-} ]]; then
    echo "error: no package source in /etc/apt/sources.list.d/*.sources" >&2
    exit 1
fi
signed=${key:+[signed-by=$key]}
echo "deb $signed $source $suite main" >"$work/sources.list"
export APT_CONFIG=$work/apt.conf
cat >"$APT_CONFIG" <<CONF
Dir::State "$work";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/parts";
Acquire::Languages "none";
APT::Sandbox::User "root";
CONF
apt-get update -qq
apt-get install -qq --yes --download-only --no-install-recommends \
    -o Dir::Cache::archives="$work/cache" "${packages[@]}" >/dev/null

for folder in bin sbin lib lib64; do # symbolic links since Debian 12, which an installation makes
    mkdir -p "$root/usr/$folder"
    [[ -e $root/$folder ]] || ln -s "usr/$folder" "$root/$folder"
done
for package in "$work"/cache/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar --extract --directory "$root" --keep-directory-symlink
done
echo "Slurm $(dpkg-deb --field "$work"/cache/slurmd_*.deb Version) is in $root"
