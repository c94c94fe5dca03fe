#!/bin/sh
# enter.sh HOST COMMAND...: run a command on a host of a testbed, as `ssh HOST COMMAND...` would. Open MPI's launch agent.
host=$1
shift
folder=/run/grsgd-testbed/${host%-*}
[ -d "$folder" ] || { echo "enter.sh: no host $host: there is no $folder" >&2; exit 1; }
[ ! -e "$folder/$host.procs" ] || echo $$ > "$folder/$host.procs" || exit 1
export folder
exec nsenter --net="/run/netns/$host" unshare --uts --mount \
    sh -c 'mount --bind "$folder/hosts" /etc/hosts && hostname "$0" && unset folder && exec sh -c "$*"' "$host" "$@"
