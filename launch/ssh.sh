#!/usr/bin/env bash
# Start a run on machines that you can log in to.
set -euo pipefail

usage="usage: launch/ssh.sh HOSTS [flags of muster run] [-- train.py ...]

HOSTS is a hosts file, a CloudLab manifest, or names such as node[0-3].

  launch/ssh.sh hosts.txt --setup       first: set up the environment on every node
  launch/ssh.sh hosts.txt --sync ddp    train with Muster's trainer
  launch/ssh.sh hosts.txt -- train.py   run any program, from its own folder

All flags: muster run --help-all"
if [[ ${1-} == --help || ${1-} == -h ]]; then
    echo "$usage"
    exit 0
elif (($# == 0)) || [[ $1 == -* ]]; then
    echo "$usage" >&2
    exit 2
fi
hosts=$1
shift

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$(bash "$root/launch/own_python.sh") || exit 2
exec "$python" "$root/launch/submit.py" --launcher ssh "--hosts=$hosts" "$@"
