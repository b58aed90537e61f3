#!/usr/bin/env bash
# Runs on a login node: a command that goes on when the connection that started it is lost.
#   session.sh start FOLDER            stdin: what bash is to run
#   session.sh follow FOLDER OUT ERR   print what it prints, after so many bytes of each, to its end
#   session.sh end FOLDER              print its exit code, "lost" where nobody waits for it, or ""
#   session.sh interrupt FOLDER        send it SIGINT, as Ctrl-C does
#
# FOLDER holds `out` and `err`, what the command prints; `pid`; `code`, once it is over; and `lock`,
# which whoever waits for the command holds as long as it lives. So a pid is used only while the
# lock is held: it cannot be another process's.
set -eu

sessions=${2%/*} session=${2##*/}
if [[ ${sessions##*/} != sessions || $session == . || $session == .. ]]; then
    echo "error: $2 is not a folder of sessions/" >&2
    exit 2
fi
if [[ $1 == start ]]; then
    umask 077
    # what ended a month ago goes, with what was sent for it
    find "$sessions" -mindepth 2 -maxdepth 2 -name code -type f -mtime +30 -print0 2>/dev/null |
        while IFS= read -rd '' code; do
            old=${code%/code}
            if [[ -f $old/lock && -f $old/out && -f $old/err ]]; then rm -rf -- "$old" "$old.call"; fi
        done
    mkdir -p -- "$2"
    chmod go-w -- "$sessions"
    cd -- "$2"
    script=$(cat) # it has values that no command line and no disk may show
    set -m        # else what is started below would not hear SIGINT
    (
        trap '' HUP
        flock 9
        set +e
        # shellcheck disable=SC2016 # for the other shell to expand
        # not its stdin, which a start-up file may read
        setsid bash -lc 'echo $$ >"$0/pid"; script=$(cat <&3); exec 3<&-; eval "$script"' "$PWD" \
            >out 2>err 9>&- 3< <(printf %s "$script")
        echo $? >code.partial
        mv code.partial code
    ) 9>lock </dev/null >/dev/null 2>&1 &
    until [[ -s pid || -e code ]]; do sleep 0.05; done
    exit
fi
cd -- "$2"
case $1 in
follow)
    flock --shared lock true & # until it is over
    over=$!
    tail -s 0.1 -f --pid=$over -c "+$(($3 + 1))" out &
    out=$!
    tail -s 0.1 -f --pid=$over -c "+$(($4 + 1))" err >&2 &
    wait $out $! || true # also where nobody reads any more
    kill $over 2>/dev/null || true
    ;;
end)
    lost=
    flock --shared --nonblock lock true && lost=lost # before the code, which is written under it
    cat code 2>/dev/null || echo "$lost"
    ;;
interrupt) flock --shared --nonblock lock true || kill -INT -- "-$(<pid)" ;;
esac
