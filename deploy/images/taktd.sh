#!/bin/sh
# Writes the image of taktd as a docker-archive: deploy/images/taktd.sh [OUTPUT.tar [TAG]]
# It holds taktd and takt of BUILT (target/release after `make build`), the libraries of this system that they need, and nothing
# else. Needs ldd, tar and sha256sum; no daemon, no registry, no root. The same files give the same bytes.
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
