#!/usr/bin/env bash
# Runs a command on a login node. The command continues if the connection that started it is lost.
#   session.sh start FOLDER            start the command: stdin is a script for bash
#   session.sh follow FOLDER OUT ERR   print its output to its end, without the first OUT bytes of
#                                      stdout and ERR bytes of stderr
#   session.sh end FOLDER              print its exit code; "lost" if the process that waited for it
#                                      was killed; nothing while it runs
#   session.sh interrupt FOLDER        send it SIGINT, as Ctrl-C does
#
# FOLDER contains the command's output in `out` and `err`, its `pid`, its exit `code` once it has
# ended, and `lock`. The process that waits for the command holds the lock as long as it lives. The
# pid is used only while the lock is held, so it cannot belong to another process.
set -eu

sessions=${2%/*} session=${2##*/}
if [[ ${sessions##*/} != sessions || $session == . || $session == .. ]]; then
    echo "error: $2 is not a folder of sessions/" >&2
    exit 2
fi
if [[ $1 == start ]]; then
    umask 077
    # remove sessions that ended a month ago, with the files that were sent for them
    find "$sessions" -mindepth 2 -maxdepth 2 -name code -type f -mtime +30 -print0 2>/dev/null |
        while IFS= read -rd '' code; do
            old=${code%/code}
            if [[ -f $old/lock && -f $old/out && -f $old/err ]]; then rm -rf -- "$old" "$old.call"; fi
        done
    mkdir -p -- "$2"
    chmod go-w -- "$sessions"
    CDPATH='' cd -- "$2"
    script=$(cat) # it contains secrets, which must not be in a command line or on a disk
    set -m        # without it the command below would ignore SIGINT
    (
        trap '' HUP
        flock 9
        set +e
        # shellcheck disable=SC2016 # the other shell expands it
        # the script is not that shell's stdin, since a start-up file may read stdin
        setsid bash -lc 'echo $$ >"$0/pid"; script=$(cat <&3); exec 3<&-; eval "$script"' "$PWD" \
            >out 2>err 9>&- 3< <(printf %s "$script")
        echo $? >code.partial
        mv code.partial code
    ) 9>lock </dev/null >/dev/null 2>&1 &
    until [[ -s pid || -e code ]]; do sleep 0.05; done
    exit
fi
CDPATH='' cd -- "$2"
case $1 in
follow)
    flock --shared lock true & # ends when the command is over
    over=$!
    tail -s 0.1 -f --pid=$over -c "+$(($3 + 1))" out &
    out=$!
    tail -s 0.1 -f --pid=$over -c "+$(($4 + 1))" err >&2 &
    wait $out $! || true # also when the reader of the output has ended
    kill $over 2>/dev/null || true
    ;;
end)
    lost=
    # the lock is tried before the code is read, since the code is written while the lock is held
    flock --shared --nonblock lock true && lost=lost
    cat code 2>/dev/null || echo "$lost"
    ;;
interrupt) flock --shared --nonblock lock true || kill -INT -- "-$(<pid)" ;;
esac
