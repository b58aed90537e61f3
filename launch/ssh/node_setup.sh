#!/usr/bin/env bash
# Runs on a node: creates or updates the checkout's environment, with the pinned versions.
#   node_setup.sh FOLDER TORCH_INDEX [PACKAGE ...]       TORCH_INDEX may be empty
# With packages, only these are installed, without what the trainer and reports need.
set -euo pipefail
umask go-w # no other user may change code that runs

CDPATH='' cd -- "$1"
torch_index=$2
packages=("${@:3}")

say() { printf '%s: %s\n' "$(hostname)" "$*" >&2; }

# Several nodes may share this folder in a shared home: one creates the environment, others wait.
mkdir -p .venv
if command -v flock >/dev/null; then
    exec 9>.venv/.setup
    flock 9
fi
lock=$(cat constraints.txt setup.cfg pyproject.toml | sha256sum | cut -d ' ' -f 1)
stamp=.venv/.lock${packages:+-launch}
if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$lock" ]]; then
    say "already up to date"
    exit 0
fi

python=
for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null &&
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
if [[ -z $python ]]; then
    say "no Python 3.11 or newer found; on that node, run: sudo apt-get install python3.11 python3.11-venv"
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    say "$version cannot create environments; on that node, run: sudo apt-get install $version-venv"
    exit 1
fi

if [[ ! -x .venv/bin/python ]]; then
    say "creating $PWD/.venv with $python"
    "$python" -m venv .venv
fi
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
fetched=$(mktemp -d)
trap 'rm -rf -- "$fetched"' EXIT
# A small package soon shows whether packages can be downloaded at all. If not, pip prints the
# reason at its first retry.
if ! "${pip[@]}" --retries 1 --timeout 10 download --no-deps --dest "$fetched" \
    "$(grep '^typing_extensions==' constraints.txt)"; then
    say "cannot download packages; set PIP_INDEX_URL or PIP_PROXY there, or copy an environment to" \
        "it, and set MUSTER_PYTHON to its Python"
    exit 1
fi
if [[ -n $torch_index && ${#packages[@]} -eq 0 ]]; then
    say "installing torch from $torch_index"
    "${pip[@]}" install --index-url "$torch_index" "$(grep '^torch==' constraints.txt)"
fi
((${#packages[@]})) || packages=(--editable ".[trainer,report]")
say "installing packages, which can take some minutes"
"${pip[@]}" --verbose install --use-pep517 --constraint constraints.txt "${packages[@]}" |
    sed -n 's/^Successfully installed /installed /p' |
    while read -r installed; do say "$installed"; done
echo "$lock" >"$stamp"
say "ready"
