#!/bin/sh
# Runs the Ray bench: run.sh PROGRAM [FLAG...]. The bench runs in namespaces of its own (network with nothing but a
# loopback, processes, mounts), so that all of it ends with it. Needs root, and what install.sh installs.
set -eu
program=$1
shift
cache=$("$(dirname "$0")/install.sh")
export TAKT_RAY_INSIDE=1
exec unshare -m -n -p -f --kill-child=SIGTERM --mount-proc sh -c 'ip link set lo up && exec "$@"' sh \
	"$program" -python "$cache/bin/python3" "$@"
