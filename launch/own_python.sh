#!/usr/bin/env bash
# Print the Python that has the packages of launch/, for scripts that have not found one yet:
# $MUSTER_PYTHON, the checkout's .venv, or else the Python of the installation that this file
# belongs to, that of `muster` on PATH, or python3.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -n ${MUSTER_PYTHON-} ]]; then
    if ! command -v -- "$MUSTER_PYTHON"; then
        echo "error: MUSTER_PYTHON=$MUSTER_PYTHON: no such program" >&2
        exit 2
    fi
    exit 0
fi
own=$root/.venv/bin/python
candidates=("$own")
# PREFIX/lib/pythonX.Y/site-packages/muster/_checkout
if [[ $root =~ ^(.*)/lib(64)?/(python3\.[0-9]+)/[^/]+/muster/_checkout$ ]]; then
    candidates+=("${BASH_REMATCH[1]}/bin/${BASH_REMATCH[3]}" "${BASH_REMATCH[3]}")
fi
if command=$(command -v muster); then # uv and pipx link it from an environment of its own
    candidates+=("$(dirname -- "$(readlink -f -- "$command")")/python")
fi
candidates+=(python3)
for python in "${candidates[@]}"; do
    # -P: no packages from the script's own folder; Python 3.11 is the first that supports it
    if command -v -- "$python" >/dev/null && "$python" -P "$root/muster/run_module.py" muster.extras 2>/dev/null; then
        command -v -- "$python"
        exit 0
    fi
done
if [[ $root == */muster/_checkout ]]; then
    printf 'error: no Python with Muster'\''s packages found\ntip: set MUSTER_PYTHON to one\n' >&2
else
    printf 'error: no Python with Muster'\''s packages at %s\ntip: run: make -C %s install, or set MUSTER_PYTHON\n' "$own" "$root" >&2
fi
exit 2
