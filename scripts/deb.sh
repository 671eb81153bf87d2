#!/usr/bin/env bash
# Packs what `make build` has built as Debian packages: takt, libtakt0, libtakt-dev, takt-preload.
# The files and their places are those of scripts/install.sh; deploy/debian has what is said about each package.
# By the environment: BUILD (target/release), OUT (out/deb), COMPRESSION (xz)
set -euo pipefail
cd "$(dirname "$0")/.."

export BUILD=${BUILD:-target/release}
out=${OUT:-out/deb}
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
architecture=$(dpkg-architecture -qDEB_HOST_ARCH)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)-1
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
mkdir -p "$out"
rm -f "$out"/*.deb

DESTDIR=$stage PREFIX=/usr SYSCONFDIR=/etc LIBDIR=/usr/lib/$multiarch UNITDIR=/usr/lib/systemd/system \
    BINDIR='' INCLUDEDIR='' MANDIR='' scripts/install.sh install >/dev/null
find "$stage" -name '*.1' -exec gzip -9n {} +

pack() { # pack PACKAGE PATH...
    local package=$1 root=$work/$1 path
    shift
    mkdir -p "$root"
    for path in "$@"; do
        (cd "$stage" && cp -a --parents -t "$root" "$path" && rm -r "$path")
    done
    find "$root" -type f \( -perm -100 -o -name '*.so*' \) -exec strip --strip-debug {} +
    install -D -m 644 deploy/debian/copyright "$root/usr/share/doc/$package/copyright"

    # The libraries that its programs need, in the versions that they need. musl is there where its programs are.
    local depends='' binaries
    binaries=$(find "$root" -type f \( -perm -100 -o -name '*.so*' \) ! -path '*/$LIB/*')
    if [ -n "$binaries" ]; then
        mkdir -p "$work/debian"
        printf 'Source: takt\n\nPackage: %s\nArchitecture: any\n' "$package" >"$work/debian/control"
        # shellcheck disable=SC2086 # one argument for each
        depends=$(cd "$work" && dpkg-shlibdeps -O $(printf -- '-e%s ' $binaries) 2>shlibdeps.log) \
            || { cat "$work/shlibdeps.log" >&2; exit 1; }
        depends=${depends#shlibs:Depends=}
    fi

    mkdir -p "$root/DEBIAN"
    for path in conffiles triggers shlibs postinst prerm postrm; do
        if [ -e "deploy/debian/$package.$path" ]; then cp "deploy/debian/$package.$path" "$root/DEBIAN/$path"; fi
    done
    chmod -R go-w "$root"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@SHLIBS@/$depends/" \
        -e "s/@SIZE@/$(du -sk --exclude=DEBIAN "$root" | cut -f 1)/" "deploy/debian/$package.control" >"$root/DEBIAN/control"
    dpkg-deb --root-owner-group "-Z${COMPRESSION:-xz}" --build "$root" "$out" >/dev/null
    echo "deb: $out/${package}_${version}_$architecture.deb"
}

pack takt-preload "usr/lib/$multiarch/libtakt_preload.so" "usr/lib/$multiarch/takt-preload"
pack libtakt0 "usr/lib/$multiarch/libtakt.so.0" "usr/lib/$multiarch/libtakt_embedded.so"
pack libtakt-dev usr/include "usr/lib/$multiarch"
pack takt usr etc
left=$(find "$stage" ! -type d)
[ -z "$left" ] || { echo "deb: in no package: $left" >&2; exit 1; }
