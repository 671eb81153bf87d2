#!/bin/sh
# Installs Ray, with what its dashboard needs, and numpy from PyPI into a cache, once, and says where. Needs Python 3 with venv.
set -eu
ray=2.60.0 numpy=2.4.6
cache=${TAKT_RAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-ray}
if [ "$(cat "$cache/version" 2>/dev/null)" != "$ray default $numpy" ]; then
	echo "installing Ray $ray into $cache" >&2
	python3 -m venv --clear "$cache"
	"$cache/bin/pip" install --quiet "ray[default]==$ray" "numpy==$numpy" >&2
	echo "$ray default $numpy" >"$cache/version"
fi
echo "$cache"
