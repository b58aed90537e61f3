#!/bin/sh
# hello.sh [RANK]: every process says who it is; RANK ends with exit code 3
echo "process $RANK of $WORLD_SIZE on $(hostname), process $LOCAL_RANK of $LOCAL_WORLD_SIZE there"
[ "$RANK" != "$1" ] || exit 3
