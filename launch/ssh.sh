#!/usr/bin/env bash
# Start a run on machines that you can log in to:
#   launch/ssh.sh hosts.txt --sync ddp          a hosts file, or a CloudLab manifest
#   launch/ssh.sh node[0-3] --sync ddp          names
#   launch/ssh.sh hosts.txt -- train.py         any program, from its own folder
#   launch/ssh.sh hosts.txt --setup             first: make the environment on every node
set -euo pipefail

usage="usage: launch/ssh.sh HOSTS [flags of muster run] [-- train.py ...]; HOSTS is a file or names such as node[0-3]"
if [[ ${1-} == --help || ${1-} == -h ]]; then
    echo "$usage"
    exit 0
elif (($# == 0)) || [[ $1 == -* ]]; then
    echo "$usage" >&2
    exit 2
fi
hosts=$1
shift

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=${MUSTER_PYTHON:-$root/.venv/bin/python}
if ! command -v -- "$python" >/dev/null; then
    echo "error: no Python at $python; make the environment with: make -C $root install" >&2
    exit 2
fi
exec "$python" "$root/launch/submit.py" --launcher ssh "--hosts=$hosts" "$@"
