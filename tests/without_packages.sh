#!/bin/sh
# Run a command where some programs do not exist: unshare --mount THIS LAYERS PROGRAM ... -- COMMAND
# Each PROGRAM is a path, hidden by an overlay of its folder, which is kept below the folder LAYERS.
set -eu
layers=$1
shift
mount -t tmpfs none "$layers"
while [ "$1" != -- ]; do
    folder=$(dirname "$1")
    layer=$layers/$(echo "$folder" | tr / _)
    if [ ! -d "$layer" ]; then
        mkdir -p "$layer/upper" "$layer/work"
        mount -t overlay -o "lowerdir=$folder,upperdir=$layer/upper,workdir=$layer/work" overlay "$folder"
    fi
    rm "$1"
    shift
done
shift
exec "$@"
