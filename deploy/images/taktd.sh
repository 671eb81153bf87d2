#!/bin/sh
# Writes the image of taktd as a docker-archive: deploy/images/taktd.sh [OUTPUT.tar [TAG]]
# It holds taktd and takt of BUILT (target/release after `make build`), the libraries of this system that they need, in /node what its node
# is to have for containers (the preload for glibc and musl, libtakt, takt for veths), takt-install, which copies that there, and nothing
# else. Needs go, ldd, tar and sha256sum; no daemon, no registry, no root. The same files give the same bytes.
#
#   ctr -n k8s.io images import --local taktd.tar    onto a node
#   skopeo copy docker-archive:taktd.tar docker://registry.example.com/taktd:0.1.0
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-taktd.tar}
tag=${2:-ghcr.io/takt-dev/taktd:0.1.0}
built=${BUILT:-$here/../../target/release}
case $(uname -m) in x86_64) GOARCH=amd64 ;; aarch64) GOARCH=arm64 ;; *) GOARCH=$(uname -m) ;; esac
export GOARCH
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/bin" "$root/etc/takt" "$root/run/takt" "$root/var/lib/takt" "$root/tmp"
install -m 755 -t "$root/usr/bin" "$built/taktd" "$built/takt"
install -m 644 -t "$root/etc/takt" "$here/../takt.toml"
[ -d "$built/takt-preload" ] || { echo "$built has no takt-preload: run scripts/preload.sh" >&2; exit 1; }
mkdir "$root/node"
cp -RL "$built/takt-preload" "$root/node"
install -m 755 "$built/libtakt.so" "$root/node/libtakt.so.0"
# One file in the image: archives have it once.
ln "$root/usr/bin/takt" "$root/node/takt"
(cd "$here/../../kubernetes" && CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -ldflags=-s -o "$root/takt-install" ./cmd/takt-install)
# Where the loader of the programs looks for them: "NAME => PATH (ADDRESS)", and the loader's own path alone.
ldd "$built/taktd" "$built/takt" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// && $2 ~ /^\(/ { print $1 }' | sort -u | while read -r library; do
	mkdir -p "$root/$(dirname "$library")"
	cp -L "$library" "$root/$library"
	# Their licences, of Debian's packages.
	package=$(dpkg -S "$(readlink -f "$library")" 2>/dev/null | cut -d: -f1) || continue
	[ -z "$package" ] || install -D -m 644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
done
install -D -m 644 "$here/../../LICENSE" "$root/usr/share/doc/takt/copyright"
"$here/archive.sh" "$output" "$tag" /usr/bin/taktd "$root"
