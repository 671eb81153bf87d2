#!/bin/sh
# What the image of taktd holds is enough for it: it runs in the image's own root, and the command talks with it. Needs root.
# BUILT has the programs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
taktd=
finish() {
	[ -z "$taktd" ] || { kill "$taktd" && wait "$taktd"; } 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
"$here/taktd.sh" "$work/one.tar" takt.test/taktd:1
"$here/taktd.sh" "$work/two.tar" takt.test/taktd:1 >/dev/null
cmp "$work/one.tar" "$work/two.tar"
mkdir "$work/image" "$work/root"
tar -xf "$work/one.tar" -C "$work/image"
tar -xf "$work/image/layer.tar" -C "$work/root"
chroot "$work/root" /usr/bin/taktd --config /etc/takt/takt.toml --check
# In a network of its own: it binds ports.
unshare --net chroot "$work/root" /usr/bin/taktd --config /etc/takt/takt.toml 2>"$work/log" &
taktd=$!
until chroot "$work/root" /usr/bin/takt status >/dev/null 2>&1; do
	kill -0 "$taktd" || { cat "$work/log"; exit 1; }
	sleep 0.1
done
# What it brings to its node is whole: the command runs, and the preload has a library for each loader.
mkdir "$work/root/host"
chroot "$work/root" /takt-install /node /host/runtime
chroot "$work/root" /host/runtime/takt --version
for part in libtakt.so.0 takt-preload/libtakt_preload.so "takt-preload/lib/$(uname -m)-linux-gnu/libtakt_preload.so"; do
	test -x "$work/root/host/runtime/$part" || { echo "the node has no $part"; exit 1; }
done
echo "taktd runs in its image"
