#!/bin/sh
# Runs the Ray bench: run.sh PROGRAM [FLAG...]. Ray and numpy are installed from PyPI into a cache, once; the bench
# runs in namespaces of its own (network with nothing but a loopback, processes, mounts), so that all of it ends
# with it. Needs root and Python 3 with venv.
set -eu
program=$1
shift
ray=2.60.0 numpy=2.4.6
cache=${TAKT_RAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-ray}
if [ "$(cat "$cache/version" 2>/dev/null)" != "$ray $numpy" ]; then
	echo "installing Ray $ray into $cache" >&2
	python3 -m venv --clear "$cache"
	"$cache/bin/pip" install --quiet "ray==$ray" "numpy==$numpy"
	echo "$ray $numpy" >"$cache/version"
fi
export TAKT_RAY_INSIDE=1
exec unshare -m -n -p -f --kill-child=SIGTERM --mount-proc sh -c 'ip link set lo up && exec "$@"' sh \
	"$program" -python "$cache/bin/python3" "$@"
